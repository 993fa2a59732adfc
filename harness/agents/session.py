"""The protocol between a worker and its agent: a model, a program, or a search.

A worker creates a `Brief`, opens a session of the configured kind with it, and iterates over the session's events. The
session acts only through the brief's directory and its `tools`; it does not commit or measure by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from harness.agents.confinement import View
from harness.agents.kernel_facts import KernelFacts
from harness.agents.others_work import Sources
from harness.git.solution_commits import Submission
from harness.ledger.accounts import Spent
from harness.ledger.candidates import TriedCandidate
from harness.model.config import AgentConfig
from harness.model.counters import CounterReport
from harness.model.entry import Entry
from harness.model.judging import CheckReply, ShownCode


@dataclass(frozen=True)
class Tools:
    """The operations that the harness executes for a session."""

    commit: Callable[[str], Submission]
    """Commit the present solution with a message. Raises FormatError if the solution is not valid, RepositoryError if
    other files were changed."""
    outcome: Callable[[Submission], Entry | None]
    """Wait for the candidate's entry; None if the worker must stop first."""
    history: Callable[[], tuple[TriedCandidate, ...]]
    """Return the candidates of all workers for this problem and target, judged or in progress."""
    note: Callable[[str, int | None, str | None], None]
    """Record a one-line lesson: its text, `seq` of the entry that proves it, the id of a lesson that it contradicts."""
    turn: Callable[[], AbstractContextManager[None]]
    """A lock for the choice from `history` and the commit, so that two workers do not choose the same candidate."""
    profile: Callable[[Submission, str | None], CounterReport | None] | None = None
    """Order the counters of a candidate on a workload (its uuid; None: the one with the most data) from the judge.
    Returns None if the worker must stop first; raises TimeoutError. The field is None if no daemon runs."""
    lessons: Callable[[], tuple[str, ...]] = tuple
    """Return the lessons about the problem and its family, one line each."""
    sources: Sources = lambda _: {}
    """Read the solution of a commit: its text files by name."""
    entry_of: Callable[[str], Entry | None] = lambda _: None
    """Return the ledger's entry of a candidate's tree id."""
    champion: Callable[[], str | None] = lambda: None
    """Return the champion's tree id."""
    check: Callable[[ShownCode, str], CheckReply | None] | None = None
    """Check the present solution: (code to show, function). Returns None if the worker must stop first; raises
    TimeoutError if no judge is ready. The field is None if checks are not available."""
    facts: Callable[[], KernelFacts | None] = lambda: None
    """Return the present baseline times, bounds and times of the champion; None if they are not collected."""


@dataclass(frozen=True)
class Answer:
    """The answer of a tool: a few lines of text, for a model or a terminal."""

    text: str
    failed: bool = False


@dataclass(frozen=True)
class Tool:
    """A tool that a session offers to its agent."""

    name: str
    description: str
    schema: Mapping[str, object]
    """The JSON schema of the arguments."""
    use: Callable[[Mapping[str, object]], Answer]
    """Called in the thread that iterates over the session's events. Does not raise."""


@dataclass(frozen=True)
class Brief:
    """The input of a session."""

    role: Literal["worker", "planner"]
    prompt: str
    agent: AgentConfig
    """Sets model, effort, subagents, command and the limits of the session, as far as its kind supports them."""
    solution: Path
    """The solution directory in the worktree, the only one that may change."""
    tools: Tools | None = None
    """None for the planner."""
    worker: str = ""
    seed: int = 0
    """Differs between workers, so that their searches differ."""
    resume: str | None = None
    """The id of an interrupted session to resume."""
    system: str = ""
    """The system prompt."""
    offered: tuple[Tool, ...] = ()
    """The tools for agents of kind `claude` and `command`; a tuner calls `tools` directly."""
    view: View | None = None
    """The sandbox of the agent; None for kinds that need no sandbox."""

    submitted: Callable[[], int] = lambda: 0
    """Return the number of candidates that the session has submitted."""


@dataclass(frozen=True)
class Text:
    """A message of the agent, for the log and the live view."""

    text: str


@dataclass(frozen=True)
class ToolUse:
    """The beginning of a tool's use."""

    name: str
    summary: str
    key: str = ""
    """Equal for two uses with the same input; empty for a tool whose repeated uses are not counted."""


@dataclass(frozen=True)
class Usage:
    """The usage since the last `Usage` event."""

    spent: Spent


@dataclass(frozen=True)
class Alive:
    """No news; the worker checks whether the session may continue."""


@dataclass(frozen=True)
class Retry:
    """The session backs off and retries."""

    reason: str
    after_s: float


@dataclass(frozen=True)
class End:
    """The last event of a session."""

    reason: Literal["exhausted", "stale", "budget", "interrupted", "done", "failed", "held", "refused", "crashed"]
    """exhausted: all combinations were tried; stale: no recent gain; failed: the session cannot continue; held: the
    model API is not available for some time; refused: the model API rejects the credential; crashed: the process
    ended. A session can be resumed by its id after `held` and `crashed`."""
    text: str = ""


Event = Text | ToolUse | Usage | Retry | Alive | End


class AgentSession(Protocol):
    """One session of one agent on one problem."""

    id: str
    """The id for commit trailers and for `Brief.resume`."""
    model: str
    """The name of the model or search method, for the Model trailer."""

    def events(self) -> Generator[Event, None, None]:
        """Run the session and yield its events; the last one is an `End`. Called once.

        Closing the generator earlier ends all processes of the session.
        """

    def interrupt(self, *, at_once: bool = False) -> None:
        """End the session before the next trial or turn, or at once. Thread-safe and idempotent."""
