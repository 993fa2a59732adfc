"""Attacks that run code or read files during compilation."""

from __future__ import annotations

import pytest

from harness.model.verdict import Verdict
from tests.judge.attacks.cases import CPP, Attack
from tests.judge.attacks.conftest import Courts
from tests.judge.attacks.trial import catch, defuse, fool, sampled

pytestmark = pytest.mark.xdist_group("judge")

_RUN = """
extern "C" void run(const float* x, const float* weight, float* out, int64_t rows) { compute(x, weight, out, rows); }
"""
READS = (
    Attack(
        "a_file_assembled_into_it",
        'asm(".section .rodata\\nstolen: .incbin \\"@SECRET@\\"\\n.text");' + _RUN,
        (Verdict.COMPILE_ERROR,),
        language="cpp",
        prelude=CPP,
        fools="wrong",
        reason_part="file not found",
    ),
    Attack(
        "a_file_included",
        'const char* stolen =\n#include "@SECRET@"\n;' + _RUN,
        (Verdict.COMPILE_ERROR,),
        language="cpp",
        prelude=CPP,
        fools="wrong",
        reason_part="No such file",
    ),
)
RUNS = (
    Attack(
        "a_command_run_by_the_compiler",
        _RUN,
        (Verdict.COMPILE_ERROR,),
        language="cpp",
        prelude=CPP,
        flags=("-wrapper", '/bin/sh,-c,echo planted > @PLANT@; exec "$0" "$@"'),
        fools="plant",
    ),
    Attack(
        "a_file_written_by_the_compiler",
        _RUN,
        (Verdict.COMPILE_ERROR,),
        language="cpp",
        prelude=CPP,
        flags=("-MD", "-MF", "@PLANT@"),
        fools="plant",
    ),
)
ENDLESS = Attack(
    "a_compiler_that_never_ends",
    """
    constexpr long spin() {
        long sum = 0;
        for (long i = 0; i < 2000000000; i++)
            for (long j = 0; j < 2000000000; j++) sum ^= i + j;
        return sum;
    }
    constexpr long spun = spin();
    """
    + _RUN,
    (Verdict.COMPILE_ERROR,),
    language="cpp",
    prelude=CPP,
    flags=("-fconstexpr-ops-limit=9223372036854775807", "-fconstexpr-loop-limit=2147483647"),
    fools="hang",
    reason_part="the compiler was stopped after",
)


@pytest.mark.parametrize("attack", READS, ids=lambda attack: attack.name)
def test_reads_nothing(attack: Attack, courts: Courts) -> None:
    catch(attack, courts)


@pytest.mark.parametrize("attack", sampled(RUNS, frozenset({"a_file_written_by_the_compiler"})))
def test_changes_nothing(attack: Attack, courts: Courts) -> None:
    defuse(attack, courts)


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("attack", [*READS, *RUNS, ENDLESS], ids=lambda attack: attack.name)
def test_fools_the_naive_judge(attack: Attack, courts: Courts) -> None:
    fool(attack, courts)


@pytest.mark.slow
def test_a_compiler_is_stopped(courts: Courts) -> None:
    catch(ENDLESS, courts)
