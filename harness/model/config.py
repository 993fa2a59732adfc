"""The resolved configuration (harness.yaml) as one frozen object."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from harness.model.base_models import StrictModel
from harness.model.judging import MoreBaseline
from harness.model.languages import Language
from harness.model.paths import NAME_FORM, is_run

Positive = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
AgentKind = Literal["claude", "command", "tuner"]
RoleTool = Literal[
    "Bash", "Read", "Write", "Edit", "Glob", "Grep", "check", "submit", "history", "docs", "note", "profile"
]
SandboxKind = Literal["bubblewrap", "none"]


class Budget(StrictModel):
    """Hard limits; null is no limit."""

    usd: PositiveFloat | None = None
    tokens: Positive | None = None
    """Everything the model read and wrote, cached or not."""
    turns: Positive | None = None
    minutes: PositiveFloat | None = None
    evaluations: Positive | None = None


class SessionBudget(Budget):
    """Limits of one session, and limits on unproductive behaviour that end it."""

    duplicates: Positive | None = 3
    """Consecutive submissions that equal an earlier one."""
    repeats: Positive | None = 8
    """Consecutive calls of one tool with the same input."""
    silence_minutes: PositiveFloat | None = 20.0
    """Minutes without a message, a tool call or a byte of an answer, while nothing is being judged."""


class Price(StrictModel):
    """USD for a million tokens."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]
    cache_write: Annotated[float, Field(ge=0)] | None = None
    """null: 1.25 times the input."""
    cache_read: Annotated[float, Field(ge=0)] | None = None
    """null: a tenth of the input."""


class GatewayConfig(StrictModel):
    """Timeouts and backoff of requests to the model's API."""

    hold_s: PositiveFloat = 60.0
    """Seconds that a request waits in the gateway for a rate limit or an outage to end; then its session pauses."""
    first_s: PositiveFloat = 1.0
    """First backoff in seconds where the API names none; it doubles with each retry."""
    longest_s: PositiveFloat = 300.0
    """Longest backoff in seconds."""
    idle_s: PositiveFloat = 300.0
    """Seconds without a byte of an answer after which it counts as broken off."""


class AgentRole(StrictModel):
    """A subagent that an agent of kind `claude` may call. It has its own context; the same budgets limit its costs."""

    description: Annotated[str, Field(min_length=1)]
    """Condition for calling it, addressed to the calling agent."""
    prompt: Annotated[str, Field(min_length=1)]
    """Its system prompt."""
    model: str | None = None
    """null: the session's model."""
    effort: Literal["low", "medium", "high"] | None = None
    tools: tuple[RoleTool, ...] = ("Read", "Glob", "Grep", "Bash", "docs", "history")
    """Tools of the subagent."""


class AgentConfig(StrictModel):
    """The agent that a worker runs, its environment and its limits."""

    kind: AgentKind | None = None
    """null: `claude` with a GPU and a key, else `tuner`."""
    model: str | None = None
    effort: Literal["low", "medium", "high"] | None = None
    roles: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")], AgentRole] = Field(default_factory=dict)
    """Kind `claude`: subagents by name."""
    command: str | None = None
    """Kind `command`: the command line, with placeholders (docs/agents.md)."""
    binds: tuple[str, ...] = ()
    """Kind `command`: files and directories of this machine that are bound read-only at the same path."""
    env: dict[str, str | None] = Field(default_factory=dict)
    """Kind `command`: environment variables; null passes on the value that the variable has on this machine."""
    network: Literal["gateway", "host"] = "gateway"
    """`host` gives agents the host's network and login, for agents whose API address cannot be configured."""
    gateway: GatewayConfig = GatewayConfig()
    max_answer_tokens: Positive | None = 32_000
    """Kind `claude`: maximum tokens of an answer; null is the CLI's limit. A request reserves what its longest answer
    costs."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """Globs over model names -> prices. They take precedence over the shipped prices."""
    per_session: SessionBudget = SessionBudget()
    per_worker: Budget = Budget()
    overall: Budget = Budget()


class PlannerConfig(StrictModel):
    """The planner's kind and the limits of its model."""

    kind: Literal["policy", "claude"] = "policy"
    """`claude`: a model may propose another table; invalid parts of it are ignored."""
    model: str | None = None
    deadline_s: PositiveFloat = 120.0
    """Seconds for the model's proposal; after them the policy decides alone."""
    budget: Budget = Budget()


class PolicyConfig(StrictModel):
    """The planner's deterministic policy."""

    slice_evaluations: Positive = 4
    """Minimum evaluations of a worker on a problem before it moves to a problem with fewer evaluations."""
    stale_after: Positive = 20
    """Evaluations without improvement after which a problem is stale."""
    return_after: Positive = 60
    """Evaluations of other problems after which a stale problem may be assigned again."""


class JudgeConfig(StrictModel):
    """Precision, time limit and sandbox of judging."""

    half_width_cpu: PositiveFloat = 0.02
    half_width_gpu: PositiveFloat = 0.005
    max_judge_s: PositiveFloat = 60.0
    sandbox: SandboxKind = "bubblewrap"
    more_baselines: tuple[MoreBaseline, ...] = ()
    """Baselines that a measurement of baselines includes beside eager, `torch.compile` and `baseline/`."""

    def half_width(self, target: str) -> float:
        """Return the relative half-width of the 95 % interval at which timing on a target's devices may stop."""
        return self.half_width_cpu if target == "cpu" else self.half_width_gpu


def _checked_run(run: str) -> str:
    if not is_run(run):
        raise PydanticCustomError("run_name", "a name of {form}", {"form": NAME_FORM})
    return run


class Config(StrictModel):
    """Every key of harness.yaml with its default."""

    run: Annotated[str, AfterValidator(_checked_run)] = "main"
    coordination_branch: str = "main"
    target: str | None = None
    """null: the target of the device (`cpu`, `h200` ...)."""
    devices: tuple[str, ...] = ()
    """`cpu`, `cuda`, `cuda:0` ...; empty: cuda where the machine has a GPU, else cpu."""
    workers: Positive = 2
    problems: tuple[str, ...] = ("*",)
    """Globs over the keys of the run's problems."""
    languages: tuple[Language, ...] = ()
    """Languages that solutions of the run may use; empty: all."""
    data_root: str | None = None
    """Directory of safetensors files besides the problem's own directory."""
    agent: AgentConfig = AgentConfig()
    planner: PlannerConfig = PlannerConfig()
    policy: PolicyConfig = PolicyConfig()
    judge: JudgeConfig = JudgeConfig()
