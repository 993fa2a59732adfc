"""`harness evaluate`, `baseline` and `profile`: measurements in the foreground, without the ledger."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
from pydantic import TypeAdapter, ValidationError

from harness.cli.devices import DeviceChoice, choose_devices
from harness.cli.display.output import echo, echo_json, echo_lines, emit, json_option
from harness.cli.display.results import print_with_weaknesses
from harness.cli.options import COUNT, POSITIVE, sandbox_option
from harness.cli.process_commands import log_to_file, stop_on_signals
from harness.cli.targets import candidate, find_problem
from harness.errors import AnswerIsNo, ConfigurationError, HarnessError
from harness.model.config import Config, SandboxKind
from harness.model.counters import CounterReport, report_lines
from harness.model.devices import expand_devices, parse_device
from harness.model.judging import Baselines, JudgeAnswer, JudgeProgress, JudgeRequest, Variant
from harness.model.printable import count_of
from harness.model.problem import Problem
from harness.model.weaknesses import facts_of, weaknesses
from harness.sol.hardware import CPU
from harness.workspace.blocking_judge import JudgeProcess, judge_process
from harness.workspace.configuration import load_config
from harness.workspace.directories import Workspace, user_cache
from harness.workspace.files import atomic_write

_USD, _MINUTES, _EVALUATIONS = 10.0, 120.0, 30
_QUICK_HALF_WIDTH = 0.1
"""Half-width for the evaluation before a profile: only its verdict matters, not its speed-up."""
_device = click.option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1; the default is that of `harness start`.")


def _checked_variant(_context: click.Context, _parameter: click.Parameter, against: str) -> str:
    try:
        return against if against == "fastest" else TypeAdapter[str](Variant).validate_python(against)
    except ValidationError:
        message = f"`{against}` is no baseline; `harness baseline PROBLEM` lists those that are measured"
        raise click.BadParameter(message) from None


@click.command()
@click.argument("path_or_commit", metavar="PATH|COMMIT")
@click.option("--problem", "problem_name", metavar="P", help="The problem: its key, or its directory.")
@click.option(
    "--solution", "solution_json", type=click.Path(exists=True, dir_okay=False), help="A SOL-ExecBench solution.json."
)
@click.option(
    "--max-seconds",
    type=POSITIVE,
    default=60.0,
    show_default=True,
    metavar="S",
    help="Timeout of the judge in seconds.",
)
@click.option(
    "--half-width",
    type=POSITIVE,
    metavar="SHARE",
    help="Measure until the half-width of the intervals is at most this share; the default is in harness.yaml.",
)
@click.option(
    "--against",
    metavar="VARIANT",
    default="fastest",
    show_default=True,
    callback=_checked_variant,
    help="The baseline to compare with: `eager`, `compile`, `baseline`, one of `judge.more_baselines`, or "
    "`library_NAME`. `fastest` measures all baselines first, once.",
)
@_device
@sandbox_option
@json_option
def evaluate(
    path_or_commit: str,
    *,
    problem_name: str | None,
    solution_json: str | None,
    max_seconds: float,
    half_width: float | None,
    against: str,
    device: str | None,
    sandbox: SandboxKind,
    as_json: bool,
) -> None:
    """Judge a solution: a solution directory, a problem directory with --solution, or a commit with --problem."""
    workspace = _workspace_near(Path(path_or_commit))
    config, chosen = _chosen_device(workspace, device)
    named = candidate(path_or_commit, problem_name, solution_json, target=chosen.target, workspace=workspace)
    with named as (problem, solution_dir), _started_judge(chosen, workspace, sandbox) as judge:
        measured = _baselines(judge, problem, workspace, config) if against == "fastest" else None
        against_all = {"baseline": dict.fromkeys((workload.uuid for workload in problem.workloads), against)}
        variants = _fastest(measured) if measured else against_all
        half_width = config.judge.half_width(chosen.target) if half_width is None else half_width
        settings = {"half_width": half_width, "max_judge_s": max_seconds}
        answer = judge.ask(_judge_request(problem, solution_dir, **variants, **settings), _show_progress)
    if as_json:
        echo_json(answer.model_dump_json(indent=2))
    else:
        print_with_weaknesses(answer, weaknesses(facts_of(answer), facts_of(measured) if measured else None))
    if answer.verdict != "PASSED":
        raise AnswerIsNo(f"{answer.verdict}: {answer.reason}")


@click.command()
@click.argument("problem", metavar="PROBLEM")
@click.option(
    "--make", is_flag=True, help="Let one agent with a budget optimise the PyTorch code; its best becomes baseline/."
)
@click.option(
    "--max-usd", type=POSITIVE, metavar="X", help="With --make: the agent's budget in USD; the default is 10."
)
@click.option(
    "--max-minutes", type=POSITIVE, metavar="M", help="With --make: the agent's time in minutes; the default is 120."
)
@click.option(
    "--max-evaluations", type=COUNT, metavar="N", help="With --make: the number of evaluations; the default is 30."
)
@_device
@sandbox_option
@json_option
def baseline(
    problem: str,
    *,
    make: bool,
    max_usd: float | None,
    max_minutes: float | None,
    max_evaluations: int | None,
    device: str | None,
    sandbox: SandboxKind,
    as_json: bool,
) -> None:
    """Measure a problem's baselines: the reference in eager mode and compiled, baseline/, judge.more_baselines."""
    if not make and (max_usd, max_minutes, max_evaluations) != (None, None, None):
        raise click.UsageError("--max-usd, --max-minutes and --max-evaluations limit what --make starts; add --make")
    workspace = _workspace_near(Path(problem))
    measured_problem = find_problem(problem, workspace)
    config, chosen = _chosen_device(workspace, device)
    with _started_judge(chosen, workspace, sandbox) as judge:
        if make:
            limits = {
                "agent.per_session.usd": max_usd or _USD,
                "agent.per_session.minutes": max_minutes or _MINUTES,
                "agent.per_session.evaluations": max_evaluations or _EVALUATIONS,
            }
            _make(judge, measured_problem, workspace, config, limits)
            measured_problem = find_problem(problem, workspace)
        measured = _baselines(judge, measured_problem, workspace, config, use_cache=False)
    fastest = _fastest(measured)
    tables = {"baseline": measured.baselines, "sealed_baseline": measured.sealed_baselines}
    screened = {"baseline": measured.screened, "sealed_baseline": measured.sealed_screened}
    rows: list[dict[str, Any]] = [{"uuid": work.uuid, "axes": work.axes} for work in measured_problem.workloads]
    columns: dict[str, Any] = {
        "workload": lambda row: ", ".join(f"{name}={size}" for name, size in row["axes"].items()) or row["uuid"]
    }
    for key, table in tables.items():
        if table:
            for row in rows:
                slow = screened[key].get(row["uuid"], ())
                row |= {f"{key}s": table[row["uuid"]], key: fastest[key].get(row["uuid"]), f"{key}_screened": slow}
            columns |= _columns(key, table)
    emit(rows, as_json=as_json, columns=columns)
    missing = (measured.environment.model_extra or {}).get("missing_baselines", {})
    for variant, reason in missing.items():
        echo(f"{variant} has no time: {reason}", err=True)


def _make(
    judge: JudgeProcess, problem: Problem, workspace: Workspace | None, config: Config, limits: Mapping[str, float]
) -> None:
    """Let an agent with a budget optimise the PyTorch code, and install its best solution as `baseline/`."""
    from harness.agents.baseline import install_baseline, make_baseline
    from harness.agents.kinds import check_claude
    from harness.agents.session import Event, Text, ToolUse

    if workspace is None:
        raise ConfigurationError("--make needs a workspace", remedy="harness init DIR")
    fastest = _fastest(_baselines(judge, problem, workspace, config))
    config = load_config(workspace, {"agent.kind": "claude", **limits})
    check_claude(config)
    stop, _ = stop_on_signals()
    log_to_file(workspace, "baseline")

    def ask(solution: Path) -> JudgeAnswer:
        return judge.ask(_judge_request(problem, solution, **fastest), _show_progress)

    def on_event(event: Event) -> None:
        if isinstance(event, Text):
            echo(f"  {event.text}")
        elif isinstance(event, ToolUse):
            echo(f"  {event.name} {event.summary}")

    result = make_baseline(workspace, config, problem, ask, target=judge.ready.target, stop=stop, on_event=on_event)
    submissions = count_of(result.submissions, "submission")
    echo(f"ended: {result.end.reason} {result.end.text}; {submissions}, {result.usd:.2f} USD")
    if result.best is None:
        raise AnswerIsNo("no submission passed: baseline/ is unchanged", where=problem.key)
    directory = install_baseline(problem, result)
    echo(f"{directory}: {result.speedup:.3f} times as fast as the fastest baseline before; review it and commit it")


@click.command()
@click.argument("path_or_commit", metavar="SOLUTION")
@click.option("--problem", "problem_name", metavar="P", help="The problem: its key, or its directory.")
@click.option(
    "--workload",
    metavar="UUID",
    help="The workload, by the beginning of its uuid; the default is the one with the most data.",
)
@click.option("--device", metavar="DEVICE", help="cuda, cuda:1; the default is that of `harness start`.")
@sandbox_option
@json_option
def profile(
    path_or_commit: str,
    *,
    problem_name: str | None,
    workload: str | None,
    device: str | None,
    sandbox: SandboxKind,
    as_json: bool,
) -> None:
    """Read the hardware counters of a solution that PASSED; a solution without a verdict is judged first.

    Nsight Compute reads the counters of the harness's launcher, for language cuda and for Triton solutions whose
    launches can be recorded. No verdict uses them.
    """
    workspace = _workspace_near(Path(path_or_commit))
    _, chosen = _chosen_device(workspace, device)
    if chosen.target == CPU:
        raise AnswerIsNo("no counters: no hardware counters are read on the target cpu")
    with (
        candidate(path_or_commit, problem_name, None, target=chosen.target, workspace=workspace) as named,
        _started_judge(chosen, workspace, sandbox) as judge,
    ):
        report = _report(judge, *named, workload)
    if as_json:
        echo_json(report.model_dump_json(indent=2))
    else:
        echo_lines(report_lines(report))
    if not report.kernels:
        raise AnswerIsNo(f"no counters: {report.reason}")


def _report(judge: JudgeProcess, problem: Problem, solution_dir: Path, workload: str | None) -> CounterReport:
    """Return the counters; a solution without a verdict is first judged against the eager reference."""

    def counters() -> CounterReport:
        answer = judge.ask(_judge_request(problem, solution_dir, kind="profile", workload=workload), _show_progress)
        if answer.counters is None:
            raise HarnessError(f"the judge cannot profile: {answer.verdict}: {answer.reason}", where=problem.key)
        return answer.counters

    report = counters()
    if report.needs_verdict:
        against = dict.fromkeys((measured.uuid for measured in problem.workloads), "eager")
        request = _judge_request(problem, solution_dir, baseline=against, half_width=_QUICK_HALF_WIDTH)
        judged = judge.ask(request, _show_progress)
        if judged.verdict != "PASSED":
            raise AnswerIsNo(f"only a solution that passes can be profiled: {judged.verdict}: {judged.reason}")
        report = counters()
    return report


def _chosen_device(workspace: Workspace | None, device: str | None) -> tuple[Config, DeviceChoice]:
    """Return the configuration, and the devices and target that a command uses."""
    overrides = {} if device is None else {"devices": (device,)}
    config = load_config(workspace, overrides) if workspace else Config.model_validate(overrides)
    chosen = choose_devices(config)
    for name in expand_devices(chosen.devices):
        parse_device(name)
    return config, chosen


@contextmanager
def _started_judge(chosen: DeviceChoice, workspace: Workspace | None, sandbox: SandboxKind) -> Iterator[JudgeProcess]:
    """Yield a judge on the first of the chosen devices; after the block, clear the line of `_show_progress`."""
    with judge_process(expand_devices(chosen.devices)[0], _cache_of(workspace), sandbox) as judge:
        yield judge
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")


def _columns(key: str, table: Baselines) -> dict[str, Any]:
    """Return columns for `emit`: the times of all variants by one clock, `~` for screened ones, and the fastest."""
    clock = "sealed " if key == "sealed_baseline" else ""

    def time(name: str) -> Any:  # noqa: ANN401
        def shown(row: dict[str, Any]) -> str:
            time_us = row[f"{key}s"].get(name)
            return "-" if time_us is None else f"{'~' * (name in row[f'{key}_screened'])}{time_us:.1f}"

        return shown

    names = dict.fromkeys(name for times in table.values() for name in times)
    return {**{f"{clock}{name} us": time(name) for name in names}, f"{clock}baseline": lambda row: row[key] or "-"}


def _workspace_near(near: Path) -> Workspace | None:
    """Return the workspace that contains a path or the current directory; None without one."""
    for start in filter(Path.exists, (near, Path.cwd())):
        with suppress(ConfigurationError):
            return Workspace.find(start)
    return None


def _cache_of(workspace: Workspace | None) -> Path:
    return user_cache() if workspace is None else workspace.cache


def _baselines(
    judge: JudgeProcess, problem: Problem, workspace: Workspace | None, config: Config, *, use_cache: bool = True
) -> JudgeAnswer:
    """Return an answer with the times of all variants, cached by problem, judge version and device."""
    more_variants = config.judge.more_baselines
    key = " ".join((problem.digest, judge.ready.environment.judge, judge.ready.device.id, *more_variants))
    file = _cache_of(workspace) / "baselines" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    if use_cache and file.is_file():
        with suppress(ValidationError):  # an older version stored fewer fields
            return JudgeAnswer.model_validate_json(file.read_text())
    answer = judge.ask(_judge_request(problem, more_variants=more_variants), _show_progress)
    if answer.verdict != "PASSED":
        raise AnswerIsNo(f"the baseline cannot be measured: {answer.verdict}: {answer.reason}")
    atomic_write(file, answer.model_dump_json())
    return answer


def _judge_request(problem: Problem, solution: Path | None = None, **settings: Any) -> JudgeRequest:  # noqa: ANN401
    """Return a request to judge a solution, or to measure the baselines."""
    kind = settings.pop("kind", "evaluation" if solution else "baseline")
    return JudgeRequest(
        **problem.request_fields, id="1", kind=kind, solution_dir=str(solution) if solution else None, **settings
    )


def _fastest(measured: JudgeAnswer) -> dict[str, dict[str, Variant]]:
    """Return the baseline fields of a request: the fastest variant of each workload, by both clocks."""
    from harness.daemon.drafts import fastest

    return {
        "baseline": fastest(measured.baselines, measured.screened),
        "sealed_baseline": fastest(measured.sealed_baselines, measured.sealed_screened),
    }


def _show_progress(progress: JudgeProgress) -> None:
    """Write one line to stderr that replaces the line before; nothing if stderr is not a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{progress.stage} {progress.done}/{progress.of}")
        sys.stderr.flush()
