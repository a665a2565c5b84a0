//! Speed of every kernel beside the peak of the instruction that bounds it, measured in the same run.
//!
//! `cargo bench -p azulejo-amx --bench gemm -- --json` prints one JSON object a line. Options: `--isa NAME`, `--dtype bf16|f32`,
//! `--only TEXT` (of the line), `--threads N`, `--seconds S` (for each case), `--smoke` (one case each), `--shape MxNxK`
//! (that shape in every layout). On AVX-512 it first measures VDPBF16PS beside the multiply-add.
//! Figures are from the fastest of many short runs, peak and product by turns, so that a busy machine disturbs both alike.
#![expect(unsafe_code, reason = "peaks are measured with bare instructions")]
#![expect(clippy::print_stdout, reason = "printing is the purpose")]
#![expect(clippy::unwrap_used, reason = "a benchmark may end on an error")]

use std::time::{Duration, Instant};

use azulejo_amx::attention::{Activation, Attention, AttentionSaved, AttentionScratch, Sequences};
use azulejo_amx::rng::Dropout;
use azulejo_amx::{Epilogue, Executor, Gelu, Gemm, Isa, MatMut, MatRef, Out, Packed, Scratch};
use half::bf16;

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
    isa: Option<Isa>,
    dtype: Option<String>,
    only: Option<String>,
    threads: usize,
    seconds: f64,
    shape: Option<(usize, usize, usize)>,
}

fn options() -> Options {
    let mut options = Options {
        json: false,
        smoke: false,
        isa: None,
        dtype: None,
        only: None,
        threads: 1,
        seconds: 0.4,
        shape: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--json" => options.json = true,
            "--smoke" => options.smoke = true,
            "--isa" => options.isa = Some(args.next().unwrap().parse().unwrap()),
            "--dtype" => options.dtype = args.next(),
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

/// Operations of `loops` rounds of the bounding instruction, in independent chains.
fn peak_round(isa: Isa, bf16: bool, loops: usize) -> f64 {
    #[cfg(target_arch = "x86_64")]
    match (isa, bf16) {
        (Isa::Amx, true) => return peak::tiles(loops),
        (Isa::Amx | Isa::Avx512, _) => return peak::zmm(loops),
        (Isa::Avx2, _) => return peak::ymm(loops),
        (Isa::Portable, _) => {}
    }
    let _ = (isa, bf16);
    let mut x = [1.0f32; 16];
    for _ in 0..loops {
        for v in &mut x {
            *v = v.mul_add(std::hint::black_box(0.5), 1.0);
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
                "tdpbf16ps tmm0, tmm4, tmm5",
                "tdpbf16ps tmm1, tmm4, tmm5",
                "tdpbf16ps tmm2, tmm4, tmm5",
                "tdpbf16ps tmm3, tmm4, tmm5",
                "dec {n}",
                "jnz 2b",
                "tilerelease",
                cfg = in(reg) &raw const config,
                n = inout(reg) loops => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
                options(nostack),
            );
        }
        (loops * 4 * 2 * 16 * 16 * 32) as f64
    }

    macro_rules! chains {
        ($name:ident, $reg:literal, $lanes:literal) => {
            pub(crate) fn $name(loops: usize) -> f64 {
                // SAFETY: the caller's instruction set was checked; only vector registers are changed.
                unsafe {
                    asm!(
                        "2:",
                        concat!("vfmadd231ps ", $reg, "0, ", $reg, "14, ", $reg, "15"),
                        concat!("vfmadd231ps ", $reg, "1, ", $reg, "14, ", $reg, "15"),
                        concat!("vfmadd231ps ", $reg, "2, ", $reg, "14, ", $reg, "15"),
                        concat!("vfmadd231ps ", $reg, "3, ", $reg, "14, ", $reg, "15"),
                        concat!("vfmadd231ps ", $reg, "4, ", $reg, "14, ", $reg, "15"),
                        concat!("vfmadd231ps ", $reg, "5, ", $reg, "14, ", $reg, "15"),
                        concat!("vfmadd231ps ", $reg, "6, ", $reg, "14, ", $reg, "15"),
                        concat!("vfmadd231ps ", $reg, "7, ", $reg, "14, ", $reg, "15"),
                        concat!("vfmadd231ps ", $reg, "8, ", $reg, "14, ", $reg, "15"),
                        concat!("vfmadd231ps ", $reg, "9, ", $reg, "14, ", $reg, "15"),
                        concat!("vfmadd231ps ", $reg, "10, ", $reg, "14, ", $reg, "15"),
                        concat!("vfmadd231ps ", $reg, "11, ", $reg, "14, ", $reg, "15"),
                        "dec {n}",
                        "jnz 2b",
                        n = inout(reg) loops => _,
                        inout("xmm14") 0.0f32 => _,
                        inout("xmm15") 0.0f32 => _,
                        inout("xmm0") 0.0f32 => _, inout("xmm1") 0.0f32 => _, inout("xmm2") 0.0f32 => _,
                        inout("xmm3") 0.0f32 => _, inout("xmm4") 0.0f32 => _, inout("xmm5") 0.0f32 => _,
                        inout("xmm6") 0.0f32 => _, inout("xmm7") 0.0f32 => _, inout("xmm8") 0.0f32 => _,
                        inout("xmm9") 0.0f32 => _, inout("xmm10") 0.0f32 => _, inout("xmm11") 0.0f32 => _,
                        options(nostack, nomem),
                    );
                }
                (loops * 12 * 2 * $lanes) as f64
            }
        };
    }
    chains!(zmm, "zmm", 16);

    /// The chains of `zmm` with VDPBF16PS: two multiply-adds a lane.
    pub(crate) fn dot_pairs(loops: usize) -> f64 {
        // SAFETY: the caller asked the processor for AVX512-BF16; only vector registers are changed.
        unsafe {
            asm!(
                "2:",
                "vdpbf16ps zmm0, zmm14, zmm15", "vdpbf16ps zmm1, zmm14, zmm15", "vdpbf16ps zmm2, zmm14, zmm15",
                "vdpbf16ps zmm3, zmm14, zmm15", "vdpbf16ps zmm4, zmm14, zmm15", "vdpbf16ps zmm5, zmm14, zmm15",
                "vdpbf16ps zmm6, zmm14, zmm15", "vdpbf16ps zmm7, zmm14, zmm15", "vdpbf16ps zmm8, zmm14, zmm15",
                "vdpbf16ps zmm9, zmm14, zmm15", "vdpbf16ps zmm10, zmm14, zmm15", "vdpbf16ps zmm11, zmm14, zmm15",
                "dec {n}",
                "jnz 2b",
                n = inout(reg) loops => _,
                inout("xmm14") 0.0f32 => _, inout("xmm15") 0.0f32 => _,
                inout("xmm0") 0.0f32 => _, inout("xmm1") 0.0f32 => _, inout("xmm2") 0.0f32 => _,
                inout("xmm3") 0.0f32 => _, inout("xmm4") 0.0f32 => _, inout("xmm5") 0.0f32 => _,
                inout("xmm6") 0.0f32 => _, inout("xmm7") 0.0f32 => _, inout("xmm8") 0.0f32 => _,
                inout("xmm9") 0.0f32 => _, inout("xmm10") 0.0f32 => _, inout("xmm11") 0.0f32 => _,
                options(nostack, nomem),
            );
        }
        (loops * 12 * 4 * 16) as f64
    }
    chains!(ymm, "ymm", 8);
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

/// How the operands of a bf16 case lie.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Layout {
    /// A rows, B packed ahead, f32 out.
    Packed,
    /// As `Packed`, bf16 out.
    PackedBf16,
    /// As `Packed`, bias, GELU, saved argument and bf16 out.
    PackedGelu,
    /// B by rows (dX = dY W): packed in the call.
    Nn,
    /// A by columns, B by rows (dW = X^T dY): packed in the call, added to the output.
    Tn,
}

fn case(options: &Options, isa: Isa, dtype: &str, layout: Layout, (m, n, k): (usize, usize, usize)) {
    let gemm = Gemm::with_isa(isa).unwrap();
    let exec = Threads(options.threads);
    let mut scratch = Scratch::new();
    let value = |i: usize| ((i * 7919) % 255) as f32 / 64.0 - 2.0;
    let wide_a: Vec<f32> = (0..m * k).map(value).collect();
    let wide_b: Vec<f32> = (0..k * n).map(value).collect();
    let a: Vec<bf16> = wide_a.iter().map(|&x| bf16::from_f32(x)).collect();
    let b: Vec<bf16> = wide_b.iter().map(|&x| bf16::from_f32(x)).collect();
    let packed = Packed::from_f32(MatRef::row_major(&wide_b, k, n).unwrap());
    let bias = vec![0.5f32; n];
    let mut c = vec![0.0f32; m * n];
    let mut c_half = vec![bf16::ZERO; m * n];
    let mut saved = vec![bf16::ZERO; m * n];
    let mut run = || {
        if dtype == "f32" {
            let out = Out::f32(MatMut::row_major(&mut c, m, n).unwrap());
            let b = MatRef::row_major(&wide_b, k, n).unwrap();
            let (a, b) = match layout {
                Layout::Tn => (MatRef::row_major(&wide_a, k, m).unwrap().t(), b),
                _ => (MatRef::row_major(&wide_a, m, k).unwrap(), b),
            };
            gemm.f32(&exec, out, a, b, Epilogue::default(), &mut scratch).unwrap();
        } else {
            let rows = MatRef::row_major(&a, m, k).unwrap();
            match layout {
                Layout::Packed => {
                    let out = Out::f32(MatMut::row_major(&mut c, m, n).unwrap());
                    gemm.bf16(&exec, out, rows, packed.as_ref(), Epilogue::default(), &mut scratch)
                        .unwrap();
                }
                Layout::PackedBf16 => {
                    let out = Out::bf16(MatMut::row_major(&mut c_half, m, n).unwrap());
                    gemm.bf16(&exec, out, rows, packed.as_ref(), Epilogue::default(), &mut scratch)
                        .unwrap();
                }
                Layout::PackedGelu => {
                    let out = Out::bf16(MatMut::row_major(&mut c_half, m, n).unwrap());
                    let save_bf16 = Some(MatMut::row_major(&mut saved, m, n).unwrap());
                    let epilogue = Epilogue {
                        bias: Some(&bias),
                        gelu: Some(Gelu {
                            save_bf16,
                            ..Gelu::default()
                        }),
                        ..Epilogue::default()
                    };
                    gemm.bf16(&exec, out, rows, packed.as_ref(), epilogue, &mut scratch)
                        .unwrap();
                }
                Layout::Nn => {
                    let out = Out::f32(MatMut::row_major(&mut c, m, n).unwrap());
                    let b = MatRef::row_major(&b, k, n).unwrap();
                    gemm.bf16_unpacked(&exec, out, rows, b, Epilogue::default(), &mut scratch)
                        .unwrap();
                }
                Layout::Tn => {
                    let out = Out::add_f32(MatMut::row_major(&mut c, m, n).unwrap());
                    let a = MatRef::row_major(&a, k, m).unwrap().t();
                    let b = MatRef::row_major(&b, k, n).unwrap();
                    gemm.bf16_unpacked(&exec, out, a, b, Epilogue::default(), &mut scratch)
                        .unwrap();
                }
            }
        }
        2.0 * (m * n * k) as f64
    };
    measure(
        options,
        isa,
        dtype,
        &format!("{layout:?}").to_lowercase(),
        (m, n, k),
        &mut run,
    );
}

/// Attention of 12 heads over four sequences of n tokens, d wide: the products of forward (4 n n d operations a head) or of backward
/// (10 n n d). What is between the products counts as time only. The figures m, n, k are tokens, tokens and width.
fn attention_case<T: Activation>(options: &Options, isa: Isa, what: &str, (n, d): (usize, usize), of: fn(f32) -> T) {
    const HEADS: usize = 12;
    const BATCH: usize = 4;
    let label = format!("{what} {}x{n}x{d}", BATCH * n);
    if options.only.as_deref().is_some_and(|only| !label.contains(only)) {
        return;
    }
    let exec = Threads(options.threads);
    let attention = Attention::new(Gemm::with_isa(isa).unwrap());
    let mut scratch = AttentionScratch::new();
    let t = BATCH * n;
    let value = |i: usize| of(((i * 7919) % 255) as f32 / 64.0 - 2.0);
    let qkv: Vec<T> = (0..t * 3 * HEADS * d).map(value).collect();
    let d_out: Vec<T> = (0..t * HEADS * d).map(value).collect();
    let (mut out, mut lse) = (d_out.clone(), vec![0.0; t * HEADS]);
    let mut d_qkv = qkv.clone();
    let cu_seqlens: Vec<u32> = (0..=BATCH as u32).map(|i| i * n as u32).collect();
    let samples = [0, 1, 2, 3];
    let dropout = Dropout::new(0.1, 1, 2, 3, 4).unwrap();
    let sequences = Sequences {
        heads: HEADS,
        width: d,
        cu_seqlens: &cu_seqlens,
        dropout: what.ends_with("dropout").then_some((dropout, &samples[..])),
    };
    attention
        .forward(&exec, &mut out, &mut lse, &qkv, sequences, &mut scratch)
        .unwrap();
    let backward = what.contains("backward");
    let mut run = || {
        if backward {
            let saved = AttentionSaved {
                out: &out,
                lse: &lse,
                qkv: &qkv,
            };
            attention
                .backward(&exec, &mut d_qkv, &d_out, saved, sequences, &mut scratch)
                .unwrap();
        } else {
            attention
                .forward(&exec, &mut out, &mut lse, &qkv, sequences, &mut scratch)
                .unwrap();
        }
        (if backward { 10 } else { 4 } * BATCH * HEADS * n * n * d) as f64
    };
    let dtype = if size_of::<T>() == 2 { "bf16" } else { "f32" };
    measure(options, isa, dtype, what, (t, n, d), &mut run);
}

/// Runs peak and work by turns and prints the line. `run` returns how many operations it did.
fn measure(
    options: &Options,
    isa: Isa,
    dtype: &str,
    layout: &str,
    (m, n, k): (usize, usize, usize),
    run: &mut dyn FnMut() -> f64,
) {
    let (mut best, mut peak) = (Best { rate: 0.0 }, Best { rate: 0.0 });
    let end = Instant::now() + Duration::from_secs_f64(options.seconds);
    loop {
        peak.run(true, || peak_round(isa, dtype == "bf16", 20_000));
        best.run(options.threads == 1, &mut *run);
        if options.smoke || Instant::now() >= end {
            break;
        }
    }
    let threads = options.threads;
    let peak_rate = peak.rate * threads as f64;
    let (gflops, peak_gflops, fraction) = (best.rate / 1e9, peak_rate / 1e9, best.rate / peak_rate);
    if options.json {
        println!(
            "{{\"isa\":\"{isa}\",\"mode\":\"exact\",\"dtype\":\"{dtype}\",\"m\":{m},\"n\":{n},\"k\":{k},\"layout\":\"{layout}\",\
             \"threads\":{threads},\"gflops\":{gflops:.1},\"peak_gflops\":{peak_gflops:.1},\"fraction\":{fraction:.3}}}"
        );
    } else {
        println!(
            "{isa:8} {dtype:5} {layout:26} {m:5} x {n:4} x {k:5} threads {threads} {gflops:8.1} of {peak_gflops:8.1} Gflop/s: {:5.1} %",
            100.0 * fraction
        );
    }
}

/// What VDPBF16PS does on this processor beside multiply-adds on widened operands.
#[cfg(target_arch = "x86_64")]
fn probe(options: &Options) {
    if !Isa::available().contains(&Isa::Avx512) || !std::arch::is_x86_feature_detected!("avx512bf16") {
        return;
    }
    let (mut pairs, mut peak) = (Best { rate: 0.0 }, Best { rate: 0.0 });
    for _ in 0..if options.smoke { 1 } else { 200 } {
        peak.run(true, || peak::zmm(20_000));
        pairs.run(true, || peak::dot_pairs(20_000));
    }
    let (gflops, peak_gflops, fraction) = (pairs.rate / 1e9, peak.rate / 1e9, pairs.rate / peak.rate);
    if options.json {
        println!(
            "{{\"isa\":\"avx512\",\"instruction\":\"vdpbf16ps\",\"threads\":1,\"gflops\":{gflops:.1},\"peak_gflops\":{peak_gflops:.1},\
             \"fraction\":{fraction:.3}}}"
        );
    } else {
        println!(
            "avx512   VDPBF16PS alone {gflops:8.1} of {peak_gflops:8.1} Gflop/s: {:5.1} %",
            100.0 * fraction
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn probe(_: &Options) {}

fn main() {
    let options = options();
    if options.only.is_none() && options.shape.is_none() && options.isa.is_none_or(|isa| isa == Isa::Avx512) {
        probe(&options);
    }
    let forward = [
        (384, 768, 768),
        (3072, 768, 768),
        (384, 3072, 768),
        (3072, 3072, 768),
        (384, 768, 3072),
        (3072, 768, 3072),
    ];
    let small = [
        (170, 170, 32),
        (170, 32, 170),
        (384, 384, 64),
        (16, 768, 768),
        (1, 768, 768),
    ];
    for isa in Isa::available() {
        if options.isa.is_some_and(|only| only != isa) {
            continue;
        }
        let scale = if isa == Isa::Portable { 8 } else { 1 };
        for dtype in ["bf16", "f32"] {
            if options.dtype.as_deref().is_some_and(|only| only != dtype) {
                continue;
            }
            let mut cases: Vec<(Layout, (usize, usize, usize))> = Vec::new();
            for shape in forward {
                cases.push((Layout::Packed, shape));
            }
            for shape in small {
                cases.push((Layout::Packed, shape));
            }
            if dtype == "bf16" {
                for shape in [(3072, 768, 768), (3072, 3072, 768), (3072, 768, 3072)] {
                    cases.extend([
                        (Layout::PackedBf16, shape),
                        (Layout::PackedGelu, shape),
                        (Layout::Nn, shape),
                    ]);
                }
            }
            for shape in [(768, 768, 3072), (768, 3072, 3072), (3072, 768, 3072)] {
                cases.push((Layout::Tn, shape));
            }
            if let Some(shape) = options.shape {
                cases = [
                    Layout::Packed,
                    Layout::PackedBf16,
                    Layout::PackedGelu,
                    Layout::Nn,
                    Layout::Tn,
                ]
                .map(|layout| (layout, shape))
                .into();
            }
            if isa == Isa::Portable || options.smoke {
                cases.truncate(1);
            }
            for (layout, (m, n, k)) in cases {
                let label = format!("{layout:?} {m}x{n}x{k}").to_lowercase();
                if options.only.as_deref().is_some_and(|only| !label.contains(only)) {
                    continue;
                }
                case(&options, isa, dtype, layout, (m / scale, n / scale, k / scale));
            }
            if isa == Isa::Portable || options.smoke || options.shape.is_some() {
                continue;
            }
            for shape in [(384, 64), (384, 32), (170, 32)] {
                for what in [
                    "attention forward",
                    "attention backward",
                    "attention forward dropout",
                    "attention backward dropout",
                ] {
                    if dtype == "bf16" {
                        attention_case(&options, isa, what, shape, bf16::from_f32);
                    } else {
                        attention_case(&options, isa, what, shape, |x| x);
                    }
                }
            }
        }
    }
}
