"""The tools that an agent gets: check, submit, history, docs, note, profile. They never raise."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from harness.agents.answers import attempts, outcome
from harness.agents.check_answers import check_outcome
from harness.agents.documentation import search
from harness.agents.others_work import differences
from harness.agents.session import Answer, Parameter, Submitted, Tool, Tools
from harness.errors import HarnessError
from harness.ledger.accounts import Spent
from harness.ledger.candidates import TriedCandidate
from harness.model.checking import ShownCode
from harness.model.verdict import Verdict

_LONGEST_MESSAGE = 2000
_LONGEST_NOTE = 400
_COMMIT = re.compile(r"[0-9a-f]{6,40}")
_SHOWN: tuple[ShownCode, ...] = get_args(ShownCode)

logger = logging.getLogger(__name__)


@dataclass
class Desk:
    """The tools of one session, and counts of their uses."""

    tools: Tools
    lessons: Callable[[], tuple[str, ...]]
    """Return the lessons about the problem and its family, one line each."""
    axes: dict[str, str]
    """Workload uuid -> its sizes in words."""
    hide: Callable[[str], str]
    """Replaces the host's paths in a message by those the agent sees."""
    profiled: Callable[[Submitted | None, str], Answer]
    """Profiles a candidate on the workload with this name."""
    spend: Callable[[Spent], None]
    submissions: int = 0
    duplicates: int = 0
    """In a row."""
    last_entry: int | None = None
    """`seq` of the entry of the last submission, which a lesson takes as its proof."""
    hacks: int = 0
    """Verdicts of REWARD_HACK."""
    passed: Submitted | None = None
    """The last submission of this session that PASSED."""
    answered_at: float = field(default_factory=time.monotonic)
    """When a tool's answer was given last, on the monotonic clock."""

    def offered(self) -> tuple[Tool, ...]:
        """The tools, as a session offers them."""
        message = Parameter("message", "What changed and why, in a line or two")
        words = Parameter("query", "Words to look for; empty for everything", needed=False)
        tried = Parameter("query", "Words to look for, or a commit's first digits; empty for everything", needed=False)
        text = Parameter("text", "The lesson, in one line")
        wrong = Parameter("contradicts", "The [id] of a lesson that your submission shows to be wrong", needed=False)
        show = Parameter(
            "show", "Code to show: `assembly` (CPU), `ptx` or `sass` (sealed CUDA); empty for none", needed=False
        )
        function = Parameter("function", "Part of the name of the function or kernel to show", needed=False)
        checking = self._tool(
            "check",
            "Build the solution as it stands and compare its outputs with the reference on all workloads, without "
            "timing, in seconds: compiler warnings, registers and spills, and the pattern of wrong elements.",
            (show, function),
            self.check,
        )
        return (
            *([checking] if self.tools.check is not None else []),
            self._tool(
                "submit",
                "Commit the solution directory as it stands and wait for the judge: verdict, times against baseline "
                "and bound, what limits the kernel. This is the only measurement.",
                (message,),
                self.submit,
            ),
            self._tool(
                "history",
                "Attempts of all workers on this problem, and lessons. With a commit: message, times per workload, and "
                "differences from the best other solution.",
                (tried,),
                self.history,
            ),
            self._tool(
                "docs", "Search the documentation pack.", (words,), lambda given: Answer(search(_text(given, "query")))
            ),
            self._tool(
                "note", "Record a one-line lesson for the next worker on this problem.", (text, wrong), self.note
            ),
            self._tool(
                "profile",
                "Hardware counters of your last submission that PASSED, and a sentence that names the bottleneck: "
                "shares of peak, occupancy and its limit, L2 hits, stalls, bank conflicts, spills. Takes up to 20 s "
                "beyond the queue.",
                (Parameter("workload", "Its sizes or uuid; empty for the one with the most data", needed=False),),
                lambda given: self.profiled(self.passed, _text(given, "workload").strip()),
            ),
        )

    def _tool(
        self,
        name: str,
        description: str,
        parameters: tuple[Parameter, ...],
        use: Callable[[Mapping[str, object]], Answer],
    ) -> Tool:
        def safely(given: Mapping[str, object]) -> Answer:
            try:
                answer = use(given)
            except HarnessError as error:
                answer = Answer(self.hide(str(error)), failed=True)
            except TimeoutError as error:
                answer = Answer(f"{error}; nothing is lost, go on with something else", failed=True)
            except Exception as error:  # an error of the harness must not end the session: log it and report it
                logger.exception("the tool %s failed", name)
                text = f"the harness made a mistake ({type(error).__name__}); try something else"
                answer = Answer(text, failed=True)
            self.answered_at = time.monotonic()
            return answer

        return Tool(name, description, parameters, safely)

    def submit(self, given: Mapping[str, object]) -> Answer:
        """Commit, wait for the entry, and explain it."""
        message = _text(given, "message")[:_LONGEST_MESSAGE] or "Submit a solution"
        with self.tools.turn():
            before = {attempt.tree: attempt for attempt in self.tools.history()}
            submitted = self.tools.commit(message)
        self.submissions += 1
        passed = [tried.speedup for tried in before.values() if tried.verdict is Verdict.PASSED and tried.speedup]
        again = submitted.tree in before
        self.duplicates = self.duplicates + 1 if again else 0
        if again:
            self.spend(Spent(duplicates=1))
        entry = self.tools.outcome(submitted)
        if entry is None:
            return Answer("the harness stops now; the submission is committed and will be judged", failed=True)
        if not again:
            self.spend(Spent(evaluations=1))
        if entry.verdict is Verdict.PASSED:
            self.passed = submitted
        self.last_entry = entry.seq
        self.hacks += entry.verdict is Verdict.REWARD_HACK
        text = outcome(entry, best=max(passed, default=None), axes=self.axes)
        if again:
            text = f"this exact solution was submitted before (change something first):\n{text}"
        return Answer(self.hide(text), failed=entry.verdict is not Verdict.PASSED)

    def check(self, given: Mapping[str, object]) -> Answer:
        """Have the judge build the solution and compare its outputs, without timing."""
        show = next((name for name in _SHOWN if name == _text(given, "show")), None)
        if show is None:
            return Answer(f"`show` is one of {', '.join(filter(None, _SHOWN))}, or empty", failed=True)
        assert self.tools.check is not None  # noqa: S101 - offered only then
        reply = self.tools.check(show, _text(given, "function"))
        if reply is None:
            return Answer("the harness stops now; nothing was checked", failed=True)
        if reply.answer is None:
            return Answer(reply.error or "no answer", failed=True)
        self.hacks += reply.answer.verdict is Verdict.REWARD_HACK
        return Answer(
            self.hide(check_outcome(reply.answer, axes=self.axes)), failed=reply.answer.verdict is not Verdict.PASSED
        )

    def history(self, given: Mapping[str, object]) -> Answer:
        """Return the attempts and lessons that match the query; with one commit's digits, that attempt in full."""
        query, tried = _text(given, "query").strip(), self.tools.history()
        if _COMMIT.fullmatch(query):
            matches = [candidate for candidate in tried if candidate.commit.startswith(query)]
            if len(matches) == 1:
                return Answer(self.hide(self._attempt_in_full(matches[0], tried)))
        return Answer(attempts(tried, self.lessons(), query))

    def _attempt_in_full(self, attempt: TriedCandidate, tried: Sequence[TriedCandidate]) -> str:
        """Return an attempt's line, its times per workload, and its differences from the best other passed attempt."""
        entry = self.tools.entry_of(attempt.tree)
        lines = [attempts([attempt], (), "")]
        if entry is not None:
            lines.append(outcome(entry, best=None, axes=self.axes))
        passed = (candidate for candidate in tried if candidate.verdict is Verdict.PASSED and candidate.commit)
        others = (candidate for candidate in passed if candidate is not attempt)
        best = max(others, key=lambda candidate: candidate.speedup or 0.0, default=None)
        if best is not None:
            changes = differences(self.tools.sources(best.commit), self.tools.sources(attempt.commit))
            lines.append(f"differences from {best.commit[:10]} ({best.worker}, {best.speedup or 0:.3f}x):\n{changes}")
        return "\n".join(lines)

    def note(self, given: Mapping[str, object]) -> Answer:
        """Record a lesson."""
        text = " ".join(_text(given, "text").split())[:_LONGEST_NOTE]
        if not text:
            return Answer("a note needs its text", failed=True)
        contradicts = _text(given, "contradicts").strip("[] ") or None
        if contradicts is not None and self.last_entry is None:
            return Answer("a submission must show that the lesson is wrong: submit first", failed=True)
        self.tools.note(text, self.last_entry, contradicts)
        return Answer("noted")


def _text(given: Mapping[str, object], name: str) -> str:
    value = given.get(name, "")
    return value if isinstance(value, str) else ""
