"""The planner's simulation as one static HTML page: curves of each world, tables, and the worlds' assumptions."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from harness.model.printable import interval_of
from harness.report.page import Json, page_file

_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 22, 40
_TIMES = "\u00d7"
_COLOURS = ("--accent", "--bound", "--base", "--bad", "--warn", "--soft")
_BY_HOURS = "Geometric mean of the speed-ups; the dashed line is half of the budget"


def render_simulation(data: Json) -> str:
    """Return the HTML page.

    Args:
        data: `settings` (of the simulation, as JSON), `seeds` (a text), `shipped` (name of a policy), `published` (the
            figures of the public result) and `worlds` (name, title, assumptions, and `outcomes` of all policies).
    """
    settings = data["settings"]
    size = f"{settings['problems']} problems, {settings['gpus']} GPUs, {settings['workers']} workers"
    parts = {
        "css": page_file("page.css"),
        "title": "Planner policies in simulation",
        "eyebrow": f"{size}, {settings['hours'] / 24:.3g} days · {data['seeds']}",
        "lede": (
            "Geometric mean of the speed-ups over the baseline that each policy reaches at equal cost. "
            "A problem without a faster solution counts as 1."
        ),
        "tiles": "".join(_tile(world, data) for world in data["worlds"]),
        "fine": (
            "Ratio: geometric mean of the shipped policy divided by that of round robin, at half of the GPU-hours, "
            "with the same seeds; the mean over the seeds with its 95 % interval. The worlds are fitted to the public "
            "result under round robin: they are assumptions about how gains come, not measurements."
        ),
        "worlds": "\n".join(_world(world, data) for world in data["worlds"]),
    }
    page = page_file("simulation.html")
    for name, text in parts.items():
        page = page.replace("{{" + name + "}}", text if name in {"css", "tiles", "worlds"} else html.escape(text))
    return page


def _tile(world: Json, data: Json) -> str:
    of_shipped = (outcome for outcome in world["outcomes"] if outcome["policy"] == data["shipped"])
    outcome = next(of_shipped, world["outcomes"][0])
    interval = outcome["ratio_half_ci95"]
    shown = " [{:.3f}, {:.3f}]".format(*interval) if interval else ""
    return (
        f'<div class="tile"><b>{outcome["ratio_half"]:.3f}{_TIMES}</b><span>{html.escape(world["title"])}</span>'
        f"<small>{html.escape(outcome['policy'])} against round robin at half of the budget"
        f"{shown}, ahead on {outcome['wins']} of {outcome['seeds']} seeds</small></div>"
    )


def _world(world: Json, data: Json) -> str:
    title, name = html.escape(world["title"]), html.escape(world["name"])
    assumptions = "".join(f"<li>{html.escape(text)}</li>" for text in world["assumptions"])
    half = data["settings"]["gpus"] * data["settings"]["hours"] / 2
    by_hours = _chart(world["outcomes"], "curve", "reserved GPU-hours", title, half)
    by_usd = _chart(world["outcomes"], "curve_usd", "thousand USD, GPUs and agents", title, None, scale=1e-3)
    return f"""  <section aria-labelledby="w-{name}">
    <h2 id="w-{name}">{title}</h2>
    <ul class="assumptions">{assumptions}</ul>
    <div class="pair">
      <figure><h2>By GPU-hours</h2><p class="sub">{_BY_HOURS}</p>{by_hours}</figure>
      <figure><h2>By dollars</h2><p class="sub">The same against what GPUs and agents cost</p>{by_usd}</figure>
    </div>
    <p class="legend fine">{_legend(world["outcomes"])}</p>
    {_table(world["outcomes"], data)}
  </section>"""


def _legend(outcomes: Sequence[Json]) -> str:
    return "".join(
        f'<span><i class="key" style="border-color:var({_COLOURS[number % len(_COLOURS)]})"></i>'
        f"{html.escape(outcome['policy'])}</span>"
        for number, outcome in enumerate(outcomes)
    )


def _table(outcomes: Sequence[Json], data: Json) -> str:
    heads = ("policy", "at ¼", "at ½", "at the end", "ratio at ½", "95 % interval", "ratio at ½ USD",
             "ahead", "faster", f"above 2{_TIMES}", "median score", "evaluations", "kUSD")  # fmt: skip
    rows = []
    for outcome in outcomes:
        cells = (
            f"{outcome['quarter']:.3f}",
            f"{outcome['half']:.3f}",
            f"{outcome['end']:.3f}",
            f"{outcome['ratio_half']:.3f}",
            interval_of(outcome["ratio_half_ci95"]),
            f"{outcome['ratio_half_usd']:.3f}",
            f"{outcome['wins']} of {outcome['seeds']}",
            f"{outcome['faster']:.0%}",
            f"{outcome['above_2x']:.0%}",
            f"{outcome['median_score']:.2f}",
            f"{outcome['evaluations']:,.0f}",
            f"{outcome['usd'] / 1000:,.0f}",
        )
        kind = ' class="shipped"' if outcome["policy"] == data["shipped"] else ""
        row = "".join(f"<td>{cell}</td>" for cell in cells)
        rows.append(f'<tr{kind}><td class="text">{html.escape(outcome["policy"])}</td>{row}</tr>')
    goal = data["published"]
    dashes = "<td>-</td>" * 2
    rows.append(
        f'<tr><td class="text">public result</td>{dashes}<td>{goal["geometric_mean"]:.3f}</td>{dashes * 2}'
        f"<td>{goal['faster']:.0%}</td><td>{goal['above_2x']:.0%}</td><td>{goal['median_score']:.2f}</td>{dashes}</tr>"
    )
    head = "".join(f"<th{' class=text' if not number else ''}>{name}</th>" for number, name in enumerate(heads))
    body = "".join(rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _chart(
    outcomes: Sequence[Json], column: str, unit: str, label: str, mark: float | None, *, scale: float = 1.0
) -> str:
    """Return a line chart as SVG: one line for each policy, logarithmic in the speed-up."""
    max_cost: float = max(point[0] for outcome in outcomes for point in outcome[column]) * scale
    top: float = max(1.05, *(point[1] for outcome in outcomes for point in outcome[column]))
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x(cost: float) -> float:
        return _LEFT + cost / max_cost * (right - _LEFT)

    def y(speedup: float) -> float:
        return bottom - math.log(speedup) / math.log(top) * (bottom - _TOP)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}: speed-up by {unit}">']
    step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0) if (top - 1) / step <= 6)
    for number in range(int((top - 1) / step + 1e-9) + 1):
        value = 1 + number * step
        kind = "grid" if number else "axis"
        parts.append(f'<line class="{kind}" x1="{_LEFT}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3g}{_TIMES}</text>')
    for number in range(5):
        cost = max_cost * number / 4
        anchor = "end" if number == 4 else "middle"
        parts.append(f'<text x="{x(cost):.1f}" y="{bottom + 17}" text-anchor="{anchor}">{cost:,.0f}</text>')
    parts.append(f'<text x="{right}" y="{bottom + 34}" text-anchor="end">{unit}</text>')
    if mark is not None:
        parts.append(f'<line class="ref" x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="{_TOP}" y2="{bottom}"/>')
    for number, outcome in enumerate(outcomes):
        line = "L".join(f"{x(cost * scale):.1f},{y(speedup):.1f}" for cost, speedup in outcome[column])
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(
            f'<path class="line" style="stroke:var({colour})" d="M{line}">'
            f"<title>{html.escape(outcome['policy'])}</title></path>"
        )
    return "".join([*parts, "</svg>"])
