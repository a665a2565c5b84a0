//! Speed of every 8-bit kernel beside the peak of the instruction that bounds it, measured in the same run.
//!
//! `cargo bench -p azulejo-amx --bench int8 -- --json` prints one JSON object a line; an operation is a multiplication or an addition.
//! Options: `--kernel TEXT` (of its name), `--only TEXT` (of the line), `--threads N`, `--seconds S` (for each case), `--smoke` (one case
//! each), `--shape MxNxK`. Figures are from the fastest of many short runs, peak and product by turns, so that a busy machine disturbs
//! both alike.
#![expect(unsafe_code, reason = "peaks are measured with bare instructions")]
#![expect(clippy::print_stdout, reason = "printing is the purpose")]
#![expect(clippy::unwrap_used, reason = "a benchmark may end on an error")]

use std::time::{Duration, Instant};

use azulejo_amx::int8::{Dequantize, GemmInt8, Int8Kernel, OutInt32, PackedInt8, Per, Requantize, ZeroPoints};
use azulejo_amx::{Epilogue, Executor, MatMut, MatRef, Out, Scratch};

/// Plain threads, made for each call: enough for long products.
struct Threads(usize);

impl Executor for Threads {
    fn threads(&self) -> usize {
        self.0
    }

    fn run(&self, task: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for worker in 1..self.0 {
                scope.spawn(move || task(worker));
            }
            task(0);
        });
    }
}

struct Options {
    json: bool,
    smoke: bool,
    kernel: Option<String>,
    only: Option<String>,
    threads: usize,
    seconds: f64,
    shape: Option<(usize, usize, usize)>,
}

fn options() -> Options {
    let mut options = Options {
        json: false,
        smoke: false,
        kernel: None,
        only: None,
        threads: 1,
        seconds: 0.3,
        shape: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--json" => options.json = true,
            "--smoke" => options.smoke = true,
            "--kernel" => options.kernel = args.next(),
            "--only" => options.only = args.next(),
            "--threads" => options.threads = args.next().unwrap().parse().unwrap(),
            "--seconds" => options.seconds = args.next().unwrap().parse().unwrap(),
            "--shape" => {
                let list = args.next().unwrap();
                let mut sizes = list.split('x').map(|x| x.parse().unwrap());
                options.shape = Some((sizes.next().unwrap(), sizes.next().unwrap(), sizes.next().unwrap()));
            }
            // What cargo passes to every benchmark.
            "--bench" => {}
            other => panic!("unknown option {other}"),
        }
    }
    options
}

/// Operations of `loops` rounds of the instructions that bound a kernel, in independent chains.
fn peak_round(kernel: Int8Kernel, loops: usize) -> f64 {
    #[cfg(target_arch = "x86_64")]
    match kernel {
        Int8Kernel::Amx => return peak::tiles(loops),
        Int8Kernel::Avx512Vnni => return peak::dp_zmm(loops),
        Int8Kernel::AvxVnni => return peak::dp_ymm(loops),
        Int8Kernel::Avx512 => return peak::madd_zmm(loops),
        Int8Kernel::Avx2 => return peak::madd_ymm(loops),
        _ => {}
    }
    let _ = kernel;
    let mut x = [1i32; 16];
    for i in 0..loops {
        for v in &mut x {
            *v = v.wrapping_add(std::hint::black_box(3) * (i as i32 & 0xff));
        }
    }
    std::hint::black_box(x);
    (loops * 32) as f64
}

#[cfg(target_arch = "x86_64")]
mod peak {
    use std::arch::asm;

    #[repr(C, align(64))]
    struct Config([u8; 64]);

    pub(crate) fn tiles(loops: usize) -> f64 {
        let mut config = Config([0; 64]);
        config.0[0] = 1;
        for t in 0..8 {
            config.0[16 + 2 * t] = 64;
            config.0[48 + t] = 16;
        }
        // SAFETY: the caller's instruction set was checked; tile state does not outlive the block.
        unsafe {
            asm!(
                "ldtilecfg [{cfg}]",
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", "tilezero tmm4", "tilezero tmm5",
                "2:",
                "tdpbusd tmm0, tmm4, tmm5",
                "tdpbusd tmm1, tmm4, tmm5",
                "tdpbusd tmm2, tmm4, tmm5",
                "tdpbusd tmm3, tmm4, tmm5",
                "dec {n}",
                "jnz 2b",
                "tilerelease",
                cfg = in(reg) &raw const config,
                n = inout(reg) loops => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
                options(nostack),
            );
        }
        (loops * 4 * 2 * 16 * 16 * 64) as f64
    }

    /// One product of chain `$c`.
    macro_rules! dp {
        ($vex:literal, $reg:literal, $c:literal) => {
            concat!($vex, "vpdpbusd ", $reg, $c, ", ", $reg, "14, ", $reg, "15")
        };
    }

    /// One product and its addition to chain `$c`.
    macro_rules! madd {
        ($vex:literal, $reg:literal, $c:literal) => {
            concat!(
                $vex,
                "vpmaddwd ",
                $reg,
                "13, ",
                $reg,
                "14, ",
                $reg,
                "15\n",
                "vpaddd ",
                $reg,
                $c,
                ", ",
                $reg,
                $c,
                ", ",
                $reg,
                "13"
            )
        };
    }

    /// Twelve independent chains.
    macro_rules! chains {
        ($name:ident, $one:ident, $vex:literal, $reg:literal, $products:literal) => {
            pub(crate) fn $name(loops: usize) -> f64 {
                // SAFETY: the caller's instruction set was checked; only vector registers are changed.
                unsafe {
                    asm!(
                        "2:",
                        $one!($vex, $reg, "0"),
                        $one!($vex, $reg, "1"),
                        $one!($vex, $reg, "2"),
                        $one!($vex, $reg, "3"),
                        $one!($vex, $reg, "4"),
                        $one!($vex, $reg, "5"),
                        $one!($vex, $reg, "6"),
                        $one!($vex, $reg, "7"),
                        $one!($vex, $reg, "8"),
                        $one!($vex, $reg, "9"),
                        $one!($vex, $reg, "10"),
                        $one!($vex, $reg, "11"),
                        "dec {n}",
                        "jnz 2b",
                        n = inout(reg) loops => _,
                        inout("xmm14") 0.0f32 => _,
                        inout("xmm15") 0.0f32 => _,
                        inout("xmm0") 0.0f32 => _, inout("xmm1") 0.0f32 => _, inout("xmm2") 0.0f32 => _,
                        inout("xmm3") 0.0f32 => _, inout("xmm4") 0.0f32 => _, inout("xmm5") 0.0f32 => _,
                        inout("xmm6") 0.0f32 => _, inout("xmm7") 0.0f32 => _, inout("xmm8") 0.0f32 => _,
                        inout("xmm9") 0.0f32 => _, inout("xmm10") 0.0f32 => _, inout("xmm11") 0.0f32 => _,
                        out("xmm13") _,
                        options(nostack, nomem),
                    );
                }
                (loops * 12 * 2 * $products) as f64
            }
        };
    }
    chains!(dp_zmm, dp, "", "zmm", 64);
    chains!(dp_ymm, dp, "{{vex}} ", "ymm", 32);
    chains!(madd_zmm, madd, "", "zmm", 32);
    chains!(madd_ymm, madd, "", "ymm", 16);
}

/// Seconds: of this thread's own processor time where that can be asked for and one thread does the work, so that other programs cost
/// only what they take from caches; of the wall clock otherwise.
fn clock(serial: bool) -> f64 {
    #[cfg(target_os = "linux")]
    if serial {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the clock exists since Linux 2.6 and the structure is ours.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        return time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9;
    }
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Operations per second of the fastest round so far.
struct Best {
    rate: f64,
}

impl Best {
    fn run(&mut self, serial: bool, work: impl FnOnce() -> f64) {
        let start = clock(serial);
        let operations = work();
        self.rate = self.rate.max(operations / (clock(serial) - start));
    }
}

/// Types and outputs.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    /// u8 x s8, sums.
    U8I32,
    /// s8 x s8, sums.
    I8I32,
    /// u8 x s8, zero point of A, a scale for each column, bias, f32.
    U8F32,
    /// u8 x s8, zero point of A, a scale for each column, u8.
    U8U8,
}

fn case(options: &Options, kernel: Int8Kernel, form: Form, (m, n, k): (usize, usize, usize)) {
    let gemm = GemmInt8::with_kernel(kernel).unwrap();
    let exec = Threads(options.threads);
    let mut scratch = Scratch::new();
    let a: Vec<u8> = (0..m * k).map(|i| (i * 7919 % 251) as u8).collect();
    let b: Vec<i8> = (0..k * n).map(|i| (i * 7907 % 251) as u8 as i8).collect();
    let packed = PackedInt8::from_i8(MatRef::row_major(&b, n, k).unwrap().t());
    let scales = vec![0.001f32; n];
    let bias = vec![0.5f32; n];
    let mut sums = vec![0i32; m * n];
    let mut numbers = vec![0f32; m * n];
    let mut bytes = vec![0u8; m * n];
    let dequantize = Dequantize {
        zero: ZeroPoints {
            a: Per::Tensor(128),
            b: Per::Tensor(0),
        },
        a_scale: Per::Tensor(0.02),
        b_scale: Per::Channel(&scales),
        bias: None,
    };
    let mut run = || {
        let a_bytes = MatRef::row_major(&a, m, k).unwrap();
        match form {
            Form::U8I32 | Form::I8I32 => {
                let out = OutInt32::Set(MatMut::row_major(&mut sums, m, n).unwrap());
                let zero = ZeroPoints::default();
                if form == Form::U8I32 {
                    gemm.i32(&exec, out, a_bytes, packed.as_ref(), zero, &mut scratch)
                } else {
                    let signed: &[i8] = bytemuck::cast_slice(&a);
                    let signed = MatRef::row_major(signed, m, k).unwrap();
                    gemm.i32(&exec, out, signed, packed.as_ref(), zero, &mut scratch)
                }
            }
            Form::U8F32 => {
                let out = Out::f32(MatMut::row_major(&mut numbers, m, n).unwrap());
                let epilogue = Epilogue {
                    bias: Some(&bias),
                    ..Epilogue::default()
                };
                gemm.f32(&exec, out, a_bytes, packed.as_ref(), dequantize, epilogue, &mut scratch)
            }
            Form::U8U8 => {
                let out = MatMut::row_major(&mut bytes, m, n).unwrap();
                let requantize = Requantize {
                    dequantize,
                    bias: Some(&bias),
                    zero: 128,
                };
                gemm.requantized(&exec, out, a_bytes, packed.as_ref(), requantize, &mut scratch)
            }
        }
        .unwrap();
        2.0 * (m * n * k) as f64
    };
    let (mut best, mut peak) = (Best { rate: 0.0 }, Best { rate: 0.0 });
    let end = Instant::now() + Duration::from_secs_f64(options.seconds);
    loop {
        peak.run(true, || peak_round(kernel, 20_000));
        best.run(options.threads == 1, &mut run);
        if options.smoke || Instant::now() >= end {
            break;
        }
    }
    let layout = format!("{form:?}").to_lowercase();
    let (isa, threads) = (kernel.isa(), options.threads);
    let peak_rate = peak.rate * threads as f64;
    let (gops, peak_gops, fraction) = (best.rate / 1e9, peak_rate / 1e9, best.rate / peak_rate);
    if options.json {
        println!(
            "{{\"isa\":\"{isa}\",\"kernel\":\"{kernel}\",\"mode\":\"exact\",\"dtype\":\"int8\",\"m\":{m},\"n\":{n},\"k\":{k},\
             \"layout\":\"{layout}\",\"threads\":{threads},\"gflops\":{gops:.1},\"peak_gflops\":{peak_gops:.1},\
             \"fraction\":{fraction:.3}}}"
        );
    } else {
        println!(
            "{:18} {layout:6} {m:5} x {n:4} x {k:5} threads {threads} {gops:8.1} of {peak_gops:8.1} Gop/s: {:5.1} %",
            kernel.name(),
            100.0 * fraction
        );
    }
}

fn main() {
    let options = options();
    let shapes = [
        (384, 768, 768),
        (3072, 768, 768),
        (384, 3072, 768),
        (3072, 3072, 768),
        (384, 768, 3072),
        (3072, 768, 3072),
        (16, 768, 768),
        (4, 768, 768),
        (1, 768, 768),
    ];
    for kernel in Int8Kernel::available() {
        if options
            .kernel
            .as_deref()
            .is_some_and(|only| !kernel.name().contains(only))
        {
            continue;
        }
        let scale = if kernel == Int8Kernel::Portable { 8 } else { 1 };
        let mut shapes = options.shape.map_or(shapes.to_vec(), |shape| vec![shape]);
        if kernel == Int8Kernel::Portable || options.smoke {
            shapes.truncate(1);
        }
        for (m, n, k) in shapes {
            for form in [Form::U8I32, Form::I8I32, Form::U8F32, Form::U8U8] {
                let label = format!("{form:?} {m}x{n}x{k}").to_lowercase();
                if options.only.as_deref().is_some_and(|only| !label.contains(only)) {
                    continue;
                }
                case(&options, kernel, form, (m / scale, n / scale, k / scale));
            }
        }
    }
}
