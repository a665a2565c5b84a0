//! Each error, provoked once. Nothing panics and nothing is written.

use azulejo_amx::{
    DGelu, Epilogue, Error, Executor, Gelu, Gemm, Isa, MatMut, MatRef, Out, Packed, PackedRef, RowDropout, Scratch,
    Serial,
};
use half::bf16;

#[test]
fn views_check_their_extent() {
    let data = [0.0f32; 12];
    assert_eq!(
        MatRef::row_major(&data, 3, 5).err(),
        Some(Error::Extent {
            needed: 15,
            available: 12
        })
    );
    assert!(MatRef::strided(&data, 3, 4, 4, 1).is_ok());
    assert!(MatRef::strided(&data, 3, 4, 5, 1).is_err());
    let huge = MatRef::strided(&data, usize::MAX, 2, usize::MAX, 1).err();
    assert_eq!(
        huge,
        Some(Error::Overflow {
            rows: usize::MAX,
            cols: 2
        })
    );
    // An empty view needs no element, whatever its strides.
    assert!(MatRef::<f32>::strided(&[], 0, usize::MAX, usize::MAX, usize::MAX).is_ok());
    let mut data = data;
    assert_eq!(
        MatMut::strided(&mut data, 3, 4, 3).err(),
        Some(Error::RowStride { cols: 4, row_stride: 3 })
    );
    assert!(MatRef::row_major(&data, 3, 4).unwrap().sub(1..4, 0..1).is_err());
}

#[test]
fn packed_storage_has_one_length() {
    assert_eq!(Packed::len(33, 17), 2 * 2 * 512);
    let short = [bf16::ZERO; 511];
    assert_eq!(
        PackedRef::new(&short, 32, 16).err(),
        Some(Error::Extent {
            needed: 512,
            available: 511
        })
    );
    let matrix = MatRef::row_major(&short, 7, 73).unwrap();
    let refused = Packed::new(8, 73).pack_bf16(matrix);
    assert_eq!(
        refused,
        Err(Error::Shape {
            what: "operand to pack",
            expected: (8, 73),
            got: (7, 73)
        })
    );
}

#[test]
fn operands_must_fit_together() {
    let gemm = Gemm::new().unwrap();
    let mut scratch = Scratch::new();
    let a = vec![bf16::ONE; 6];
    let a = MatRef::row_major(&a, 2, 3).unwrap();
    let b = Packed::new(3, 4);
    let mut c = vec![1.0f32; 8];
    let mut run = |out: Out<'_>, b: &Packed, epilogue: Epilogue<'_>| {
        gemm.bf16(&Serial, out, a, b.as_ref(), epilogue, &mut scratch).err()
    };
    let depth = run(
        Out::f32(MatMut::row_major(&mut c, 2, 4).unwrap()),
        &Packed::new(5, 4),
        Epilogue::default(),
    );
    assert_eq!(
        depth,
        Some(Error::Shape {
            what: "operand b",
            expected: (3, 4),
            got: (5, 4)
        })
    );
    assert_eq!(run(Out::default(), &b, Epilogue::default()), Some(Error::NoOutput));
    let shape = run(
        Out::f32(MatMut::row_major(&mut c, 4, 2).unwrap()),
        &b,
        Epilogue::default(),
    );
    assert_eq!(
        shape,
        Some(Error::Shape {
            what: "f32 output",
            expected: (2, 4),
            got: (4, 2)
        })
    );
    let mut half = vec![bf16::ONE; 8];
    let accumulate = Out {
        accumulate: true,
        ..Out::bf16(MatMut::row_major(&mut half, 2, 4).unwrap())
    };
    assert!(matches!(
        run(accumulate, &b, Epilogue::default()),
        Some(Error::Conflict { .. })
    ));
    fn out(c: &mut [f32]) -> Out<'_> {
        Out::f32(MatMut::row_major(c, 2, 4).unwrap())
    }
    let bias = Epilogue {
        bias: Some(&[0.0; 3]),
        ..Epilogue::default()
    };
    assert_eq!(
        run(out(&mut c), &b, bias),
        Some(Error::Shape {
            what: "bias",
            expected: (1, 4),
            got: (1, 3)
        })
    );
    let pre = [0.0f32; 8];
    let pre = MatRef::row_major(&pre, 2, 4).unwrap();
    let both = Epilogue {
        gelu: Some(Gelu::default()),
        d_gelu: Some(DGelu::F32(pre)),
        ..Epilogue::default()
    };
    assert!(matches!(run(out(&mut c), &b, both), Some(Error::Conflict { .. })));
    let residual = Epilogue {
        residual: Some(pre.t()),
        ..Epilogue::default()
    };
    assert!(matches!(
        run(out(&mut c), &b, residual),
        Some(Error::Shape { what: "residual", .. })
    ));
    let dropout = azulejo_amx::rng::Dropout::new(0.5, 0, 0, 0, 0).unwrap();
    let rows = Epilogue {
        dropout: Some(RowDropout { dropout, rows: &[] }),
        ..Epilogue::default()
    };
    assert!(matches!(run(out(&mut c), &b, rows), Some(Error::Shape { .. })));
    assert!(c.iter().all(|&x| x == 1.0), "a refused call writes nothing");
}

/// Executors that run the task too often, at once, or not at all.
enum Odd {
    Never,
    Often,
}

impl Executor for Odd {
    fn threads(&self) -> usize {
        3
    }

    fn run(&self, task: &(dyn Fn(usize) + Sync)) {
        if let Self::Often = self {
            std::thread::scope(|scope| {
                for _ in 0..9 {
                    scope.spawn(|| task(0));
                }
            });
        }
    }
}

#[test]
fn an_executor_cannot_break_a_product() {
    let gemm = Gemm::new().unwrap();
    let mut scratch = Scratch::new();
    let (m, n, k) = (300, 40, 33);
    let a = vec![bf16::ONE; m * k];
    let a = MatRef::row_major(&a, m, k).unwrap();
    let b = Packed::from_bf16(MatRef::row_major(&vec![bf16::ONE; k * n], k, n).unwrap());
    let mut c = vec![0.0f32; m * n];
    let out = Out::f32(MatMut::row_major(&mut c, m, n).unwrap());
    let never = gemm.bf16(&Odd::Never, out, a, b.as_ref(), Epilogue::default(), &mut scratch);
    assert!(matches!(never, Err(Error::Executor { done: 0, .. })), "{never:?}");
    let out = Out::f32(MatMut::row_major(&mut c, m, n).unwrap());
    gemm.bf16(&Odd::Often, out, a, b.as_ref(), Epilogue::default(), &mut scratch)
        .unwrap();
    assert!(c.iter().all(|&x| x == 33.0));
}

#[test]
fn names_of_instruction_sets() {
    for isa in Isa::ALL {
        assert_eq!(isa.name().parse::<Isa>(), Ok(isa));
        if isa.check().is_err() {
            assert!(matches!(Gemm::with_isa(isa), Err(Error::IsaUnavailable { .. })));
        }
    }
    let unknown = "sse9".parse::<Isa>();
    assert_eq!(unknown, Err(Error::UnknownIsa { name: "sse9".into() }));
    assert!(azulejo_amx::report().contains("portable: available"));
}
