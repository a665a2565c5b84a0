//! The request for tile data. It holds for the whole process and for threads made later.
#![cfg_attr(target_os = "linux", expect(unsafe_code, reason = "arch_prctl is a raw system call"))]

use crate::isa::Unavailable;

/// Asks Linux for the use of tile data (`ARCH_REQ_XCOMP_PERM`, feature 18). Without it the first tile instruction would
/// end the process.
#[cfg(target_os = "linux")]
pub(crate) fn request() -> Result<(), Unavailable> {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILE_DATA: libc::c_ulong = 18;
    // SAFETY: this request takes two integers, touches no memory of the process and only widens what the process may do.
    let status = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA) };
    if status == 0 {
        Ok(())
    } else {
        Err(Unavailable::Permission {
            errno: std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
        })
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn request() -> Result<(), Unavailable> {
    Err(Unavailable::OperatingSystem)
}
