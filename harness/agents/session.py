"""The one protocol between a worker and whatever does its thinking: a model, a program, or a search.

A worker makes a `Brief`, opens a session of the configured kind with it, and goes through its events. The session
reaches the world only through the brief's directory and `tools`: it never commits, measures or waits by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from harness.agents.confinement import View
from harness.agents.kernel_facts import KernelFacts
from harness.agents.others_work import Sources
from harness.ledger.candidates import TriedCandidate
from harness.model.checking import CheckReply, ShownCode
from harness.model.config import AgentRole, SessionBudget
from harness.model.counters import CounterReport
from harness.model.entry import Entry


@dataclass(frozen=True)
class Submitted:
    """A committed candidate."""

    commit: str
    tree: str
    branch: str


@dataclass(frozen=True)
class Tools:
    """What a session may ask the harness to do."""

    commit: Callable[[str], Submitted]
    """Commit the solution as it stands, with a message. Raises FormatError when it is no valid solution,
    RepositoryError when something else was changed too."""
    outcome: Callable[[Submitted], Entry | None]
    """Wait for the candidate's entry; null when the worker was told to stop before it came."""
    history: Callable[[], tuple[TriedCandidate, ...]]
    """Every candidate of this problem and target, by anyone, judged or under way."""
    note: Callable[[str, int | None, str | None], None]
    """Record a one-line lesson: its text, `seq` of the entry that proves it, the id of a lesson that it contradicts."""
    turn: Callable[[], AbstractContextManager[None]]
    """Held while choosing from `history` and committing, so that two workers never choose the same candidate."""
    profile: Callable[[Submitted, str | None], CounterReport | None] | None = None
    """Order the counters of a candidate on a workload (its uuid; null: the one with the most data) from the judge.
    Returns null when the worker was told to stop before; raises TimeoutError. None where no daemon runs."""
    lessons: Callable[[], tuple[str, ...]] = tuple
    """Return the lessons about the problem and its family, one line each."""
    sources: Sources = lambda _: {}
    """Read the solution of a commit: its text files by name."""
    entry_of: Callable[[str], Entry | None] = lambda _: None
    """The ledger's entry of a candidate's tree."""
    champion: Callable[[], str | None] = lambda: None
    """The champion's tree."""
    check: Callable[[ShownCode, str], CheckReply | None] | None = None
    """Check the solution as it stands: (code to show, function). The reply is null when the worker was told to stop;
    raises TimeoutError when no judge is ready. None where checks are not available."""
    facts: Callable[[], KernelFacts | None] = lambda: None
    """Return the present baseline times, bounds and times of the champion; None where these are not collected."""


@dataclass(frozen=True)
class Answer:
    """What a tool says: a few lines of text, for a model or for a terminal."""

    text: str
    failed: bool = False


@dataclass(frozen=True)
class Parameter:
    """One argument of a tool."""

    name: str
    description: str
    needed: bool = True


@dataclass(frozen=True)
class Tool:
    """A tool that a session offers to its agent."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    use: Callable[[Mapping[str, object]], Answer]
    """Called in the thread that goes through the session's events. Never raises."""
    schema: Mapping[str, object] | None = None
    """A JSON schema of the arguments, where `parameters` (all of them text) do not say it."""


@dataclass(frozen=True)
class Brief:
    """What a session starts with."""

    role: Literal["worker", "planner"]
    prompt: str
    directory: Path
    """The worktree."""
    solution: Path
    """The directory of the solution in it, the only one that may change."""
    tools: Tools
    budget: SessionBudget
    seed: int = 0
    """Differs between workers, so that searches differ."""
    resume: str | None = None
    """The id of a session that was cut off, to go on with it."""
    system: str = ""
    """The system prompt: who the agent is and how it works here."""
    offered: tuple[Tool, ...] = ()
    """What agents with a mind of their own may ask for; the tuner uses `tools` itself."""
    view: View | None = None
    """What such an agent is shown; null for kinds that need no sandbox."""
    model: str | None = None
    effort: str | None = None
    max_answer_tokens: int | None = None
    """null: the agent's own."""
    roles: Mapping[str, AgentRole] = field(default_factory=dict)
    """Subagents by name, for kinds that have them."""
    command: str | None = None
    """Kind `command`: the command line's template."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Its placeholders."""
    submitted: Callable[[], int] = lambda: 0
    """How many candidates the session has submitted, for telling whether it goes on."""


@dataclass(frozen=True)
class Text:
    """Something said, for the log and the live view."""

    text: str


@dataclass(frozen=True)
class ToolUse:
    """A tool is about to be used."""

    name: str
    summary: str
    key: str = ""
    """Equal for two uses with the same input; empty where nobody counts."""


@dataclass(frozen=True)
class Usage:
    """What was spent since the last such event."""

    usd: float = 0.0
    tokens: int = 0
    turns: int = 0
    evaluations: int = 0


@dataclass(frozen=True)
class Alive:
    """Nothing new; a moment to look whether the session is to go on."""


@dataclass(frozen=True)
class Retry:
    """The session backs off and will try again."""

    reason: str
    after_s: float


@dataclass(frozen=True)
class End:
    """The last event of a session."""

    reason: Literal["exhausted", "stale", "budget", "interrupted", "done", "failed", "held", "refused", "crashed"]
    """exhausted: everything it can try is known; stale: no gain for long; failed: it cannot go on; held: the model is
    away for a while; refused: the model's side wants another credential; crashed: its process died. After held and
    crashed it can be resumed by its id."""
    text: str = ""


Event = Text | ToolUse | Usage | Retry | Alive | End


class AgentSession(Protocol):
    """One session of one agent on one problem."""

    @property
    def id(self) -> str:
        """Names the session in trailers; `Brief.resume` takes it."""

    @property
    def model(self) -> str:
        """What does the thinking, for the Model trailer."""

    def events(self) -> Generator[Event, None, None]:
        """Work, and say what happens. Ends with an `End`; closed before that, whatever it started ends. Called once."""

    def interrupt(self, *, at_once: bool = False) -> None:
        """End at the next boundary between trials or turns, or at once. From any thread, any number of times."""
