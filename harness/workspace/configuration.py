"""Resolution of the configuration: defaults, harness.yaml, command line, in this order, into one frozen object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from harness.errors import ConfigurationError, FormatError
from harness.formats.bounded import DOCUMENT_BYTES, read_bytes
from harness.formats.schema import shown, validated
from harness.formats.source_lines import parse_yaml
from harness.model.config import Config
from harness.workspace.directories import CONFIG_NAME, Workspace

COMMAND_LINE = "the command line"
_REMEDY = "edit that line; docs/formats.md has every key"
DEFAULT_YAML = """\
# How this workspace runs. Every key is optional; `harness doctor` prints them all with where each value comes from.

run: main                     # the experiment: ledger entries and branches carry its name
coordination_branch: {branch}     # holds COORDINATION.md and ledger/
# target: cpu                 # what solutions are tuned for; by default the device's own name (cpu, h200, b200 ...)
# devices: [cpu]              # cpu, cuda, cuda:0 ...; by default cuda where there is one, else cpu
# workers: 2
# problems: ["*"]             # globs over problem keys, such as "starter/*"
# languages: []               # languages a run allows; empty: all

# agent:
#   kind: tuner               # claude, command or tuner; by default claude with a GPU and a key, else tuner
#   model: claude-opus-4-5    # by default the CLI's own
#   per_session: {{usd: 5, turns: 300}}   # docs/agents.md has every limit
#   per_worker: {{usd: 50}}
#   overall: {{usd: 100}}

# planner:
#   kind: policy              # claude: a model may propose another table, within checked limits

# policy:
#   slice_evaluations: 4      # a worker stays so long on a problem while others are less covered
#   stale_after: 20           # evaluations without gain that make a problem stale
#   return_after: 60          # evaluations elsewhere before a stale problem is tried again

# judge:
#   half_width_cpu: 0.02      # timing stops when the interval is this narrow
#   half_width_gpu: 0.005
#   max_judge_s: 60
#   sandbox: bubblewrap       # `none` runs agents' code unconfined, and every entry records it
"""


@dataclass(frozen=True)
class Setting:
    """One key of the resolved configuration with its value and its source."""

    key: str
    value: object
    source: str
    """`default` or `harness.yaml:LINE`."""


def load_config(workspace: Workspace, overrides: Mapping[str, object] | None = None) -> Config:
    """Return the resolved configuration.

    Args:
        workspace: the workspace whose harness.yaml is read.
        overrides: dotted key -> value from the command line; None values are ignored.

    Raises:
        FormatError: harness.yaml has an unknown key or an invalid value; the message has its line.
        ConfigurationError: a value of the command line is invalid, or the file cannot be read.
    """
    document, _ = _read(workspace)
    return _resolve(document, overrides or {})


def data_root_of(workspace: Workspace, config: Config | None = None) -> Path | None:
    """Return the directory to which safetensors paths may lead besides a problem's own; None if none is configured.

    Args:
        workspace: the workspace whose root a relative path starts from.
        config: the resolved configuration; without it harness.yaml is read.

    Raises:
        FormatError: harness.yaml is malformed.
    """
    root = (config or load_config(workspace)).data_root
    return workspace.root / root if root else None


def explain_config(workspace: Workspace) -> list[Setting]:
    """Return every key with its value and source, in the order of `harness.model.config`.

    Raises:
        FormatError: harness.yaml has an unknown key or an invalid value; the message has its line.
        ConfigurationError: the file cannot be read.
    """
    document, lines = _read(workspace)
    return [
        Setting(".".join(path), value, f"{CONFIG_NAME}:{lines[path]}" if path in lines else "default")
        for path, value in _leaves(_resolve(document, {}))
    ]


def _read(workspace: Workspace) -> tuple[dict[str, Any], dict[tuple[str | int, ...], int]]:
    where = shown(workspace.config_file)
    try:
        text = read_bytes(workspace.config_file, max_bytes=DOCUMENT_BYTES, where=where).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"cannot be read: {error}",
            where=where,
            remedy=f"repair it, or take the committed one: `git checkout HEAD -- {CONFIG_NAME}`",
        ) from error
    try:
        document, lines = parse_yaml(text, where=where)
        document = {} if document is None else document
        _, errors = validated(Config, document, where=where, lines=lines)
        if errors:
            raise errors[0]
    except FormatError as error:
        raise FormatError(error.message, where=error.where, remedy=error.remedy or _REMEDY) from error
    return document, lines


def _resolve(document: Mapping[str, Any], overrides: Mapping[str, object]) -> Config:
    merged: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in document.items()}
    for key, value in overrides.items():
        if value is None:
            continue
        *parents, leaf = key.split(".")
        section = merged
        for parent in parents:
            section[parent] = dict(section.get(parent) or {})
            section = section[parent]
        section[leaf] = list(value) if isinstance(value, tuple) else value
    config, errors = validated(Config, merged, where=COMMAND_LINE, lines={})
    if config is None:  # the file alone is valid, so the error is on the command line
        raise ConfigurationError(errors[0].message, where=COMMAND_LINE, remedy="give that option another value")
    return config


def _leaves(section: BaseModel, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value
