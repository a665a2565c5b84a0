//! The choice of an instruction set, as processes with other environments meet it: forced, forbidden, and under a kernel that refuses tiles.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![expect(unsafe_code, clippy::disallowed_methods, reason = "a seccomp filter is installed")]
#![expect(clippy::print_stdout, reason = "children tell their parent")]
#![expect(clippy::unwrap_used, reason = "a test may end on an error")]

use std::process::{Command, Output};

use azulejo_amx::int8::GemmInt8;
use azulejo_amx::{Gemm, Isa, MatMut, MatRef, Out, Packed, Scratch, Serial, report};

/// What the child is to do.
const CHILD: &str = "AZULEJO_TEST_CHILD";

/// Runs this program's `child` with an environment of its own.
fn with_environment(what: &str, isa: &str) -> (Output, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, what)
        .env("AZULEJO_ISA", isa)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

/// Not a test of its own: what the child processes of the tests below do.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    if what == "refused" {
        refuse_arch_prctl();
    }
    match Gemm::new() {
        Err(error) => println!("error: {error}"),
        Ok(gemm) => {
            let packed = Packed::from_f32(MatRef::row_major(&[2.0; 40 * 20], 40, 20).unwrap());
            let a = vec![half::bf16::ONE; 3 * 40];
            let mut c = vec![0f32; 3 * 20];
            let out = Out::f32(MatMut::row_major(&mut c, 3, 20).unwrap());
            let a = MatRef::row_major(&a, 3, 40).unwrap();
            gemm.bf16(
                &Serial,
                out,
                a,
                packed.as_ref(),
                Default::default(),
                &mut Scratch::new(),
            )
            .unwrap();
            assert!(c.iter().all(|&x| x == 80.0));
            assert_eq!(GemmInt8::new().unwrap().isa(), gemm.isa());
            println!("isa: {}", gemm.isa());
            for isa in Isa::ALL {
                println!("{isa} can be used: {}", Gemm::with_isa(isa).is_ok());
            }
        }
    }
    print!("{}", report());
}

/// From here on the kernel refuses `arch_prctl` with EPERM, as sandboxes do.
fn refuse_arch_prctl() {
    let statement = |code: u32, jf: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt: 0,
        jf,
        k,
    };
    let mut program = [
        // The number of the system call is the first word.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            1,
            u32::try_from(libc::SYS_arch_prctl).unwrap(),
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(),
        ),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog {
        len: 4,
        filter: program.as_mut_ptr(),
    };
    let (no, yes, mode): (libc::c_ulong, libc::c_ulong, _) = (0, 1, libc::c_ulong::from(libc::SECCOMP_MODE_FILTER));
    // SAFETY: a promise not to gain privileges, without pointers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, yes, no, no, no) }, 0);
    // SAFETY: the filter and its program live until the call returns.
    let status = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_name_forces() {
    for isa in Isa::ALL {
        let (output, text) = with_environment("plain", isa.name());
        // Neither a signal nor a panic, whatever this processor has.
        assert!(output.status.success(), "{isa}: {text}");
        match isa.check() {
            Ok(()) => assert!(text.contains(&format!("isa: {isa}\n")), "{text}"),
            Err(reason) => {
                let error = format!("error: instruction set {isa} cannot be used here: {reason}\n");
                assert!(text.contains(&error), "{text}");
                assert!(text.contains("chosen: none"), "{text}");
            }
        }
    }
}

#[test]
fn a_minus_sign_forbids() {
    let (output, text) = with_environment("plain", "-avx2");
    assert!(output.status.success(), "{text}");
    assert!(text.contains("isa: portable\n"), "{text}");
    for isa in ["avx2", "avx512", "amx"] {
        assert!(text.contains(&format!("{isa} can be used: false\n")), "{text}");
        assert!(text.contains(&format!("{isa}: forbidden by AZULEJO_ISA\n")), "{text}");
    }
    let (output, text) = with_environment("plain", "-portable");
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("error: instruction set portable cannot be used here: forbidden"),
        "{text}"
    );
}

#[test]
fn nonsense_is_an_error() {
    for nonsense in ["sse9", "-sse9", "amx,avx2"] {
        let (output, text) = with_environment("plain", nonsense);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("error: "), "{text}");
    }
}

/// Where the kernel refuses tile data, the best of the rest is chosen and the report says why; asked for by name, tiles are an error.
#[test]
fn a_sandbox_that_refuses_tiles() {
    let (output, text) = with_environment("refused", "");
    assert!(output.status.success(), "{text}");
    let rest = Isa::available().into_iter().rfind(|&isa| isa != Isa::Amx).unwrap();
    assert!(text.contains(&format!("isa: {rest}\n")), "{text}");
    assert!(text.contains("amx can be used: false\n"), "{text}");
    if Isa::Amx.check().is_ok() {
        assert!(
            text.contains("amx: the kernel refused tile data: error 1 (EPERM, a seccomp filter)"),
            "{text}"
        );
    }
    let (output, text) = with_environment("refused", "amx");
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("error: instruction set amx cannot be used here: "),
        "{text}"
    );
}

#[test]
fn the_report_has_what_a_reader_needs() {
    let text = report();
    for part in [
        "azulejo-amx ",
        "processor: ",
        "cpuid: ",
        "xcr0: 0x",
        "palette: max ",
        "signal stack: ",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
    for part in [
        "AZULEJO_ISA: ",
        "portable: available\n",
        "amx: ",
        "portable-int8: available\n",
        "chosen: ",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}
