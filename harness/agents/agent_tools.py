"""The tools of an agent: check, submit, history, docs, note, profile. Their answers report errors; they never raise."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from harness.agents.answers import attempts_text, check_outcome, outcome_text
from harness.agents.documentation import search
from harness.agents.model_access.meter import Meter
from harness.agents.others_work import differences
from harness.agents.session import Answer, Tool, Tools
from harness.errors import HarnessError
from harness.git.solution_commits import Submission
from harness.ledger.accounts import Spent
from harness.ledger.candidates import TriedCandidate
from harness.model.counters import report_lines
from harness.model.judging import ShownCode
from harness.model.verdict import Verdict

_LONGEST_MESSAGE = 2000
_LONGEST_NOTE = 400
_COMMIT = re.compile(r"[0-9a-f]{6,40}")
_SHOWN: tuple[ShownCode, ...] = get_args(ShownCode)
_WITHOUT_COUNTERS = "Use the result of `submit`: the share of the bound per workload, and which sizes are worst."

logger = logging.getLogger(__name__)


@dataclass
class AgentTools:
    """The tools of one session, and counts of their uses."""

    tools: Tools
    target: str
    """Such as `cpu` or `h200`."""
    axes: dict[str, str]
    """Workload uuid -> its sizes as text."""
    hide: Callable[[str], str]
    """Replace the host's paths in a message with the paths inside the sandbox."""
    meter: Meter
    """The session's account."""
    take_solution: Callable[[], None] = lambda: None
    """Copy the agent's files into the worktree, before they are committed or checked."""
    after_outcome: Callable[[], None] = lambda: None
    """Called after each outcome of a submission."""
    submissions: int = 0
    duplicates: int = 0
    """Consecutive submissions of solutions that were submitted before."""
    last_entry: int | None = None
    """`seq` of the entry of the last submission, which proves a lesson."""
    reward_hacks: int = 0
    """Number of REWARD_HACK verdicts."""
    passed: Submission | None = None
    """The last submission of this session that PASSED."""

    def offered(self) -> tuple[Tool, ...]:
        """Return the tools in the order in which a session offers them."""
        tools = (
            self._tool(
                self.check,
                "Build the present solution and compare its outputs with the reference on all workloads, without "
                "timing, in seconds: compiler warnings, registers and spills, and the pattern of wrong elements.",
                show="Code to show: `assembly` (CPU), `ptx` or `sass` (sealed CUDA); empty for none",
                function="Part of the name of the function or kernel to show",
            ),
            self._tool(
                self.submit,
                "Commit the present solution directory and wait for the judge: verdict, times against baseline "
                "and bound, and what limits the kernel. This is the only measurement.",
                "message",
                message="What changed and why, in a line or two",
            ),
            self._tool(
                self.history,
                "Attempts of all workers on this problem, and lessons. With a commit: message, times per workload, and "
                "differences from the best other solution.",
                query="Words to search for, or a commit's first digits; empty for everything",
            ),
            self._tool(self.docs, "Search the documentation pack.", query="Words to search for; empty for everything"),
            self._tool(
                self.note,
                "Record a one-line lesson for the next worker on this problem.",
                "text",
                text="The lesson, in one line",
                contradicts="The [id] of a lesson that your submission shows to be wrong",
            ),
            self._tool(
                self.profile,
                "Hardware counters of your last submission that PASSED, and a sentence that names the bottleneck: "
                "shares of peak, occupancy and its limit, L2 hits, stalls, bank conflicts, spills. Takes up to 20 s "
                "beyond the queue.",
                workload="Its sizes or uuid; empty for the one with the most data",
            ),
        )
        return tools if self.tools.check is not None else tools[1:]

    def _tool(
        self, use: Callable[[Mapping[str, object]], Answer], description: str, *required: str, **parameters: str
    ) -> Tool:
        """Return the tool that a method implements, from the descriptions of its parameters."""
        name = use.__name__
        properties = {name: {"type": "string", "description": text} for name, text in parameters.items()}
        schema = {"type": "object", "properties": properties, "required": list(required)}

        def safe_use(arguments: Mapping[str, object]) -> Answer:
            try:
                answer = use(arguments)
            except HarnessError as error:
                answer = Answer(self.hide(str(error)), failed=True)
            except TimeoutError as error:
                answer = Answer(f"{error}; your files are unchanged, continue with something else", failed=True)
            except Exception as error:  # an error of the harness must not end the session: log it and report it
                logger.exception("the tool %s failed", name)
                text = f"internal error of the harness ({type(error).__name__}); try something else"
                answer = Answer(text, failed=True)
            self.meter.record_activity()
            return answer

        return Tool(name, description, schema, safe_use)

    def submit(self, arguments: Mapping[str, object]) -> Answer:
        """Commit the solution, wait for its entry, and return the entry as text."""
        message = _text(arguments, "message")[:_LONGEST_MESSAGE] or "Submit a solution"
        with self.tools.turn():
            earlier = {attempt.tree: attempt for attempt in self.tools.history()}
            self.take_solution()
            submitted = self.tools.commit(message)
        self.submissions += 1
        speedups = [old.speedup for old in earlier.values() if old.verdict is Verdict.PASSED and old.speedup]
        is_duplicate = submitted.tree in earlier
        self.duplicates = self.duplicates + 1 if is_duplicate else 0
        if is_duplicate:
            self.meter.add(Spent(duplicates=1))
        entry = self.tools.outcome(submitted)
        self.after_outcome()
        if entry is None:
            return Answer("the harness stops now; the submission is committed and will be judged", failed=True)
        if not is_duplicate:
            self.meter.add(Spent(evaluations=1))
        if entry.verdict is Verdict.PASSED:
            self.passed = submitted
        self.last_entry = entry.seq
        self.reward_hacks += entry.verdict is Verdict.REWARD_HACK
        text = outcome_text(entry, best=max(speedups, default=None), axes=self.axes)
        if is_duplicate:
            text = f"this exact solution was submitted before (change something first):\n{text}"
        return Answer(self.hide(text), failed=entry.verdict is not Verdict.PASSED)

    def check(self, arguments: Mapping[str, object]) -> Answer:
        """Let the judge build the solution and compare its outputs, without timing."""
        show = next((name for name in _SHOWN if name == _text(arguments, "show")), None)
        if show is None:
            return Answer(f"`show` is one of {', '.join(filter(None, _SHOWN))}, or empty", failed=True)
        assert self.tools.check is not None  # noqa: S101 - offered only then
        self.take_solution()
        reply = self.tools.check(show, _text(arguments, "function"))
        if reply is None:
            return Answer("the harness stops now; nothing was checked", failed=True)
        if reply.answer is None:
            return Answer(reply.error or "no answer", failed=True)
        self.reward_hacks += reply.answer.verdict is Verdict.REWARD_HACK
        return Answer(
            self.hide(check_outcome(reply.answer, axes=self.axes)), failed=reply.answer.verdict is not Verdict.PASSED
        )

    def history(self, arguments: Mapping[str, object]) -> Answer:
        """Return the attempts and lessons that match the query; a commit's first digits select one attempt in full."""
        query, candidates = _text(arguments, "query").strip(), self.tools.history()
        if _COMMIT.fullmatch(query):
            matches = [candidate for candidate in candidates if candidate.commit.startswith(query)]
            if len(matches) == 1:
                return Answer(self.hide(self._attempt_in_full(matches[0], candidates)))
        return Answer(attempts_text(candidates, self.tools.lessons(), query))

    def _attempt_in_full(self, attempt: TriedCandidate, candidates: Sequence[TriedCandidate]) -> str:
        """Return an attempt's line, its times per workload, and its differences from the best other passed attempt."""
        entry = self.tools.entry_of(attempt.tree)
        lines = [attempts_text([attempt], (), "")]
        if entry is not None:
            lines.append(outcome_text(entry, best=None, axes=self.axes))
        passed = (candidate for candidate in candidates if candidate.verdict is Verdict.PASSED and candidate.commit)
        other_passed = (candidate for candidate in passed if candidate is not attempt)
        best = max(other_passed, key=lambda candidate: candidate.speedup or 0.0, default=None)
        if best is not None:
            changes = differences(self.tools.sources(best.commit), self.tools.sources(attempt.commit))
            lines.append(f"differences from {best.commit[:10]} ({best.worker}, {best.speedup or 0:.3f}x):\n{changes}")
        return "\n".join(lines)

    def docs(self, arguments: Mapping[str, object]) -> Answer:
        """Search the documentation pack."""
        return Answer(search(_text(arguments, "query")))

    def profile(self, arguments: Mapping[str, object]) -> Answer:
        """Return the counters of the last submission that PASSED, or the reason why there are none."""
        if self.target == "cpu":
            return Answer(f"hardware counters are not available on the target cpu. {_WITHOUT_COUNTERS}", failed=True)
        if self.tools.profile is None:
            return Answer(f"no judge is available for profiles. {_WITHOUT_COUNTERS}", failed=True)
        if self.passed is None:
            return Answer("only a solution that PASSED can be profiled; submit one first", failed=True)
        name, workload = _text(arguments, "workload").strip(), None
        if name:
            matches = [uuid for uuid, sizes in self.axes.items() if name == sizes or uuid.startswith(name)]
            if len(matches) != 1:
                choices = "; ".join(f"{uuid[:8]} ({sizes})" for uuid, sizes in self.axes.items())
                text = f"{len(matches)} workloads match {name[:80]!r}; expected one of: {choices}"
                return Answer(text, failed=True)
            workload = matches[0]
        report = self.tools.profile(self.passed, workload)
        if report is None:
            return Answer("the harness stops now", failed=True)
        lines = [*report_lines(report), *([] if report.kernels else [_WITHOUT_COUNTERS])]
        return Answer("\n".join(lines), failed=not report.kernels)

    def note(self, arguments: Mapping[str, object]) -> Answer:
        """Record a lesson of at most 400 characters."""
        text = " ".join(_text(arguments, "text").split())[:_LONGEST_NOTE]
        if not text:
            return Answer("`text` is empty; write the lesson in one line", failed=True)
        contradicts = _text(arguments, "contradicts").strip("[] ") or None
        if contradicts is not None and self.last_entry is None:
            return Answer("a submission must show that the lesson is wrong: submit first", failed=True)
        self.tools.note(text, self.last_entry, contradicts)
        return Answer("noted")


def _text(arguments: Mapping[str, object], name: str) -> str:
    value = arguments.get(name, "")
    return value if isinstance(value, str) else ""
