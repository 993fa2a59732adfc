"""Honest Python solutions: libraries, graphs, streams, caches, memory pools, and threads that the call joins."""

from __future__ import annotations

from tests.gpu.attack_kernels import CUPY
from tests.gpu.cases import EARLY, Attack


def _cupy(name: str, source: str) -> Attack:
    return Attack(name, CUPY + source, problem="norm")


LIBRARIES = (
    Attack("cublas", EARLY + "run = honest\n"),
    Attack("returned", "def run(x, weight):\n    return x @ weight.t()\n", destination_passing=False),
    Attack("returned_transposed", "def run(x, weight):\n    return (weight @ x.t()).t()\n", destination_passing=False),
    Attack(
        "cublas_batched",
        """
import torch
def run(x, weight, out):
    parts = torch.bmm(x.view(-1, 4, 256).transpose(0, 1), weight.view(-1, 4, 256).permute(1, 2, 0))
    torch.sum(parts, 0, out=out)
""",
    ),
    Attack(
        "split_k",
        """
import torch
def run(x, weight, out):
    out.zero_()
    for k in range(0, 1024, 512):
        out.addmm_(x[:, k:k + 512], weight[:, k:k + 512].t())
""",
    ),
    Attack(
        "compiled_by_torch",
        """
import torch
@torch.compile(dynamic=False)
def scaled(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
def run(x):
    return scaled(x)
""",
        problem="norm",
        destination_passing=False,
    ),
)

KEPT = (
    Attack(
        "graph_inside",
        """
import torch
graphs = {}
def run(x, weight, out):
    if x.shape not in graphs:
        a, b = x.clone(), weight.clone()
        torch.mm(a, b.t())
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            c = torch.mm(a, b.t())
        graphs[x.shape] = graph, a, b, c
    graph, a, b, c = graphs[x.shape]
    a.copy_(x), b.copy_(weight)
    graph.replay()
    out.copy_(c)
""",
    ),
    Attack(
        "graphs_kept_by_pointer",
        """
import torch
graphs = {}
def run(x, weight, out):
    key = x.data_ptr(), weight.data_ptr(), out.data_ptr()
    if key not in graphs:
        torch.mm(x, weight.t(), out=out)
        torch.cuda.synchronize()
        graphs[key] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[key]):
            torch.mm(x, weight.t(), out=out)
    graphs[key].replay()
""",
    ),
    Attack(
        "plans_kept_by_pointer",
        """
import torch
plans = {}
def run(x, weight, out):
    if out.data_ptr() not in plans:
        plans[out.data_ptr()] = list(zip(x.chunk(4), out.chunk(4))), weight.t()
    parts, turned = plans[out.data_ptr()]
    for rows, target in parts:
        torch.mm(rows, turned, out=target)
""",
    ),
    Attack(
        "workspace_reused",
        """
import torch
kept = {}
def run(x, weight, out):
    space = kept.setdefault(x.shape, torch.empty(x.shape[0], weight.shape[0], device=x.device))
    torch.mm(x, weight.t(), out=space)
    out.copy_(space)
""",
    ),
    Attack(
        "tuned_in_the_first_call",
        """
import torch
best = {}
def whole(x, weight, out):
    torch.mm(x, weight.t(), out=out)
def halves(x, weight, out):
    half = x.shape[0] // 2
    torch.mm(x[:half], weight.t(), out=out[:half])
    torch.mm(x[half:], weight.t(), out=out[half:])
def timed(way, arguments):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    way(*arguments)
    start.record()
    for _ in range(5):
        way(*arguments)
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)
def run(x, weight, out):
    if x.shape not in best:
        best[x.shape] = min((whole, halves), key=lambda way: timed(way, (x, weight, out)))
    best[x.shape](x, weight, out)
""",
    ),
    Attack(
        "table_copied_from_the_host",
        """
import torch
table = torch.arange(1023, -1, -1).pin_memory()
def run(x, weight, out):
    order = table.to(x.device, non_blocking=True)
    torch.mm(x[:, order], weight[:, order].t(), out=out)
""",
    ),
)

JOINED = (
    Attack(
        "streams_joined",
        """
import torch
side = torch.cuda.Stream()
def run(x, weight, out):
    half = x.shape[0] // 2
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.mm(x[:half], weight.t(), out=out[:half])
    torch.mm(x[half:], weight.t(), out=out[half:])
    torch.cuda.current_stream().wait_stream(side)
""",
    ),
    Attack(
        "threads_joined",
        """
import torch
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(2)
streams = [torch.cuda.Stream() for _ in range(2)]
def part(stream, x, weight, out):
    with torch.cuda.stream(stream):
        torch.mm(x, weight.t(), out=out)
def run(x, weight, out):
    main, halves = torch.cuda.current_stream(), zip(streams, x.chunk(2), out.chunk(2))
    for stream in streams:
        stream.wait_stream(main)
    list(pool.map(lambda half: part(half[0], half[1], weight, half[2]), halves))
    for stream in streams:
        main.wait_stream(stream)
""",
    ),
    _cupy(
        "host_function_joined",
        """
done = []
stream = cupy.cuda.Stream(non_blocking=True)
def run(x, out):
    done.clear()
    launch(x, out, stream)
    stream.launch_host_func(lambda _: done.append(1), None)
    stream.synchronize()
    assert done
""",
    ),
)

POOLS = (
    Attack(
        "pool_of_torch",
        """
import torch
pool = torch.cuda.MemPool()
def run(x, weight, out):
    with torch.cuda.use_mem_pool(pool):
        space = torch.mm(x, weight.t())
    out.copy_(space)
""",
    ),
    _cupy(
        "pool_of_cupy",
        """
pool = cupy.cuda.MemoryPool()
def run(x, out):
    space = pool.malloc(x.nbytes)
    normalise((x.shape[0],), (256,), (u64(x.data_ptr()), u64(space.ptr)), 0, None)
    runtime = cupy.cuda.runtime
    runtime.memcpyAsync(out.data_ptr(), space.ptr, x.nbytes, runtime.memcpyDeviceToDevice, 0)
""",
    ),
    _cupy(
        "stream_ordered_memory",
        """
stream = cupy.cuda.Stream(non_blocking=True)
def run(x, out):
    runtime = cupy.cuda.runtime
    space = runtime.mallocAsync(x.nbytes, stream.ptr)
    normalise((x.shape[0],), (256,), (u64(x.data_ptr()), u64(space)), 0, stream)
    runtime.memcpyAsync(out.data_ptr(), space, x.nbytes, runtime.memcpyDeviceToDevice, stream.ptr)
    runtime.freeAsync(space, stream.ptr)
    stream.synchronize()
""",
    ),
)
