"""The runner: load one solution, then serve calls on shared memory until the judge closes its socket.

It is started before a solution arrives and waits inside its sandbox. Torch is imported unless HARNESS_RUNNER_TORCH is 0
(a compiled solution does not need it). The judge trusts nothing that the runner reports: it times the calls with its
own clock and checks the outputs. Run as
`python -I -B -c "... from runner.main import main; main(fd)"` with `runner`'s parent on sys.path.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import signal
import socket
import sys
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any

from . import wire
from .messages import DeviceMemory, Load, MeasureColdAndWarm, Prepare, RecordCall, ReleaseMemory, Warm, decode
from .shared_memory import HostWorkload, SharedMemory

if TYPE_CHECKING:
    from .cuda_line import CudaLine  # not at run time: it needs a GPU

_LOADERS = {
    "cpp": "cpp", "cuda": "sealed", "cuda_cpp": "extension", "reference": "reference", "empty": "calibration_cpp",
    "known": "calibration_cuda",
}  # fmt: skip
"""Language of a request to load -> module of this package whose `load` serves it; `pytorch` serves other languages,
which are Python functions."""
_MAX_DESCRIPTORS = 64
"""File descriptors of one message: the placements of a workload on a device."""
_NO_DEVICE_MEMORY = re.compile(r"CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|CUDA error: out of memory")
"""Errors of the driver and of libraries for a failed allocation, in exceptions of any type."""
_times_passed: dict[str, int] = {}


def failpoint(name: str) -> None:
    """Kill this process by SIGKILL at a failpoint, for tests.

    HARNESS_FAILPOINT is `name`, or `name:count` for the call of this count.
    """
    target, _, count = os.environ.get("HARNESS_FAILPOINT", "").partition(":")
    if target != name:
        return
    _times_passed[name] = _times_passed.get(name, 0) + 1
    if _times_passed[name] == int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)


def _exempt_from_collection() -> None:
    """Collect garbage, and exempt all present objects from later collections, which would disturb timed calls.

    The first collection after the import of torch takes 0.1 s, later ones only as long as new objects need.
    """
    gc.collect()
    gc.freeze()


class _Server:
    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.solution: Any = None
        self.memory: SharedMemory | None = None
        self.call: Any = None
        self.device: CudaLine | None = None

    def load(self, message: Load, descriptors: list[int]) -> None:
        failpoint("runner.before_load")
        if isinstance(message.memory, DeviceMemory):
            self.device = importlib.import_module(".cuda_line", __package__).CudaLine(message, descriptors)
        else:
            self.memory = SharedMemory.attach(descriptors, message.memory)
        loader = importlib.import_module(f".{_LOADERS.get(message.program.language, 'pytorch')}", __package__)
        self.solution = loader.load(message)
        failpoint("runner.loaded")
        overhead_ns = self.device.short_kernel_ns if self.device is not None else 0
        self.line.send(wire.pack_record(wire.Code.LOADED, claimed_ns=overhead_ns))

    def warm(self) -> None:
        importlib.import_module(".cuda_line", __package__).warm()
        _exempt_from_collection()
        self.line.send(wire.pack_record(wire.Code.READY))

    def prepare(self, message: Prepare, descriptors: list[int]) -> None:
        self.call = None
        if self.device is not None:
            self.device.prepare(self.solution, message, descriptors)
        else:
            workload = HostWorkload.of(message, memory=self.memory, output_stride=message.output_stride)
            self.call = self.solution(workload)
        _exempt_from_collection()
        failpoint("runner.ready")
        self.line.send(wire.pack_record(wire.Code.READY))

    def record(self, message: RecordCall, descriptors: list[int]) -> None:
        assert self.device is not None  # noqa: S101 - only calls on a GPU are recorded
        self.device.record(self.solution, message, descriptors)
        self.line.send(wire.pack_record(wire.Code.READY))

    def cold_and_warm(self, message: MeasureColdAndWarm) -> None:
        assert self.device is not None  # noqa: S101 - the judge requests this only for sealed calls on a GPU
        cold_ns, warm_ns = self.device.cold_and_warm(message.placement)
        self.line.send(wire.pack_record(wire.Code.READY, call=cold_ns, claimed_ns=warm_ns))

    def release_memory(self) -> None:
        assert self.device is not None  # noqa: S101 - host memory is the kernel's to share out
        self.device.release_memory()
        self.line.send(wire.pack_record(wire.Code.READY))

    def batch(self, data: bytes) -> None:
        identity, slots = wire.unpack_call(data)
        failpoint("runner.before_call")
        if self.device is not None:
            self.device.serve()
            self.line.send(wire.pack_record(wire.Code.DONE, call=identity))
            return
        call = self.call
        begin = time.perf_counter_ns()
        for slot in slots:
            call(slot)
        claimed = time.perf_counter_ns() - begin
        self.line.send(wire.pack_record(wire.Code.DONE, call=identity, claimed_ns=claimed))
        failpoint("runner.after_done")

    def answer(self, data: bytes, descriptors: list[int]) -> None:
        if data[:1] != b"{":
            self.batch(data)
            return
        match decode(data):
            case Load() as message:
                self.load(message, descriptors)
            case Prepare() as message:
                self.prepare(message, descriptors)
            case RecordCall() as message:
                self.record(message, descriptors)
            case MeasureColdAndWarm() as message:
                self.cold_and_warm(message)
            case Warm():
                self.warm()
            case ReleaseMemory():
                self.release_memory()

    def serve(self) -> None:
        while True:
            data, descriptors, _, _ = socket.recv_fds(self.line, wire.LARGEST, _MAX_DESCRIPTORS)
            if not data:
                return
            try:
                self.answer(data, descriptors)
            except wire.OutputMismatchError as error:
                self.line.send(wire.pack_record(error.code, detail=error.output))
            except BaseException as error:  # noqa: BLE001 - the border of the process: untrusted code may raise anything
                traceback.print_exc()
                sys.stderr.flush()
                code = wire.Code.NO_MEMORY if _is_out_of_device_memory(error) else wire.Code.FAILED
                self.line.send(wire.pack_record(code))


def _is_out_of_device_memory(error: BaseException) -> bool:
    """Return true for a failed allocation of device memory. Only torch's own allocator raises a type for it."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _NO_DEVICE_MEMORY.search(str(error)) is not None


def _import_torch() -> None:
    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    import torch  # noqa: PLC0415 - slow, and therefore done before a solution arrives

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.zeros(8).add_(1)
    for name in ("pytorch", "reference"):
        importlib.import_module(f".{name}", __package__)


def main(descriptor: int) -> None:
    """Serve on an inherited socket until it is closed."""
    failpoint("runner.start")
    if os.environ.get("HARNESS_RUNNER_TORCH") != "0":
        _import_torch()
    for name in ("cpp", "calibration_cpp"):
        importlib.import_module(f".{name}", __package__)
    if os.environ.get("HARNESS_RUNNER_DEVICE") == "cuda":
        importlib.import_module(".cuda_line", __package__).prepare_without_device()
    _exempt_from_collection()
    line = socket.socket(fileno=descriptor)
    line.send(wire.pack_record(wire.Code.HELLO))
    _Server(line).serve()
