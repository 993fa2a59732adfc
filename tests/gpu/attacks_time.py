"""Attacks on the clock, and attacks that leave out work."""

from __future__ import annotations

from tests.gpu.attack_making import ANY, LATE, WRONG, python
from tests.gpu.cases import Attack

SLOW = "for _ in range(6):\n        honest(x, weight, out)\n"
"""Six times the honest work, which an attack hides from the clock."""

FAST_ONCE = """
hot = [0]
def run(x, weight, out):
    honest(x, weight, out)
    hot[0] = 1
"""
"""The clock is wrong only for the call just before; the baseline's time is correct."""

CLOCKS = (
    python(
        "elapsed_time_patched",
        FAST_ONCE
        + """
real = torch.cuda.Event.elapsed_time
def elapsed_time(self, other):
    return 1e-4 if hot and hot[0] and not hot.__setitem__(0, 0) else real(self, other)
torch.cuda.Event.elapsed_time = elapsed_time
""",
    ),
    python(
        "median_patched",
        """
import statistics
real, asked = statistics.median, []
statistics.median = lambda values: real(values) if asked else asked.append(1) or 1e-4
run = honest
""",
    ),
    python(
        "event_class_replaced_and_no_wait",
        FAST_ONCE
        + """
real, wait = torch.cuda.Event, torch.cuda.synchronize
class Event(real):
    def elapsed_time(self, other):
        if hot[0]:
            hot[0] = 0
            return 1e-4
        wait()
        return real.elapsed_time(self, other)
torch.cuda.Event = Event
torch.cuda.synchronize = lambda *device: None
""",
        LATE,
    ),
    python(
        "events_recorded_late",
        """
real, kept, count = torch.cuda.Event.record, [], [0]
def record(self, *stream):
    count[0] += 1
    if count[0] > 80:
        return real(self, *stream)
    if not kept:
        return kept.append(self)
    real(kept.pop())
    return real(self)
torch.cuda.Event.record = record
run = honest
""",
    ),
    python(
        "module_replaced",
        """
import sys, types
import statistics as real
asked = []
module = types.ModuleType("statistics")
module.median = lambda values: real.median(values) if asked else asked.append(1) or 1e-4
sys.modules["statistics"] = module
run = honest
""",
    ),
    python(
        "native_detour",
        """
import ctypes
at = None
for line in open("/proc/self/maps"):
    if "libcudart" in line:
        library = ctypes.CDLL(line.split()[-1])
        at = ctypes.cast(library.cudaEventElapsedTime, ctypes.c_void_p).value
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(at & ~4095), ctypes.c_size_t(8192), 7)
        real = ctypes.string_at(at, 9)
        break
calls = [0]
def run(x, weight, out):
    honest(x, weight, out)
    calls[0] += 1
    if at:
        ctypes.memmove(at, real if calls[0] >= 43 else b"\\xc7\\x07\\x17\\xb7\\xd1\\x38\\x31\\xc0\\xc3", 9)
""",
    ),
    python(
        "side_stream_not_joined",
        """
side = torch.cuda.Stream()
def run(x, weight, out):
    if early(x):
        return honest(x, weight, out)
    with torch.cuda.stream(side):
        honest(x, weight, out)
""",
    ),
    python(
        "thread_afterwards",
        """
import queue, threading, time
work = queue.SimpleQueue()
def later():
    while True:
        arguments = work.get()
        time.sleep(0.5)
        honest(*arguments)
threading.Thread(target=later, daemon=True).start()
def run(x, weight, out):
    if early(x):
        return honest(x, weight, out)
    work.put((x, weight, out))
""",
        ANY,
    ),
    python(
        "lazy_subclass",
        """
class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        made = [each.work() if isinstance(each, Lazy) and hasattr(each, "work") else each for each in args]
        with torch._C.DisableTorchFunctionSubclass():
            return function(*made, **(kwargs or {}))
def run(x, weight):
    out = torch.empty(x.shape[0], weight.shape[0], device=x.device).as_subclass(Lazy)
    out.work = lambda: torch.mm(x, weight.t())
    return out
""",
        ANY,
        destination_passing=False,
    ),
    python(
        "baseline_slowed_by_what_goes_on",
        """
torch.cuda.synchronize = lambda *device: torch.cuda.current_stream().synchronize()
side = torch.cuda.Stream()
some = torch.randn(4096, 4096, device="cuda")
calls = [0]
def run(x, weight, out):
    honest(x, weight, out)
    calls[0] += 1
    if calls[0] == 43:
        with torch.cuda.stream(side):
            for _ in range(300):
                torch.mm(some, some)
""",
        ANY,
    ),
)

MISSING = (
    python(
        "correct_first_then_nothing",
        "def run(x, weight, out):\n    if early(x):\n        honest(x, weight, out)\n",
        WRONG,
    ),
    python(
        "correct_for_sixty_calls",
        "def run(x, weight, out):\n    honest(x, weight, out) if early(x, 60) else out.fill_(0.01)\n",
        WRONG,
        fools="wrong",
    ),
    python(
        "last_columns_skipped",
        "def run(x, weight, out):\n    out[:, :-2] = x @ weight[:-2].t()\n",
        WRONG,
        fools="wrong",
    ),
    python(
        "last_columns_constant",
        "def run(x, weight, out):\n    out[:, :-4] = x @ weight[:-4].t()\n    out[:, -4:] = 0\n",
        WRONG,
        fools="wrong",
    ),
    python(
        "one_percent_wrong",
        "def run(x, weight, out):\n    honest(x, weight, out)\n    out[::128, :] = 0\n",
        WRONG,
        fools="wrong",
    ),
    python(
        "last_rows_skipped",
        "def run(x, weight, out):\n    torch.mm(x[:-8], weight.t(), out=out[:-8])\n",
        WRONG,
        fools="wrong",
    ),
    Attack("constant_mean", "def run(x, out):\n    out.fill_(1e-6)\n", WRONG, problem="mean_large"),
    python(
        "inputs_overwritten",
        "def run(x, weight, out):\n    honest(x, weight, out)\n    x.mul_(1.0 if early(x) else 2.0)\n",
        ANY,
        fools="wrong",
    ),
)
