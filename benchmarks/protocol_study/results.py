"""Results as JSON lines: remaining cells, summaries of cells, and the tables of docs/clock.md."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cells import Cell

COLUMNS = (
    "hold_us", "probe_us", "prepare_us", "ping_us", "fill_us", "latency_us", "submitted_us", "captured_us", "runner_us",
    "cycle_us", "early_words",
)  # fmt: skip
"""Values of one call: `latency_us` from t0 to the answer, `submitted_us` to the submission of the capture,
`captured_us` to its end. `early_words`: number of 256 output words that were written before the doorbell rang, or -1 if
they were not inspected."""
_DISCARDED = 8
"""Number of warm-up calls at the start of a cell."""
_LONG_HOLD_US = 200.0
_WINDOW = 60
"""Calls after which a detector must decide: about as many as an evaluation has."""
_TOLERANCE_US, _TOLERANCE = 3.0, 0.03


def load(path: Path) -> list[dict[str, Any]]:
    """Return the last record of each cell in a results file; truncated lines are ignored."""
    records: dict[str, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        records[record["cell"]] = record
    return list(records.values())


def remaining(cells: Sequence[Cell], records: Iterable[dict[str, Any]], *, retry_failed: bool = False) -> list[Cell]:
    """Return the cells without a record.

    Args:
        cells: all cells.
        records: records of the results file.
        retry_failed: also return cells that failed.
    """
    done = {record["cell"] for record in records if record["status"] == "ok" or not retry_failed}
    return [cell for cell in cells if cell.identity not in done]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile; three times the value if there is only one."""
    if len(values) < 2:
        return (values[0] if values else float("nan"),) * 3
    lower_quartile, median, upper_quartile = statistics.quantiles(values, n=4, method="inclusive")
    return lower_quartile, median, upper_quartile


def sd_of_medians(values: Sequence[float], group: int = 30) -> float:
    """Return the standard deviation of medians of consecutive groups; NaN with fewer than three groups.

    Args:
        values: values in the order of measurement.
        group: values of each group.
    """
    medians = [statistics.median(values[i : i + group]) for i in range(0, len(values) - group + 1, group)]
    return statistics.stdev(medians) if len(medians) > 2 else float("nan")


@dataclass(frozen=True)
class Summary:
    """Medians over a cell's calls in microseconds, and shares of calls."""

    fields: dict[str, Any]
    kernel_us: float
    latency_us: float
    """Latency without a hold."""
    held_us: float
    """Latency with a hold of 0.2 ms or more."""
    submitted_us: float
    captured_us: float
    runner_us: float
    prepare_us: float
    cycle_us: float
    probe_us: float
    probe_p95_us: float
    wrong: float
    """Share of calls with wrong outputs."""
    early: float
    """Share of the inspected calls whose outputs were written before the doorbell rang."""
    changed: float
    """Share of calls after which the inputs had changed."""
    hold_alarms: tuple[int, int]
    """Number of windows in which latency falls with the hold, and number of windows."""
    sd_us: float
    spread_us: tuple[float, float]
    """Quartiles minus the median of the clock's overhead over the runner's reading (sealed: of the reading)."""
    empty_us: float


def _share(looks: Sequence[float]) -> float:
    looked = [words for words in looks if words >= 0]
    return sum(words > 0 for words in looked) / len(looked) if looked else float("nan")


def _columns(rows: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    return {name: [row[index] for row in rows] for index, name in enumerate(COLUMNS)}


def hold_alarm(rows: Sequence[Sequence[float]], column: str = "latency_us") -> bool | None:
    """Return true if held calls are faster than others by more than max(3 us, 3 %); None below eight of either kind.

    Args:
        rows: calls with the values of `COLUMNS`.
        column: the latency to compare.
    """
    hold, probe, latency = (COLUMNS.index(name) for name in ("hold_us", "probe_us", column))
    immediate_us = [row[latency] for row in rows if not row[hold]]
    held_us = [row[latency] for row in rows if row[hold] >= _LONG_HOLD_US and row[probe] < 0]
    if min(len(immediate_us), len(held_us)) < 8:
        return None
    fast, slow = statistics.median(held_us), statistics.median(immediate_us)
    return slow - fast > max(_TOLERANCE_US, _TOLERANCE * slow)


def summarise(record: dict[str, Any]) -> Summary:
    """Return medians, shares and alarms of one record with status `ok`."""
    fields, rows = record["fields"], record["calls"][_DISCARDED:]
    latency = "runner_us" if fields["protocol"] == "events" else "latency_us"
    at = {name: index for index, name in enumerate(COLUMNS)}
    immediate_rows = [row for row in rows if not row[at["hold_us"]]]
    held_rows = [row for row in rows if row[at["hold_us"]] >= _LONG_HOLD_US and row[at["probe_us"]] < 0]
    probes = [row[at["probe_us"]] for row in rows if row[at["probe_us"]] >= 0]
    columns = _columns(immediate_rows)
    nothing = float("nan")

    def middle(values: Sequence[float]) -> float:
        return statistics.median(values) if values else nothing

    beyond = [judge - runner for judge, runner in zip(columns["latency_us"], columns["runner_us"], strict=True)]
    noise = columns["runner_us"] if fields["protocol"] == "events" else beyond
    lower, centre, upper = quartiles(noise)
    alarms = [hold_alarm(rows[i : i + _WINDOW], latency) for i in range(0, len(rows) - _WINDOW + 1, _WINDOW)]
    wrong = record["wrong"]
    return Summary(
        fields=fields,
        kernel_us=record.get("kernel_us", 0.0),
        latency_us=middle(columns[latency]),
        held_us=middle([row[at[latency]] for row in held_rows]),
        submitted_us=middle(columns["submitted_us"]),
        captured_us=middle(columns["captured_us"]),
        runner_us=middle(columns["runner_us"]),
        prepare_us=middle(columns["prepare_us"]),
        cycle_us=middle(columns["cycle_us"]),
        probe_us=middle(probes),
        probe_p95_us=sorted(probes)[int(0.95 * len(probes))] if probes else nothing,
        wrong=sum(map(bool, wrong)) / max(1, len(wrong)),
        early=_share([row[at["early_words"]] for row in rows]),
        changed=sum(map(bool, record["changed"])) / max(1, len(wrong)),
        hold_alarms=(sum(alarm is True for alarm in alarms), sum(alarm is not None for alarm in alarms)),
        sd_us=sd_of_medians(columns[latency]),
        spread_us=(lower - centre, upper - centre),
        empty_us=middle(_columns(record["empty"][3:])[latency]) if record["empty"] else nothing,
    )


def _honest_of(summaries: Sequence[Summary], fields: dict[str, Any]) -> Summary | None:
    compared_fields = ("protocol", "kernel_us", "megabytes", "pinned")
    candidates = [
        summary
        for summary in summaries
        if summary.fields["adversary"] == "honest"
        and all(summary.fields[key] == fields[key] for key in compared_fields)
    ]
    exact = [summary for summary in candidates if summary.fields["placements"] == fields["placements"]]
    return next(iter(exact or candidates), None)


def honest_rows(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Return the table of the honest runner: overhead, noise and cost of each protocol."""
    return [
        {
            "protocol": s.fields["protocol"], "pinned": s.fields["pinned"], "MB": s.fields["megabytes"],
            "kernel us": s.kernel_us, "recorded us": s.latency_us, "runner us": s.runner_us,
            "overhead us": s.latency_us - (s.kernel_us if s.fields["protocol"] == "events" else s.runner_us),
            "q1": s.spread_us[0], "q3": s.spread_us[1], "sd of medians": s.sd_us, "empty us": s.empty_us,
            "held us": s.held_us, "probe us": s.probe_us, "probe p95": s.probe_p95_us, "prepare us": s.prepare_us,
            "captured us": s.captured_us, "cycle us": s.cycle_us, "hold alarms": "{}/{}".format(*s.hold_alarms),
            "wrong": s.wrong, "early": s.early,
        }
        for s in summaries
        if s.fields["adversary"] == "honest"
    ]  # fmt: skip


def attack_rows(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Return the table of adversaries in their own turn: false gain with and without a hold, and each detector."""
    rows = []
    for s in summaries:
        honest = _honest_of(summaries, s.fields)
        if s.fields["adversary"] == "honest" or honest is None:
            continue
        rows.append(
            {
                "protocol": s.fields["protocol"], "adversary": s.fields["adversary"], "us": s.fields["kernel_us"],
                "MB": s.fields["megabytes"], "pinned": s.fields["pinned"], "gather": s.fields["gather"] or "-",
                "placements": s.fields["placements"], "reset": s.fields["reset_persisting"],
                "honest us": honest.latency_us, "recorded us": s.latency_us,
                "gain": honest.latency_us / s.latency_us, "gain held": honest.held_us / s.held_us,
                "gain captured": honest.captured_us / s.captured_us, "hold alarms": "{}/{}".format(*s.hold_alarms),
                "probe x": s.probe_us / honest.probe_us, "prepare x": s.prepare_us / honest.prepare_us,
                "wrong": s.wrong, "early": s.early, "changed": s.changed, "empty us": s.empty_us - honest.empty_us,
            }
        )  # fmt: skip
    return rows


def baseline_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the table of adversaries in the baseline's turn: slowdown of the baseline, and the detectors."""
    latency, prepare = COLUMNS.index("latency_us"), COLUMNS.index("prepare_us")
    rows = []
    for record in records:
        if record["status"] != "ok" or "before" not in record:
            continue
        fields = record["fields"]
        middle = {
            name: statistics.median(row[latency] for row in record[name][_DISCARDED:])
            for name in ("before", "beside", "after", "calls")
        }
        prepared = {
            name: statistics.median(row[prepare] for row in record[name][_DISCARDED:]) for name in ("before", "beside")
        }
        rows.append(
            {
                "protocol": fields["protocol"], "adversary": fields["adversary"], "pinned": fields["pinned"],
                "stopped": fields["stopped"], "before us": middle["before"], "beside us": middle["beside"],
                "after us": middle["after"], "false gain": middle["beside"] / middle["before"],
                "candidate us": middle["calls"],
                "idle probe us": statistics.median(record["idle_probe_us"] or [float("nan")]),
                "prepare x": prepared["beside"] / prepared["before"],
                "mean gain": statistics.fmean(row[latency] for row in record["beside"][_DISCARDED:]) / middle["before"],
            }
        )  # fmt: skip
    return rows


def render(records: Sequence[dict[str, Any]]) -> str:
    """Return all tables as text, failed cells last."""
    from tabulate import tabulate

    alone = [summarise(record) for record in records if record["status"] == "ok" and "before" not in record]
    parts = []
    tables = (
        ("Honest runner", honest_rows(alone)),
        ("Own turn", attack_rows(alone)),
        ("Baseline's turn", baseline_rows(records)),
    )
    for title, rows in tables:
        parts.append(f"{title}\n" + tabulate(rows, headers="keys", floatfmt=".2f"))
    failed = [f"{record['cell']}: {record['reason']}" for record in records if record["status"] != "ok"]
    return "\n\n".join([*parts, "Failed\n" + "\n".join(failed)] if failed else parts)
