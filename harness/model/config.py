"""harness.yaml, resolved: one frozen object that the code gets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.model.solution import Language

Positive = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
AgentKind = Literal["claude", "command", "tuner"]
SandboxKind = Literal["bubblewrap", "none"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Budget(_Section):
    """Hard limits; null is no limit."""

    usd: PositiveFloat | None = None
    turns: Positive | None = None
    minutes: PositiveFloat | None = None
    evaluations: Positive | None = None


class AgentConfig(_Section):
    """How a worker works."""

    kind: AgentKind | None = None
    """null: `claude` with a GPU and a key, else `tuner`."""
    model: str | None = None
    effort: Literal["low", "medium", "high"] | None = None
    command: str | None = None
    """Kind `command`: the command line, with placeholders."""
    per_worker: Budget = Budget()
    overall: Budget = Budget()


class PolicyConfig(_Section):
    """The planner's deterministic policy."""

    slice_evaluations: Positive = 4
    """A worker is left on a problem for at least so many evaluations while others are less covered."""
    stale_after: Positive = 20
    """Evaluations without gain after which a problem is stale."""
    return_after: Positive = 60
    """Evaluations elsewhere after which a stale problem may be tried again."""


class JudgeConfig(_Section):
    """How candidates are judged."""

    half_width_cpu: PositiveFloat = 0.02
    half_width_gpu: PositiveFloat = 0.005
    max_judge_s: PositiveFloat = 60.0
    sandbox: SandboxKind = "bubblewrap"


class Config(_Section):
    """Every key of harness.yaml with its default."""

    run: str = Field(default="main", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    coordination_branch: str = "main"
    target: str | None = None
    """null: the device's own (`cpu`, `h200` ...)."""
    devices: tuple[str, ...] = ()
    """`cpu`, `cuda`, `cuda:0` ...; empty: cuda where there is one, else cpu."""
    workers: Positive = 2
    problems: tuple[str, ...] = ("*",)
    """Globs over problem keys that a run works on."""
    languages: tuple[Language, ...] = ()
    """Languages a run allows; empty: all."""
    data_root: str | None = None
    """Where safetensors paths may lead besides the problem's own directory."""
    agent: AgentConfig = AgentConfig()
    policy: PolicyConfig = PolicyConfig()
    judge: JudgeConfig = JudgeConfig()
