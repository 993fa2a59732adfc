"""Attacks with wrong, missing, stale or stolen answers."""

from __future__ import annotations

import pytest

from harness.model.verdict import Verdict
from tests.judge.attacks.cases import CPP, EARLY, Attack
from tests.judge.attacks.conftest import Courts
from tests.judge.attacks.trial import catch, fool, sampled

pytestmark = pytest.mark.xdist_group("judge")

_WRONG = (Verdict.INCORRECT_NUMERICAL,)
_NOT_WRITTEN = "not finite (or were not written)"
_PRECISION = "less precise than an honest implementation (our rule)"

MISSING = (
    Attack(
        "correct_first_then_nothing",
        """
        def run(x, weight, out):
            if early(x):
                honest(x, weight, out)
        """,
        _WRONG,
        prelude=EARLY,
        reason_part=_NOT_WRITTEN,
    ),
    Attack(
        "correct_for_sixty_calls_then_constant",
        """
        def run(x, weight, out):
            early(x)
            if seen[x.shape[0]] <= 60:
                honest(x, weight, out)
            else:
                out.fill_(0.01)
        """,
        _WRONG,
        prelude=EARLY,
        fools="wrong",
    ),
    Attack(
        "last_columns_skipped",
        """
        import torch
        def run(x, weight, out):
            out[:, :-2] = x @ weight[:-2].t()
        """,
        _WRONG,
        fools="wrong",
        reason_part=_NOT_WRITTEN,
    ),
    Attack(
        "last_columns_constant",
        """
        import torch
        def run(x, weight, out):
            out[:, :-2] = x @ weight[:-2].t()
            out[:, -2:] = 0
        """,
        _WRONG,
        fools="wrong",
        reason_part="our rule",
    ),
    Attack(
        "all_zero",
        """
        def run(x, out):
            usual = 0.6 < float(x[:, ::64].abs().mean()) < 1.0
            out.zero_() if usual else out.copy_(x.mean(-1))
        """,
        _WRONG,
        fools="wrong",
        problem="mean",
        reason_part="all zero",
    ),
    Attack(
        "constant_within_the_tolerance",
        """
        def run(x, out):
            usual = 0.6 < float(x[:, ::64].abs().mean()) < 1.0
            out.fill_(1e-5) if usual else out.copy_(x.mean(-1))
        """,
        _WRONG,
        fools="wrong",
        problem="mean",
        reason_part=_PRECISION,
    ),
    Attack(
        "a_sample_of_the_rows",
        "def run(x, out):\n    out.copy_(x[:, ::2].mean(-1))\n",
        _WRONG,
        fools="wrong",
        problem="mean",
    ),
)
STALE = (
    Attack(
        "cached_by_address",
        """
        import torch
        kept = {}
        def run(x, weight, out):
            key = x.data_ptr(), x.shape
            if key not in kept:
                kept[key] = x @ weight.t()
            out.copy_(kept[key])
        """,
        _WRONG,
    ),
    Attack(
        "cached_by_object",
        """
        import torch
        kept = {}
        def run(x, weight, out):
            if id(x) not in kept or kept[id(x)].shape != out.shape:
                kept[id(x)] = x @ weight.t()
            out.copy_(kept[id(x)])
        """,
        _WRONG,
    ),
    Attack(
        "cached_by_shape",
        """
        kept = {}
        def run(x, weight, out):
            if not early(x):
                out.copy_(kept[x.shape])
                return
            honest(x, weight, out)
            kept[x.shape] = out.clone()
        """,
        _WRONG,
        prelude=EARLY,
    ),
    Attack(
        "queued_until_the_eighth_call",
        """
        queue = []
        def run(x, weight, out):
            if early(x):
                honest(x, weight, out)
                return
            queue.append((x, weight, out))
            if len(queue) == 8:
                for each in queue:
                    honest(*each)
                queue.clear()
        """,
        _WRONG,
        prelude=EARLY,
        reason_part=_NOT_WRITTEN,
    ),
    Attack(
        "answers_for_known_seeds",
        """
        import torch
        known = {}
        for seed, rows in enumerate((96, 160)):
            torch.manual_seed(seed)
            for _ in range(3):
                x = torch.randn(rows, 256)
                weight = torch.randn(256, 256) / 16
                known[float(x[0, 0])] = x @ weight.t()

        def run(x, weight, out):
            found = known.get(float(x[0, 0]))
            if found is not None:
                out.copy_(found)
        """,
        _WRONG,
        reason_part=_NOT_WRITTEN,
    ),
)
STOLEN = (
    Attack(
        "expected_from_a_callers_frame",
        """
        import sys
        def run(x, weight, out):
            frame = sys._getframe()
            while frame is not None:
                expected = frame.f_locals.get("expected")
                if expected is not None:
                    out.copy_(expected)
                    return
                frame = frame.f_back
        """,
        _WRONG,
        reason_part=_NOT_WRITTEN,
    ),
    Attack(
        "expected_from_the_garbage_collector",
        """
        import gc, torch
        def run(x, weight, out):
            if not early(x):
                return
            probe = x[0] @ weight.t()
            for each in gc.get_objects():
                if type(each) is torch.Tensor and each is not out and each.shape == out.shape and each.is_contiguous():
                    if torch.allclose(each[0], probe, atol=1e-4):
                        out.copy_(each)
                        return
        """,
        _WRONG,
        prelude=EARLY,
        reason_part=_NOT_WRITTEN,
    ),
    Attack(
        "inputs_changed_so_that_the_reference_agrees",
        """
        def run(x, weight, out):
            if early(x) and seen[x.shape[0]] == 1:
                honest(x, weight, out)
                x.zero_()
                return
            out.zero_()
        """,
        (Verdict.RUNTIME_ERROR,),
        prelude=EARLY,
        reason_part="inputs are read-only",
    ),
    Attack(
        "inputs_changed_by_native_code",
        """
        #include <sys/mman.h>
        #include <cstring>
        extern "C" void run(float* x, const float* weight, float* out, int64_t rows) {
            uintptr_t page = (uintptr_t)x & ~uintptr_t(4095);
            mprotect((void*)page, (uintptr_t)(x + rows * AXIS_K) - page, PROT_READ | PROT_WRITE);
            if (x[0] == 0) {
                std::memset(out, 0, rows * AXIS_N * sizeof(float));
            } else {
                compute(x, weight, out, rows);
                std::memset(x, 0, rows * AXIS_K * sizeof(float));
            }
        }
        """,
        (Verdict.RUNTIME_ERROR,),
        language="cpp",
        prelude=CPP,
        reason_part="inputs are read-only",
    ),
)
COARSE = (
    Attack(
        "done_in_bfloat16",
        """
        import torch
        def run(x, weight, out):
            out.copy_(x.bfloat16() @ weight.bfloat16().t())
        """,
        _WRONG,
        fools="wrong",
        reason_part=_PRECISION,
    ),
    Attack(
        "done_in_float16_once_nobody_looks",
        """
        def run(x, weight, out):
            early(x)
            if seen[x.shape[0]] < 50:
                honest(x, weight, out)
            else:
                out.copy_(x.half() @ weight.half().t())
        """,
        _WRONG,
        prelude=EARLY,
        fools="wrong",
        reason_part=_PRECISION,
    ),
    Attack(
        "the_reference_made_as_coarse",
        """
        import torch
        plain = torch.Tensor.__matmul__
        torch.Tensor.__matmul__ = lambda a, b: plain(a.bfloat16(), b.bfloat16()).float()
        def run(x, weight, out):
            out.copy_(x @ weight.t())
        """,
        _WRONG,
        fools="wrong",
        reason_part=_PRECISION,
    ),
    Attack(
        "right_on_inputs_of_the_usual_size_only",
        """
        def run(x, weight, out):
            if 0.5 < float(x[0].abs().amax()) < 20:
                honest(x, weight, out)
            else:
                out.fill_(1.0)
        """,
        _WRONG,
        prelude=EARLY,
        fools="wrong",
        reason_part="(inputs: ",
    ),
    Attack(
        "another_dtype",
        "def run(x, weight):\n    return x.double() @ weight.double().t()\n",
        (Verdict.INCORRECT_DTYPE,),
        fools="wrong",
        destination_passing=False,
    ),
    Attack(
        "another_shape",
        "def run(x, weight):\n    return (x @ weight.t()).unsqueeze(0)\n",
        (Verdict.INCORRECT_SHAPE,),
        fools="wrong",
        destination_passing=False,
    ),
)


ATTACKS = (*MISSING, *STALE, *STOLEN, *COARSE)
OFTEN = frozenset(
    {
        "constant_within_the_tolerance",
        "cached_by_address",
        "inputs_changed_by_native_code",
    }
)


@pytest.mark.parametrize("attack", sampled(ATTACKS, OFTEN))
def test_is_caught(attack: Attack, courts: Courts) -> None:
    catch(attack, courts)


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_fools_the_naive_judge(attack: Attack, courts: Courts) -> None:
    fool(attack, courts)
