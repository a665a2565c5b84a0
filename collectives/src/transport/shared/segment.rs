#![expect(
    unsafe_code,
    clippy::disallowed_methods,
    reason = "memory shared with another process is reached through raw pointers"
)]

//! A piece of memory that two processes share and that has no name: nothing is left when both are gone, however they
//! end, and nobody else can open it.
//!
//! The bytes are never borrowed as Rust slices: they are copied in and out, and the counters are atomics. What the
//! other process does to them can therefore damage values, which the ring above checks, but nothing else.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, fstatvfs,
    ftruncate, memfd_create, open,
};

/// Where the kernel keeps shared memory that has a file system.
const FOLDER: &str = "/dev/shm";

pub(super) struct Segment {
    // Invariant 1: the mapping is `length` bytes long for as long as this value lives, and starts on a page.
    map: MmapRaw,
    length: usize,
}

impl Segment {
    /// A new segment of zeros and the descriptor to hand to the other process. Its memory is set aside now: later,
    /// there would be a bus error in place of an error.
    pub(super) fn create(length: usize) -> io::Result<(Self, OwnedFd)> {
        match memfd_create("azulejo", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING) {
            Ok(fd) => {
                set_aside(&fd, length)?;
                // The other process cannot make it shorter, which would end this one.
                fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
                Ok((Self::map(&fd, length)?, fd))
            }
            // Some containers do not allow the call.
            Err(_) => Self::create_in(FOLDER.as_ref(), length),
        }
    }

    /// The second choice: a file without a name.
    fn create_in(folder: &Path, length: usize) -> io::Result<(Self, OwnedFd)> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = open(folder, flags, Mode::RUSR | Mode::WUSR)?;
        // Asked first: setting aside fails only after it has taken all the memory there was.
        let room = fstatvfs(&fd)?;
        let enough = room.f_blocks == 0 || room.f_bavail.saturating_mul(room.f_frsize) >= length as u64;
        let aside = if enough {
            set_aside(&fd, length)
        } else {
            Err(io::ErrorKind::StorageFull.into())
        };
        aside.map_err(|e| {
            let advice = "is it too small? docker's --shm-size and an emptyDir of medium Memory make it larger";
            io::Error::new(e.kind(), format!("{}: {e} ({advice})", folder.display()))
        })?;
        Ok((Self::map(&fd, length)?, fd))
    }

    /// The segment behind a descriptor that another process has sent.
    pub(super) fn open(fd: &OwnedFd, length: usize) -> io::Result<Self> {
        let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
        let size = fstat(fd)?.st_size;
        if size != length as i64 {
            return Err(invalid(format!("a segment of {size} bytes, expected {length}")));
        }
        // A file that is no memfd has no seals to ask for.
        if let Ok(seals) = fcntl_get_seals(fd)
            && !seals.contains(SealFlags::SHRINK)
            && fcntl_add_seals(fd, SealFlags::SHRINK).is_err()
            && !is_plain_file(seals)
        {
            return Err(invalid("a segment that its sender can shorten".into()));
        }
        Self::map(fd, length)
    }

    fn map(fd: &OwnedFd, length: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len(length).map_raw(fd)?;
        Ok(Self { map, length })
    }

    /// A counter of 8 bytes at `offset`.
    pub(super) fn long(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.length,
            "no counter lies at {offset}"
        );
        // SAFETY: inside the mapping by the assertion and invariant 1, and aligned as a page is.
        let place = unsafe { self.map.as_mut_ptr().add(offset) };
        // SAFETY: valid and aligned as said; it lives as long as `self`; both processes reach it by atomics alone.
        unsafe { AtomicU64::from_ptr(place.cast()) }
    }

    /// A flag of 4 bytes at `offset`.
    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(
            offset.is_multiple_of(4) && offset + 4 <= self.length,
            "no flag lies at {offset}"
        );
        // SAFETY: inside the mapping by the assertion and invariant 1, and aligned as a page is.
        let place = unsafe { self.map.as_mut_ptr().add(offset) };
        // SAFETY: valid and aligned as said; it lives as long as `self`; both processes reach it by atomics alone.
        unsafe { AtomicU32::from_ptr(place.cast()) }
    }

    /// Copies `from` to `offset`.
    pub(super) fn write(&self, offset: usize, from: &[u8]) {
        assert!(
            offset <= self.length && from.len() <= self.length - offset,
            "{} bytes at {offset} of {}",
            from.len(),
            self.length
        );
        // SAFETY: inside the mapping by the assertion and invariant 1.
        let to = unsafe { self.map.as_mut_ptr().add(offset) };
        // SAFETY: `to` has room by the assertion; no reference to mapped bytes exists, so nothing overlaps `from`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    /// Copies the bytes at `offset` to `to`.
    pub(super) fn read(&self, offset: usize, to: &mut [u8]) {
        assert!(
            offset <= self.length && to.len() <= self.length - offset,
            "{} bytes at {offset} of {}",
            to.len(),
            self.length
        );
        // SAFETY: inside the mapping by the assertion and invariant 1.
        let from = unsafe { self.map.as_ptr().add(offset) };
        // SAFETY: `from` is valid for that many bytes by the assertion; `to` is not mapped memory, so nothing overlaps.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }
}

fn set_aside(fd: impl AsFd, length: usize) -> io::Result<()> {
    ftruncate(&fd, length as u64)?;
    loop {
        match fallocate(&fd, FallocateFlags::empty(), 0, length as u64) {
            Err(rustix::io::Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// tmpfs answers for a plain file that it is sealed against seals.
fn is_plain_file(seals: SealFlags) -> bool {
    seals == SealFlags::SEAL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_mappings_see_the_same_bytes() {
        for (segment, fd) in [
            Segment::create(8192).unwrap(),
            Segment::create_in(FOLDER.as_ref(), 8192).unwrap(),
        ] {
            let other = Segment::open(&fd, 8192).unwrap();
            segment.write(8000, b"hello");
            segment.long(64).store(7, std::sync::atomic::Ordering::Relaxed);
            let mut read = [0; 5];
            other.read(8000, &mut read);
            assert_eq!(&read, b"hello");
            assert_eq!(other.long(64).load(std::sync::atomic::Ordering::Relaxed), 7);
            assert!(Segment::open(&fd, 4096).err().unwrap().to_string().contains("8192"));
        }
    }

    #[test]
    fn a_segment_that_can_be_shortened_is_refused() {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 4096).unwrap();
        fcntl_add_seals(&fd, SealFlags::SEAL | SealFlags::GROW).unwrap();
        assert!(Segment::open(&fd, 4096).err().unwrap().to_string().contains("shorten"));
    }

    #[test]
    fn too_little_room_is_an_error_and_not_a_bus_error() {
        let folder = rustix::fs::statvfs(FOLDER).unwrap();
        // Without a limit of its own the whole machine's memory would be set aside.
        assert!(folder.f_blocks > 0, "{FOLDER} has no size");
        let all = (folder.f_blocks * folder.f_frsize) as usize;
        let reason = Segment::create_in(FOLDER.as_ref(), all + 4096)
            .err()
            .unwrap()
            .to_string();
        assert!(reason.contains("/dev/shm") && reason.contains("--shm-size"), "{reason}");
    }

    #[test]
    #[should_panic(expected = "bytes at 4095")]
    fn no_byte_beyond_the_end_is_written() {
        Segment::create(4096).unwrap().0.write(4095, &[0; 2]);
    }
}
