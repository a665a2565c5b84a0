//! 8-bit products against PyTorch's (fbgemm and oneDNN), from a file that `amx/reference/int8_fixtures.py` makes.

use azulejo_amx::int8::{Dequantize, GemmInt8, Int8Kernel, OutInt32, PackedInt8, Per, Requantize, ZeroPoints};
use azulejo_amx::{Epilogue, MatMut, MatRef, Out, Scratch, Serial};

const M: usize = 37;
const N: usize = 29;
const K: usize = 131;

/// Takes arrays off the file in order.
struct File(&'static [u8]);

impl File {
    fn take<T: bytemuck::AnyBitPattern>(&mut self, len: usize) -> Vec<T> {
        let (head, rest) = self.0.split_at(len * size_of::<T>());
        self.0 = rest;
        // The file has no alignment.
        head.chunks_exact(size_of::<T>())
            .map(bytemuck::pod_read_unaligned)
            .collect()
    }
}

#[test]
fn pytorch_agrees() {
    let mut file = File(include_bytes!("fixtures/int8_torch.bin"));
    let a_i8: Vec<i8> = file.take(M * K);
    let a_u8: Vec<u8> = file.take(M * K);
    let w: Vec<i8> = file.take(N * K);
    let int_mm: Vec<i32> = file.take(M * N);
    let zeros: Vec<i32> = file.take(2);
    let x_scale: Vec<f32> = file.take(1);
    let w_scale: Vec<f32> = file.take(N);
    let bias: Vec<f32> = file.take(N);
    let multiplier: Vec<f32> = file.take(N);
    let bias_i32: Vec<i32> = file.take(N);
    let fbgemm: Vec<u8> = file.take(M * N);
    let one_dnn: Vec<f32> = file.take(M * N);
    assert!(file.0.is_empty());

    let packed = PackedInt8::from_i8(MatRef::row_major(&w, N, K).unwrap().t());
    let a_i8 = MatRef::row_major(&a_i8, M, K).unwrap();
    let a_u8 = MatRef::row_major(&a_u8, M, K).unwrap();
    let zero = ZeroPoints {
        a: Per::Tensor(zeros[0]),
        ..ZeroPoints::default()
    };
    let scratch = &mut Scratch::new();
    for kernel in Int8Kernel::available() {
        let gemm = GemmInt8::with_kernel(kernel).unwrap();
        let mut c = vec![0; M * N];
        let out = OutInt32::Set(MatMut::row_major(&mut c, M, N).unwrap());
        gemm.i32(&Serial, out, a_i8, packed.as_ref(), ZeroPoints::default(), scratch)
            .unwrap();
        assert_eq!(c, int_mm, "{kernel}: torch._int_mm");

        let mut q = vec![0; M * N];
        let requantize = Requantize {
            dequantize: Dequantize {
                zero,
                b_scale: Per::Channel(&multiplier),
                bias: Some(&bias_i32),
                ..Dequantize::default()
            },
            zero: zeros[1],
            ..Requantize::default()
        };
        let out = MatMut::row_major(&mut q, M, N).unwrap();
        gemm.requantized(&Serial, out, a_u8, packed.as_ref(), requantize, scratch)
            .unwrap();
        assert_eq!(q, fbgemm, "{kernel}: quantized.linear");

        let mut x = vec![0f32; M * N];
        let dequantize = Dequantize {
            zero,
            a_scale: Per::Tensor(x_scale[0]),
            b_scale: Per::Channel(&w_scale),
            bias: None,
        };
        let epilogue = Epilogue {
            bias: Some(&bias),
            ..Epilogue::default()
        };
        let out = Out::f32(MatMut::row_major(&mut x, M, N).unwrap());
        gemm.f32(&Serial, out, a_u8, packed.as_ref(), dequantize, epilogue, scratch)
            .unwrap();
        for (i, (x, theirs)) in x.iter().zip(&one_dnn).enumerate() {
            // Both sides round a scale, a product and a sum, each by at most 2^-24 of its value: six roundings of at most |product| + |bias|.
            let product = (theirs - bias[i % N]).abs();
            let bound = 6.0 * (product + bias[i % N].abs() + theirs.abs()) * f32::EPSILON / 2.0;
            assert!(
                (x - theirs).abs() <= bound,
                "{kernel}, element {i}: {x}, oneDNN {theirs}"
            );
        }
    }
}
