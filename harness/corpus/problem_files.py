"""Files of extracted problems, and the graphs of existing problems."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from harness.corpus.extraction import ExtractedProblem
from harness.errors import FormatError
from harness.formats.problem_tags import PROVENANCE_KEY
from harness.formats.problems import DEFINITION_NAME, WORKLOADS_NAME, inspect_problem, list_problems, read_text
from harness.formats.source_lines import parse_json
from harness.workspace.files import atomic_write


def known_graphs(problems_dir: Path) -> dict[str, str]:
    """Return graph hash -> key of the extracted problems in a directory."""
    graphs: dict[str, str] = {}
    for key in list_problems(problems_dir):
        try:
            value = parse_json(read_text(problems_dir / key / DEFINITION_NAME), where=key)
        except FormatError:
            continue
        provenance = value.get(PROVENANCE_KEY) if isinstance(value, dict) else None
        if isinstance(provenance, dict) and isinstance(provenance.get("graph"), str):
            graphs.setdefault(provenance["graph"], key)
    return graphs


def write_problem(problem: ExtractedProblem, problems_dir: Path, *, replace: bool) -> bool:
    """Write definition.json and workload.jsonl of a problem; return false if an existing problem is kept.

    Args:
        problems_dir: directory of the suites.

    Raises:
        FormatError: the problem does not follow the schema.
    """
    files = _texts(problem)
    with tempfile.TemporaryDirectory() as staging:
        for name, text in files.items():
            (Path(staging) / name).write_text(text)
        findings = inspect_problem(Path(staging), key=problem.key)
        if findings.errors:
            raise findings.errors[0]
    target = problems_dir / problem.key
    if target.exists() and not replace:
        return False
    for name, text in files.items():
        atomic_write(target / name, text)
    return True


def _texts(problem: ExtractedProblem) -> dict[str, str]:
    """Return file name -> content; equal problems have equal bytes."""
    parts = [f"  {json.dumps(key)}: {_value(value)}" for key, value in problem.definition.items()]
    lines = [json.dumps(line) for line in problem.workloads]
    return {DEFINITION_NAME: "{\n" + ",\n".join(parts) + "\n}\n", WORKLOADS_NAME: "\n".join(lines) + "\n"}


def _value(value: Any) -> str:  # noqa: ANN401 - JSON
    """Return JSON with one axis or tensor per line."""
    if not isinstance(value, dict) or not any(isinstance(item, dict) for item in value.values()):
        return json.dumps(value)
    return "{\n" + ",\n".join(f"    {json.dumps(key)}: {json.dumps(item)}" for key, item in value.items()) + "\n  }"
