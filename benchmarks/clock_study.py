"""Compare the judge's clock with CUDA events for kernels that run in another, sandboxed process.

Run on a CUDA machine: `python -m benchmarks.clock_study`. The judge (this process) owns the buffers and the clock. The
runner (a child process, in bubblewrap if it is installed) launches K kernels per batch, each on its own set. Three ways
to reveal the sets at `go` are compared:

  ipc    cudaMalloc in the judge, cudaIpcOpenMemHandle in the runner after go
  vmm    cuMemCreate in the judge, which sends the file descriptor at go; the runner imports and maps the memory
  copy   the runner always has a mapping; the judge copies the sets into it after t0, then sends go

At the end of a batch the judge gathers 4,096 secret positions of the outputs, then reads t1. The runner's CUDA events
are printed beside the judge's clock. `event` is the reference, because this runner is honest.
"""

from __future__ import annotations

import argparse
import array
import ctypes
import json
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SET_BYTES = 4 << 20
"""Input and output of one call, each: a decode-sized activation tensor."""
POSITIONS = 4096
SOURCE = r"""
extern "C" __global__ void work(const float* in, float* out, int n, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = in[i], y = x;
    for (int r = 0; r < rounds; ++r) y = fmaf(y, 0.999f, x * 1e-3f);
    out[i] = y;
}
extern "C" __global__ void gather(const float* out, const long long* at, float* got, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) got[i] = out[at[i]];
}
"""
GO = struct.Struct("<4sIIIQ")  # magic, calls, rounds, elements a call, bytes of one side of the arena
DONE = struct.Struct("<4sIdddd")  # magic, calls, opened_us, events_us a call, launched_us, closed_us


# --- CUDA's virtual memory API, which CuPy does not wrap -----------------------------------------------------------


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


_POSIX_FD = 1
_READ_WRITE = 3


def _driver() -> Any:  # noqa: ANN401 - a ctypes library
    return ctypes.CDLL("libcuda.so.1")


def _ok(code: int) -> None:
    if code:
        raise RuntimeError(f"CUDA driver error {code}")


def vmm_create(size: int) -> tuple[int, int]:
    """Allocate physical memory of `size` bytes, a multiple of 2 MiB; return its handle and a file descriptor."""
    cuda = _driver()
    properties = _Properties(type=1, handle_types=_POSIX_FD, location=_Location(1, 0))
    handle = ctypes.c_ulonglong()
    _ok(cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties), ctypes.c_ulonglong(0)))
    descriptor = ctypes.c_int()
    _ok(
        cuda.cuMemExportToShareableHandle(
            ctypes.byref(descriptor), handle, ctypes.c_int(_POSIX_FD), ctypes.c_ulonglong(0)
        )
    )
    return handle.value, descriptor.value


def vmm_reserve(size: int) -> int:
    """Reserve a range of device addresses without memory and return its start."""
    address = ctypes.c_ulonglong()
    none = ctypes.c_ulonglong(0)
    _ok(_driver().cuMemAddressReserve(ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_size_t(0), none, none))
    return address.value


def vmm_import(descriptor: int) -> int:
    """Return the handle of memory that another process exported."""
    handle = ctypes.c_ulonglong()
    _ok(
        _driver().cuMemImportFromShareableHandle(
            ctypes.byref(handle), ctypes.c_void_p(descriptor), ctypes.c_int(_POSIX_FD)
        )
    )
    return handle.value


def vmm_map(address: int, handle: int, size: int) -> None:
    """Map memory to reserved addresses, readable and writable.

    Args:
        address: start of the reserved addresses.
        handle: handle of the memory.
        size: size in bytes.
    """
    cuda = _driver()
    base, length = ctypes.c_ulonglong(address), ctypes.c_size_t(size)
    _ok(cuda.cuMemMap(base, length, ctypes.c_size_t(0), ctypes.c_ulonglong(handle), ctypes.c_ulonglong(0)))
    access = _Access(_Location(1, 0), _READ_WRITE)
    _ok(cuda.cuMemSetAccess(base, length, ctypes.byref(access), ctypes.c_size_t(1)))


def vmm_unmap(address: int, handle: int, size: int) -> None:
    """Unmap memory and release its handle.

    Args:
        address: start of the mapped addresses.
        handle: handle of the memory.
        size: size in bytes.
    """
    cuda = _driver()
    _ok(cuda.cuMemUnmap(ctypes.c_ulonglong(address), ctypes.c_size_t(size)))
    _ok(cuda.cuMemRelease(ctypes.c_ulonglong(handle)))


# --- the runner ------------------------------------------------------------------------------------------------------


def runner(channel: socket.socket, mode: str) -> None:
    """Serve batches until the channel closes.

    Args:
        channel: socket to the judge.
        mode: `ipc`, `vmm` or `copy`.
    """
    import cupy

    cupy.cuda.Device(0).use()
    cupy.zeros(1)
    kernel = cupy.RawModule(code=SOURCE).get_function("work")
    kernel((1,), (1,), (cupy.zeros(1, "f4"), cupy.zeros(1, "f4"), 0, 0))
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    stream = cupy.cuda.get_current_stream()
    reserved = 0
    address = 0
    channel.sendall(b"up..")
    while True:
        head, descriptors = _receive(channel, GO.size)
        if not head:
            return
        _, calls, rounds, elements, side = GO.unpack(head)
        opened = time.perf_counter()
        handle = 0
        if mode == "ipc":
            address = cupy.cuda.runtime.ipcOpenMemHandle(_exactly(channel, 64))
        elif mode == "vmm":
            reserved = reserved or vmm_reserve(2 * side)
            handle, address = vmm_import(descriptors[0]), reserved
            vmm_map(address, handle, 2 * side)
            os.close(descriptors[0])
        elif not address:
            address = cupy.cuda.runtime.ipcOpenMemHandle(_exactly(channel, 64))
        opened_us = (time.perf_counter() - opened) * 1e6
        launched = time.perf_counter()
        start.record(stream)
        grid, step = ((elements + 255) // 256,), elements * 4
        for call in range(calls):
            arguments = (address + call * step, address + side + call * step, elements, rounds)
            kernel(grid, (256,), tuple(_pointer(v) if i < 2 else v for i, v in enumerate(arguments)))
        stop.record(stream)
        launched_us = (time.perf_counter() - launched) * 1e6
        stop.synchronize()
        events_us = cupy.cuda.get_elapsed_time(start, stop) * 1e3 / max(calls, 1)
        channel.sendall(DONE.pack(b"done", calls, opened_us, events_us, launched_us / max(calls, 1), 0.0))
        if mode == "ipc":
            cupy.cuda.runtime.ipcCloseMemHandle(address)
        elif mode == "vmm":
            vmm_unmap(address, handle, 2 * side)
        channel.sendall(b"shut")


def _pointer(address: int) -> Any:  # noqa: ANN401 - numpy scalar that CuPy passes by value
    import numpy

    return numpy.uint64(address)


def _receive(channel: socket.socket, size: int) -> tuple[bytes, list[int]]:
    descriptors = array.array("i")
    data, ancillary, _, _ = channel.recvmsg(size, socket.CMSG_SPACE(4))
    for _, kind, payload in ancillary:
        if kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[:4])
    return (data + _exactly(channel, size - len(data)) if data else b""), list(descriptors)


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        received = channel.recv(size - len(data))
        if not received:
            raise EOFError
        data += received
    return data


# --- the judge -------------------------------------------------------------------------------------------------------


@dataclass
class Batch:
    """Durations of one batch in microseconds."""

    clock_us: float
    """t1 - t0 by the judge's clock."""
    opened_us: float
    events_us: float
    """Duration per call by the runner's events."""
    launch_us: float
    gather_us: float


class Judge:
    """Buffers, the runner and the clock of one mode."""

    def __init__(self, mode: str, side: int) -> None:
        import cupy

        self.mode, self.side, self.cupy = mode, side, cupy
        self.source = cupy.random.standard_normal(side // 4, dtype="f4")
        if mode == "vmm":
            self.handle, self.descriptor = vmm_create(2 * side)
            self.address = vmm_reserve(2 * side)
            vmm_map(self.address, self.handle, 2 * side)
        else:
            self.address = cupy.cuda.runtime.malloc(2 * side)
            self.ipc = cupy.cuda.runtime.ipcGetMemHandle(self.address)
        module = cupy.RawModule(code=SOURCE)
        self.gather = module.get_function("gather")
        self.gathered_out = cupy.zeros(POSITIONS, "f4")
        self.at = cupy.random.randint(0, side // 4, POSITIONS).astype("i8")
        self.gathered = cupy.cuda.alloc_pinned_memory(POSITIONS * 4)
        judge_end, runner_end = socket.socketpair()
        self.channel = judge_end
        self.process = subprocess.Popen(_command(mode, runner_end.fileno()), pass_fds=(runner_end.fileno(),))
        runner_end.close()
        assert _exactly(judge_end, 4) == b"up.."
        self.first = True

    def batch(self, calls: int, rounds: int, elements: int) -> Batch:
        """Return the durations of a batch of calls in the runner.

        Args:
            calls: number of calls.
            rounds: rounds of the kernel's loop.
            elements: elements of a call.
        """
        cupy = self.cupy
        runtime = cupy.cuda.runtime
        if self.mode != "copy":
            runtime.memcpy(self.address, self.source.data.ptr, self.side, 3)
        runtime.memset(self.address + self.side, 0xA5, self.side)
        runtime.deviceSynchronize()
        head = GO.pack(b"go..", calls, rounds, elements, self.side)
        t0 = time.perf_counter()
        if self.mode == "copy":
            used = max(calls * elements * 4, 4)
            runtime.memcpy(self.address, self.source.data.ptr, min(used, self.side), 3)
            runtime.deviceSynchronize()
        if self.mode == "vmm":
            socket.send_fds(self.channel, [head], [self.descriptor])
        else:
            self.channel.sendall(head)
            if self.mode == "ipc" or self.first:
                self.channel.sendall(self.ipc)
        self.first = False
        done = _exactly(self.channel, DONE.size)
        before = time.perf_counter()
        arguments = (_pointer(self.address + self.side), self.at, self.gathered_out, POSITIONS)
        self.gather(((POSITIONS + 255) // 256,), (256,), arguments)
        runtime.memcpy(self.gathered.ptr, self.gathered_out.data.ptr, POSITIONS * 4, 2)
        t1 = time.perf_counter()
        assert _exactly(self.channel, 4) == b"shut"
        _, _, opened_us, events_us, launch_us, _ = DONE.unpack(done)
        return Batch((t1 - t0) * 1e6, opened_us, events_us, launch_us, (t1 - before) * 1e6)

    def close(self) -> None:
        """End the runner and free the buffers."""
        self.channel.close()
        self.process.wait(timeout=30)
        if self.mode == "vmm":
            vmm_unmap(self.address, self.handle, 2 * self.side)
            os.close(self.descriptor)
        else:
            self.cupy.cuda.runtime.free(self.address)


def _command(mode: str, descriptor: int) -> list[str]:
    inner = [sys.executable, str(Path(__file__).resolve()), "--runner", mode, "--descriptor", str(descriptor)]
    if not shutil.which("bwrap"):
        return inner
    devices = [path for path in Path("/dev").glob("nvidia*") if not path.is_dir()]
    binds = [part for path in devices for part in ("--dev-bind", str(path), str(path))]
    isolation = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--die-with-parent"]
    return [
        "bwrap",
        "--ro-bind",
        "/",
        "/",
        "--dev",
        "/dev",
        *binds,
        "--proc",
        "/proc",
        "--tmpfs",
        "/tmp",
        *isolation,
        *inner,
    ]


def _spread(values: list[float]) -> float:
    """Return the range of the values relative to their median, in per cent."""
    return (max(values) - min(values)) / statistics.median(values) * 100


def rounds_for(judge: Judge, target_us: float, elements: int) -> int:
    """Return the number of rounds of the kernel's loop for a duration, extrapolated from two batches.

    Args:
        judge: judge and runner of one mode.
        target_us: duration of a call in microseconds.
        elements: elements of a call.
    """
    few_rounds, many_rounds = 1000, 9000
    few_us, many_us = (judge.batch(16, r, elements).events_us for r in (few_rounds, many_rounds))
    slope = (many_us - few_us) / (many_rounds - few_rounds)
    return max(int((target_us - (few_us - slope * few_rounds)) / slope), 0)


def study(
    modes: list[str], batch_ms: list[float], repeats: int, report: Callable[[str], None]
) -> list[dict[str, float | str]]:
    """Return the table: one row per mode, kernel length and batch length.

    Args:
        modes: `ipc`, `vmm` or `copy`.
        batch_ms: lengths of batches in milliseconds.
        repeats: batches of each row.
        report: prints one line of progress.
    """
    rows: list[dict[str, float | str]] = []
    elements = SET_BYTES // 4
    side = SET_BYTES * 64
    for mode in modes:
        judge = Judge(mode, side)
        for _ in range(5):
            judge.batch(4, 10, elements)
        empty = [judge.batch(0, 0, elements) for _ in range(50)]
        clocks, reveals, gathers = zip(*((b.clock_us, b.opened_us, b.gather_us) for b in empty), strict=True)
        handshake, reveal, gather = (statistics.median(values) for values in (clocks, reveals, gathers))
        report(
            f"{mode}: handshake {handshake:.0f} us (range {_spread(list(clocks)):.0f} %), "
            f"of it reveal {reveal:.0f}, gather {gather:.0f}"
        )
        # An empty batch lacks the cost of a batch's first launch: a context switch and cold address translations. A
        # batch of one known kernel, whose duration the honest runner's events give, includes it.
        known_batches = [judge.batch(1, 20_000, elements) for _ in range(50)]
        fixed = [b.clock_us - b.events_us for b in known_batches]
        handshake = statistics.median(fixed)
        report(f"{mode}: batch of one known kernel: {handshake:.0f} us beside it (range {_spread(fixed):.0f} %)")
        for target in (2, 3, 5, 10, 20, 50, 100, 500, 1000, 5000):
            small = max(256, min(elements, int(target * 20_000)))
            rounds = rounds_for(judge, target, small)
            for length in batch_ms:
                calls = max(1, min(int(length * 1000 / target), side // (small * 4)))
                batches = [judge.batch(calls, rounds, small) for _ in range(repeats)]
                net = [(b.clock_us - handshake) / calls for b in batches]
                event = statistics.median(b.events_us for b in batches)
                rows.append(
                    {
                        "mode": mode, "target_us": target, "calls": calls, "event_us": round(event, 3),
                        "clock_us": round(statistics.median(b.clock_us for b in batches) / calls, 3),
                        "net_us": round(statistics.median(net), 3), "net_range_pct": round(_spread(net), 1),
                        "bias_pct": round((statistics.median(net) / event - 1) * 100, 1),
                        "launch_us": round(statistics.median(b.launch_us for b in batches), 2),
                        "handshake_us": round(handshake),
                    }
                )  # fmt: skip
        judge.close()
    return rows


def main() -> None:
    """Print the table, and write it as JSON if `--json` is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", default="ipc,vmm,copy")
    parser.add_argument("--batch-ms", default="5,20,50")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runner", help=argparse.SUPPRESS)
    parser.add_argument("--descriptor", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.runner:
        runner(socket.socket(fileno=options.descriptor), options.runner)
        return
    lengths = [float(part) for part in options.batch_ms.split(",")]
    rows = study(options.modes.split(","), lengths, options.repeats, lambda line: print(line, flush=True))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    from tabulate import tabulate

    print(tabulate(rows, headers="keys"))


if __name__ == "__main__":
    main()
