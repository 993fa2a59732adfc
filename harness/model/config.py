"""harness.yaml, resolved: one frozen object that the code gets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from harness.model.judging import MoreBaseline
from harness.model.paths import NAME_FORM, is_run
from harness.model.solution import Language

Positive = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
AgentKind = Literal["claude", "command", "tuner"]
RoleTool = Literal[
    "Bash", "Read", "Write", "Edit", "Glob", "Grep", "check", "submit", "history", "docs", "note", "profile"
]
SandboxKind = Literal["bubblewrap", "none"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Budget(_Section):
    """Hard limits; null is no limit."""

    usd: PositiveFloat | None = None
    tokens: Positive | None = None
    """Everything the model read and wrote, cached or not."""
    turns: Positive | None = None
    minutes: PositiveFloat | None = None
    evaluations: Positive | None = None


class SessionBudget(Budget):
    """What one session may use, and the signs of one that has lost its way."""

    duplicates: Positive | None = 3
    """Submissions in a row of what was submitted before."""
    repeats: Positive | None = 8
    """Uses in a row of one tool with the same input."""
    silence_minutes: PositiveFloat | None = 20.0
    """Without a word, a tool or a byte of an answer, while nothing is being judged."""


class Price(_Section):
    """USD for a million tokens."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]
    cache_write: Annotated[float, Field(ge=0)] | None = None
    """null: 1.25 times the input."""
    cache_read: Annotated[float, Field(ge=0)] | None = None
    """null: a tenth of the input."""


class GatewayConfig(_Section):
    """How patient the way to the model is."""

    hold_s: PositiveFloat = 60.0
    """A request waits here so long for a rate limit or an outage to pass; then its session pauses."""
    first_s: PositiveFloat = 1.0
    """The first wait where the model's side does not say how long; doubled each time."""
    longest_s: PositiveFloat = 300.0
    idle_s: PositiveFloat = 300.0
    """An answer from which nothing comes for so long has broken off."""


class AgentRole(_Section):
    """A subagent that an agent of kind `claude` may ask, in a context of its own and within the same accounts."""

    description: Annotated[str, Field(min_length=1)]
    """When to ask it, for the agent that decides."""
    prompt: Annotated[str, Field(min_length=1)]
    """Its system prompt."""
    model: str | None = None
    """null: the session's own."""
    effort: Literal["low", "medium", "high"] | None = None
    tools: tuple[RoleTool, ...] = ("Read", "Glob", "Grep", "Bash", "docs", "history")
    """Tools that it may use."""


class AgentConfig(_Section):
    """How a worker works."""

    kind: AgentKind | None = None
    """null: `claude` with a GPU and a key, else `tuner`."""
    model: str | None = None
    effort: Literal["low", "medium", "high"] | None = None
    roles: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")], AgentRole] = {}
    """Kind `claude`: subagents by name."""
    command: str | None = None
    """Kind `command`: the command line, with placeholders (docs/agents.md)."""
    binds: tuple[str, ...] = ()
    """Kind `command`: files and directories of this machine that it needs, shown read-only at the same path."""
    env: dict[str, str | None] = {}
    """Kind `command`: variables of its environment; null passes this machine's value on."""
    network: Literal["gateway", "host"] = "gateway"
    """`host` gives agents the host's network and login: for agents that cannot be pointed at another address."""
    gateway: GatewayConfig = GatewayConfig()
    max_answer_tokens: Positive | None = 32_000
    """Kind `claude`: the longest answer; null is the CLI's own. A request reserves what its longest answer costs."""
    prices: dict[str, Price] = {}
    """Globs over model names -> prices, before the shipped ones."""
    per_session: SessionBudget = SessionBudget()
    per_worker: Budget = Budget()
    overall: Budget = Budget()


class PlannerConfig(_Section):
    """Who decides besides the policy."""

    kind: Literal["policy", "claude"] = "policy"
    """`claude`: a model may propose another table; what does not hold is not taken."""
    model: str | None = None
    deadline_s: PositiveFloat = 120.0
    """Then the policy decides alone."""
    budget: Budget = Budget()


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
    more_baselines: tuple[MoreBaseline, ...] = ()
    """What a baseline measurement tries beyond eager, `torch.compile` and `baseline/`."""

    def half_width(self, target: str) -> float:
        """When timing on a target's devices may stop."""
        return self.half_width_cpu if target == "cpu" else self.half_width_gpu


def _checked_run(run: str) -> str:
    if not is_run(run):
        raise PydanticCustomError("run_name", "a name of {form}", {"form": NAME_FORM})
    return run


class Config(_Section):
    """Every key of harness.yaml with its default."""

    run: Annotated[str, AfterValidator(_checked_run)] = "main"
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
    planner: PlannerConfig = PlannerConfig()
    policy: PolicyConfig = PolicyConfig()
    judge: JudgeConfig = JudgeConfig()
