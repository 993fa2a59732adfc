"""The complete first prompts of workers, compared with reviewed files (tests/agents/prompts).

To write the files after a change: `python -m tests.agents.test_prompts`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.agents import prompting
from harness.agents.answers import attempts_text
from harness.agents.governor import UsageLimit
from harness.agents.kernel_facts import KernelFacts
from harness.agents.prompting import remaining
from harness.formats.problems import load_problem
from harness.ledger.accounts import Spent
from harness.ledger.candidates import TriedCandidate
from harness.model.config import Budget, Config
from harness.model.device_description import BoundDescription, DeviceDescription
from harness.model.problem import Problem
from harness.model.verdict import Verdict
from tests.agents.conftest import champion_entry

PROMPTS = Path(__file__).parent / "prompts"
PROBLEMS = Path(__file__).parents[2] / "problems"
CPU = (
    "AMD EPYC 9554, one pinned thread; inputs are not in the cache when a call begins",
    "measured with one thread: 42.5 GB/s of memory, 173 GB/s within the L2 cache",
    "arithmetic of one thread, GFLOP/s: float32 118, float64 59, float16 118",
    "caches: L1 32K, L2 1024K, L3 32768K",
    "instruction sets: avx2, fma, f16c, avx512f, avx512bw, avx512_bf16, avx512_vnni",
)
GPU = (
    "NVIDIA H200 SXM: 132 multiprocessors at up to 1,980 MHz",
    "141 GB of memory at 4,800 GB/s (a plain copy reaches 4,300), L2 cache 60 MiB",
    "per multiprocessor: 65,536 registers of 32 bits, 228 KiB shared memory, 2,048 threads, 32 blocks, 4 schedulers",
    "tensor cores, dense TFLOP/s: float8_e4m3fn 1,979, bfloat16 990 (a large library product reaches 800), tf32 495",
    "other arithmetic, TFLOP/s: bfloat16 134, float16 134, float32 67, float64 34",
)
BUDGET = Budget(usd=5.0, evaluations=40)


def cpu_prompt() -> str:
    """Return the prompt of a worker on the CPU, after a few attempts of three workers."""
    problem = load_problem(PROBLEMS / "starter/rmsnorm_h4096", key="starter/rmsnorm_h4096")
    eager = {work.uuid: 40.0 * (number + 1) for number, work in enumerate(problem.workloads)}
    description = DeviceDescription(target="cpu", device=CPU, bounds=_bounds(eager, share=6.0, limit="memory"))
    facts = KernelFacts(
        description,
        baselines={uuid: {"eager": us, "compile": us / 2.0, "baseline": None} for uuid, us in eager.items()},
        champion=champion_entry({uuid: us / 4.0 for uuid, us in eager.items()}),
    )
    tried = (
        TriedCandidate("t1", "w02", Verdict.PASSED, 1.62, message="two passes, AVX-512", commit="5b1c9e0d2a"),
        TriedCandidate("t2", "w01", Verdict.PASSED, 2.01, message="one pass, row kept in L1", commit="9c41aa7e10"),
        TriedCandidate(
            "t3",
            "w03",
            Verdict.INCORRECT_NUMERICAL,
            reason="workload rows=17: output `output`: 93.7500% of elements are within 0.001 + 0.016 * |expected|",
            message="four rows at a time",
            commit="77d0c3f4b8",
        ),
    )
    attempts = attempts_text(
        tried, ("w03: four rows at a time needs a tail for rows that are no multiple of four",), ""
    )
    wanted, programs = "coverage: 1 of 4 evaluations so far", ("python3 with torch", "g++", "objdump", "lscpu")
    return _complete(problem, "w01", wanted, "cpu", facts, attempts, programs)


def gpu_prompt() -> str:
    """Return the prompt of the first worker on a problem of the GPU, without earlier attempts."""
    problem = load_problem(PROBLEMS / "starter/swiglu_h14336", key="starter/swiglu_h14336")
    eager = {work.uuid: 9.0 * (number + 1) for number, work in enumerate(problem.workloads)}
    description = DeviceDescription(target="h200", device=GPU, bounds=_bounds(eager, share=4.0, limit="memory"))
    facts = KernelFacts(
        description,
        baselines={uuid: {"eager": us + 8.0, "compile": us + 2.0, "baseline": None} for uuid, us in eager.items()},
        sealed_baselines={uuid: {"eager": us, "compile": us / 2.0, "baseline": None} for uuid, us in eager.items()},
    )
    programs = ("python3 with torch", "nvcc", "cuobjdump", "nvdisasm", "lscpu")
    wanted, attempts = "try vector loads of 32 bytes first", attempts_text((), (), "")
    return _complete(problem, "w02", wanted, "h200", facts, attempts, programs)


def _bounds(times_us: dict[str, float], *, share: float, limit: str) -> dict[str, BoundDescription]:
    return {
        uuid: BoundDescription.model_validate({"sol_us": us / share, "limited_by": limit, "bytes": 1, "flops": 1})
        for uuid, us in times_us.items()
    }


def _complete(
    problem: Problem,
    worker: str,
    wanted: str,
    target: str,
    facts: KernelFacts,
    attempts: str,
    programs: tuple[str, ...],
) -> str:
    left = remaining((UsageLimit(BUDGET, "for w01", lambda: Spent(usd=0.8, evaluations=2)),))
    first = prompting.assignment(problem, wanted, target=target, facts=facts, attempts=attempts, remaining=left)
    system = prompting.system(Config(), worker=worker, target=target, programs=programs)
    return f"<!-- system prompt -->\n{system}\n\n<!-- first message -->\n{first}\n"


@pytest.mark.parametrize(("name", "make"), [("cpu_worker", cpu_prompt), ("gpu_worker", gpu_prompt)])
def test_a_first_prompt_is_as_it_was_reviewed(name: str, make: object) -> None:
    assert callable(make)
    assert make() == (PROMPTS / f"{name}.md").read_text(), "to accept the change: python -m tests.agents.test_prompts"


def test_a_prompt_has_no_words_of_the_planner() -> None:
    for text in (cpu_prompt().lower(), gpu_prompt().lower()):
        for word in ("coordination", "standings", "coverage:", "expected gain", "slice", "stale", "ledger", "digest"):
            assert word not in text, word


def test_a_goal_that_a_person_sets_is_shown() -> None:
    assert "Requested: try vector loads of 32 bytes first." in gpu_prompt()
    assert "Requested" not in cpu_prompt()


def test_the_prompt_of_an_unmeasured_problem_reports_what_is_missing() -> None:
    problem = load_problem(PROBLEMS / "starter/rmsnorm_h4096", key="starter/rmsnorm_h4096")
    facts = KernelFacts(DeviceDescription(target="cpu"))
    text = prompting.assignment(problem, "", target="cpu", facts=facts, attempts="nothing")
    assert "The baselines are not measured yet" in text
    assert "No bounds are available yet" in text
    assert "No solution is confirmed yet" in text
    assert all(f"- **{name}**" in text for name in ("memory", "products", "elementwise", "short")), "each may limit"


def test_the_least_of_all_limits_is_left() -> None:
    run, session = Budget(usd=100.0, minutes=90.0), Budget(usd=5.0, evaluations=3)
    of_session = UsageLimit(session, "for a session", lambda: Spent(usd=1.0, evaluations=5))
    of_run = UsageLimit(run, "for the run main", lambda: Spent(usd=98.5, seconds=600))
    assert remaining((of_session, of_run)) == "1.50 USD, 0 submissions, 80 minutes"
    assert "no limit is set" in remaining((UsageLimit(Budget(), "for a session", Spent),))


if __name__ == "__main__":
    (PROMPTS / "cpu_worker.md").write_text(cpu_prompt())
    (PROMPTS / "gpu_worker.md").write_text(gpu_prompt())
