"""Makes tests/fixtures/int8_torch.bin: 8-bit products as PyTorch (fbgemm and oneDNN) computes them.

usage: python amx/reference/int8_fixtures.py      (torch 2.8; run from the root of the workspace)

Little-endian arrays, one after the other, in the order of `fields` below; `amx/tests/int8_torch.rs` reads them in that order.
M, N, K = 37, 29, 131 throughout; a is (M, K), w is (N, K).
"""
import os, sys
import numpy as np
import torch

torch.manual_seed(7)
torch.backends.quantized.engine = "fbgemm"
M, N, K = 37, 29, 131
f32 = np.float32

# s8 x s8 -> s32.
a_i8 = torch.randint(-128, 128, (M, K), dtype=torch.int8)
w = torch.randint(-128, 128, (N, K), dtype=torch.int8)
int_mm = torch._int_mm(a_i8, w.t())

# u8 x s8, per-channel weights, bias, requantised to u8 by fbgemm.
x_scale, x_zero, y_scale, y_zero = f32(0.0173), 119, f32(0.23), 131
w_scale = (0.002 + 0.01 * torch.rand(N)).float()
bias = torch.randn(N) * 8
a_u8 = torch.randint(0, 256, (M, K), dtype=torch.uint8)
x_q = torch._make_per_tensor_quantized_tensor(a_u8, float(x_scale), x_zero)
w_q = torch._make_per_channel_quantized_tensor(w, w_scale.double(), torch.zeros(N, dtype=torch.long), 0)
packed = torch.ops.quantized.linear_prepack(w_q, bias)
y = torch.ops.quantized.linear(x_q, packed, float(y_scale), y_zero).int_repr()
# What fbgemm makes of scales and bias.
multiplier = (x_scale * w_scale.numpy().astype(f32)) / y_scale
bias_i32 = np.rint(bias.numpy() / (x_scale * w_scale.numpy().astype(f32))).astype(np.int32)

# The same product to f32 by oneDNN.
prepacked = torch.ops.onednn.qlinear_prepack(w, [M, K])
z = torch.ops.onednn.qlinear_pointwise(
    a_u8, float(x_scale), x_zero, prepacked, w_scale, torch.zeros(N, dtype=torch.int32), bias, 1.0, 0, torch.float32, "none", [], "")

fields = [
    a_i8.numpy(), a_u8.numpy(), w.numpy(), int_mm.numpy().astype(np.int32),
    np.array([x_zero, y_zero], np.int32), np.array([x_scale], f32), w_scale.numpy().astype(f32), bias.numpy().astype(f32),
    multiplier.astype(f32), bias_i32, y.numpy(), z.numpy().astype(f32),
]
exact = (a_u8.numpy().astype(np.int64) - x_zero) @ w.numpy().astype(np.int64).T
mine = np.clip(np.rint((exact + bias_i32).astype(f32) * multiplier) + y_zero, 0, 255).astype(np.uint8)
print("int_mm against int64:", (int_mm.numpy() == a_i8.numpy().astype(np.int64) @ w.numpy().astype(np.int64).T).all())
print("fbgemm u8 differing from the formula:", int((mine != y.numpy()).sum()), "of", y.numel(), "saturated:", int(((y == 0) | (y == 255)).sum()))
want = exact * (np.float64(x_scale) * w_scale.numpy().astype(np.float64)) + bias.numpy().astype(np.float64)
print("oneDNN f32, largest error against f64:", np.abs(z.numpy() - want).max(), "largest value:", np.abs(want).max())
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "fixtures", "int8_torch.bin")
os.makedirs(os.path.dirname(path), exist_ok=True)
with open(path, "wb") as f:
    for field in fields:
        f.write(np.ascontiguousarray(field).tobytes())
print(os.path.getsize(path), "bytes, torch", torch.__version__, file=sys.stderr)
