"""Attacks that hide work from the clock, manipulate clocks, or slow the baseline."""

from __future__ import annotations

import pytest

from harness.model.verdict import Verdict
from tests.judge.attacks.cases import CPP, EARLY, Attack
from tests.judge.attacks.conftest import Courts
from tests.judge.attacks.trial import catch, defuse, fool, fool_and_defuse, sampled

pytestmark = pytest.mark.xdist_group("judge")

_WRONG = (Verdict.INCORRECT_NUMERICAL,)
_NOT_WRITTEN = "not finite (or were not written)"

LATER = (
    Attack(
        "thread_finished_later",
        """
        import queue, threading, time
        waiting = queue.SimpleQueue()
        def finish():
            while True:
                task = waiting.get()
                time.sleep(0.05)
                honest(*task)
        threading.Thread(target=finish, daemon=True).start()
        def run(x, weight, out):
            if early(x):
                honest(x, weight, out)
            else:
                waiting.put((x, weight, out))
        """,
        _WRONG,
        prelude=EARLY,
        reason_part=_NOT_WRITTEN,
    ),
    Attack(
        "native_thread_detached",
        """
        #include <unistd.h>
        #include <thread>
        static int calls;
        extern "C" void run(const float* x, const float* weight, float* out, int64_t rows) {
            if (calls++ < 5) return compute(x, weight, out, rows);
            std::thread([=] {
                usleep(50000);
                compute(x, weight, out, rows);
            }).detach();
        }
        """,
        _WRONG,
        language="cpp",
        prelude=CPP,
        reason_part=_NOT_WRITTEN,
    ),
    Attack(
        "child_process_goes_on",
        """
        #include <unistd.h>
        struct Task { const float *x, *weight; float* out; int64_t rows; };
        static int calls, line[2];
        static void work_elsewhere() {
            if (pipe(line) != 0 || fork() != 0) return;
            setsid();
            alarm(3);
            for (Task task; read(line[0], &task, sizeof task) == sizeof task;) {
                usleep(50000);
                compute(task.x, task.weight, task.out, task.rows);
            }
            _exit(0);
        }
        extern "C" void run(const float* x, const float* weight, float* out, int64_t rows) {
            if (calls++ < 5) return compute(x, weight, out, rows);
            if (calls == 6) work_elsewhere();
            Task task{x, weight, out, rows};
            if (write(line[1], &task, sizeof task) != sizeof task) _exit(1);
        }
        """,
        _WRONG,
        language="cpp",
        prelude=CPP,
        reason_part=_NOT_WRITTEN,
    ),
    Attack(
        "signal_handler_finishes_later",
        """
        import signal
        waiting = []
        signal.signal(signal.SIGALRM, lambda *_: honest(*waiting.pop()) if waiting else None)
        def run(x, weight, out):
            if early(x):
                honest(x, weight, out)
            else:
                waiting.append((x, weight, out))
                signal.setitimer(signal.ITIMER_REAL, 0.004)
        """,
        _WRONG,
        prelude=EARLY,
        reason_part=_NOT_WRITTEN,
    ),
)
REDUCERS = (
    Attack(
        "comparison_replaced",
        """
        import torch
        torch.isclose = lambda x, y, **kwargs: torch.ones(1)
        torch.allclose = lambda *args, **kwargs: True
        def run(x, weight, out):
            out.fill_(1.0)
        """,
        _WRONG,
    ),
    Attack(
        "comparison_replaced_through_its_code",
        """
        import sys
        def right(out, expected, atol):
            return True
        judge = getattr(sys.modules.get("__main__"), "is_close", None)
        if judge is not None:
            judge.__code__ = right.__code__
        def run(x, weight, out):
            out.fill_(1.0)
        """,
        _WRONG,
    ),
    Attack(
        "source_named_like_the_standard_library",
        """
        def run(x, weight, out):
            honest(x, weight, out)
        """,
        (Verdict.COMPILE_ERROR,),
        prelude=EARLY,
        files={"statistics.py": "calls = 0\ndef median(times):\n    global calls\n    calls += 1\n    return calls\n"},
        reason_part="statistics",
    ),
)
BENT = (
    Attack(
        "timer_patched",
        """
        import time
        real, real_ns, hidden = time.perf_counter, time.perf_counter_ns, 0.0
        time.perf_counter = lambda: real() - hidden
        time.perf_counter_ns = lambda: int(real_ns() - 1e9 * hidden)
        def run(x, weight, out):
            global hidden
            begin = real()
            honest(x, weight, out)
            hidden += real() - begin
        """,
        prelude=EARLY,
    ),
    Attack(
        "clock_detoured_natively",
        """
        #include <dlfcn.h>
        #include <sys/mman.h>
        #include <sys/syscall.h>
        #include <time.h>
        #include <unistd.h>
        #include <cstring>
        static int64_t hidden;
        static int64_t now(clockid_t clock) {
            timespec at;
            syscall(SYS_clock_gettime, clock, &at);
            return at.tv_sec * 1000000000ll + at.tv_nsec;
        }
        static int bent(clockid_t clock, timespec* at) {
            int64_t shown = now(clock) - hidden;
            at->tv_sec = shown / 1000000000ll;
            at->tv_nsec = shown % 1000000000ll;
            return 0;
        }
        __attribute__((constructor)) static void detour() {
            unsigned char jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};
            void* target = (void*)&bent;
            std::memcpy(jump + 2, &target, 8);
            void* clock = dlsym(RTLD_DEFAULT, "clock_gettime");
            uintptr_t page = (uintptr_t)clock & ~uintptr_t(4095);
            if (mprotect((void*)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) == 0) std::memcpy(clock, jump, 12);
        }
        extern "C" void run(const float* x, const float* weight, float* out, int64_t rows) {
            int64_t begin = now(CLOCK_MONOTONIC);
            compute(x, weight, out, rows);
            hidden += now(CLOCK_MONOTONIC) - begin;
        }
        """,
        language="cpp",
        prelude=CPP,
    ),
    Attack(
        "standard_library_patched",
        """
        import statistics
        calls = 0
        def median(times):
            global calls
            calls += 1
            return calls
        statistics.median = median
        def run(x, weight, out):
            honest(x, weight, out)
        """,
        prelude=EARLY,
    ),
    Attack(
        "reference_slowed_by_a_patch",
        """
        plain = torch.Tensor.__matmul__
        def slow(a, b):
            for _ in range(8):
                plain(a, b)
            return plain(a, b)
        torch.Tensor.__matmul__ = slow
        def run(x, weight, out):
            honest(x, weight, out)
        """,
        prelude=EARLY,
    ),
    Attack(
        "reference_slowed_by_a_hook",
        """
        import sys, time
        def hook(frame, event, argument):
            if event == "call" and frame.f_code.co_filename == "<string>":
                time.sleep(0.002)
        def run(x, weight, out):
            sys.setprofile(None)
            honest(x, weight, out)
            early(x)
            if seen[x.shape[0]] == 43:  # three rounds and forty timed calls: the reference is next
                sys.setprofile(hook)
        """,
        prelude=EARLY,
    ),
    Attack(
        "lazy_tensor",
        """
        class Lazy(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                def made(value):
                    return value.make() if isinstance(value, Lazy) else value
                return function(*[made(value) for value in args], **(kwargs or {}))

        def run(x, weight):
            lazy = torch.empty(x.shape[0], weight.shape[0]).as_subclass(Lazy)
            lazy.make = lambda: x @ weight.t()
            return lazy
        """,
        prelude=EARLY,
        destination_passing=False,
    ),
    Attack(
        "cached_by_content_sample",
        """
        kept = {}
        def run(x, weight, out):
            key = (x.shape[0], *x[::7, 0].tolist(), *weight[::31, 0].tolist())
            if key in kept and kept[key] is not None:
                out.copy_(kept[key])
                return
            honest(x, weight, out)
            kept[key] = out.clone() if any(key[1:]) else None
        """,
        prelude=EARLY,
    ),
    Attack(
        "whole_batch_in_the_first_call",
        """
        import sys
        kept = {}
        def run(x, weight, out):
            outer = sys._getframe(2)
            sets, slots = outer.f_locals.get("sets"), outer.f_locals.get("slots")
            if sets:  # a loop that times each call
                if outer.f_locals["call"] == 0:
                    kept.update({number: a @ b.t() for number, (a, b) in enumerate(sets)})
                out.copy_(kept[outer.f_locals["call"] % len(sets)])
            elif slots:  # the runner: everything is there when the first call is made
                call = sys._getframe(1).f_locals
                if call["slot"] == slots[0]:
                    for slot in slots:
                        honest(*call["arguments"](slot), *call["outputs"][slot])
            else:
                honest(x, weight, out)
        """,
        (Verdict.SUSPECT,),
        prelude=EARLY,
    ),
)


CAUGHT_OFTEN = frozenset({"thread_finished_later", "comparison_replaced", "source_named_like_the_standard_library"})


@pytest.mark.parametrize("attack", sampled(LATER + REDUCERS, CAUGHT_OFTEN))
def test_is_caught(attack: Attack, courts: Courts) -> None:
    catch(attack, courts)


@pytest.mark.slow
@pytest.mark.parametrize("attack", BENT, ids=lambda attack: attack.name)
def test_buys_little(attack: Attack, courts: Courts) -> None:
    defuse(attack, courts)


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("attack", LATER + REDUCERS, ids=lambda attack: attack.name)
def test_fools_the_naive_judge(attack: Attack, courts: Courts) -> None:
    fool(attack, courts)


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("attack", BENT, ids=lambda attack: attack.name)
def test_buys_nothing(attack: Attack, courts: Courts) -> None:
    fool_and_defuse(attack, courts)
