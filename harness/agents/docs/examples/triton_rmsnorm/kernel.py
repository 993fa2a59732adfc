"""RMSNorm of rows of bf16 with the weight fused in: one program a row, sums in float32."""

import triton
import triton.language as tl


@triton.jit
def rmsnorm(x, weight, y, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # 64 bits: row * HIDDEN may pass 2^31
    columns = tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    value = tl.load(x + row * HIDDEN + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(value * value, 0) / HIDDEN + 1e-5)
    tl.store(y + row * HIDDEN + columns, (value * factor * scale).to(y.dtype.element_ty), mask=inside)


def run(hidden_states, weight, output, WARPS=8):
    rows, hidden = hidden_states.shape
    rmsnorm[(rows,)](hidden_states, weight, output, hidden, triton.next_power_of_2(hidden), num_warps=WARPS)
