"""RMSNorm of rows of bf16 in CuTe DSL: one block a row, a reduction by shuffles and shared memory, sums in float32."""

import cutlass
from cutlass import cute
from cutlass.cute.runtime import from_dlpack

_compiled = {}


@cute.kernel
def rmsnorm(x: cute.Tensor, weight: cute.Tensor, y: cute.Tensor, hidden: cutlass.Constexpr, threads: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    memory = cutlass.utils.SmemAllocator()
    partial = memory.allocate_tensor(cutlass.Float32, cute.make_layout(threads // 32))
    total = cutlass.Float32(0.0)
    for i in cutlass.range_constexpr(hidden // threads):
        value = x[row, thread + i * threads].to(cutlass.Float32)
        total += value * value
    for step in cutlass.range_constexpr(5):
        total += cute.arch.shuffle_sync_bfly(total, offset=16 >> step)
    if thread % 32 == 0:
        partial[thread // 32] = total
    cute.arch.sync_threads()
    total = cutlass.Float32(0.0)
    for warp in cutlass.range_constexpr(threads // 32):
        total += partial[warp]
    factor = cute.math.rsqrt(total / hidden + 1e-5)
    for i in cutlass.range_constexpr(hidden // threads):
        column = thread + i * threads
        value = x[row, column].to(cutlass.Float32) * factor * weight[column].to(cutlass.Float32)
        y[row, column] = value.to(y.element_type)


@cute.jit
def launch(x: cute.Tensor, weight: cute.Tensor, y: cute.Tensor, hidden: cutlass.Constexpr, threads: cutlass.Constexpr):
    rmsnorm(x, weight, y, hidden, threads).launch(grid=[x.shape[0], 1, 1], block=[threads, 1, 1])


def run(hidden_states, weight, output, THREADS=256):
    views = [from_dlpack(each, assumed_align=16) for each in (hidden_states, weight, output)]
    key = tuple(hidden_states.shape)
    if key not in _compiled:  # compiling takes seconds: once per shape, never per call
        _compiled[key] = cute.compile(launch, *views, hidden_states.shape[1], THREADS)
    _compiled[key](*views)
