"""Command-line agents: the form of their prompts, their requirements on the machine, and the stored transcripts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from harness.agents import confinement
from harness.agents.command import CommandSession, bound_paths, check_command, variables
from harness.agents.session import Answer, Brief, End, Event, Tool, ToolUse
from harness.agents.transcripts import command_log
from harness.errors import ConfigurationError
from harness.ledger.accounts import Account, Spent, write_account
from harness.model.config import AgentConfig
from tests.site import Site

PROMPT = 'Assignment: make it faster.\nIt\'s "quoted", has a $HOME, `ticks` and an emoji: \N{ROCKET}.'
# One program for both ways to pass a prompt to a command-line agent.
AGENT = """\
import os, pathlib, subprocess, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2])) if "--prompt-file" in sys.argv else {}
if options:
    prompt = pathlib.Path(options["--prompt-file"]).read_text()
elif sys.argv[-1] == "-":
    prompt = sys.stdin.read()
else:
    prompt = sys.argv[-1]
print("mode", os.environ["AGENT_MODE"], "host", os.environ["FROM_HOST"])
print("prompt ends:", repr(prompt.strip()[-40:]))
(pathlib.Path(__file__).parent / "settings").read_text()
try:
    (pathlib.Path(__file__).parent / "written").write_text("x")
except OSError:
    print("read-only")
print("I submit now", flush=True)
print("answer:", subprocess.run(["harness", "submit", "-m", "wider"], capture_output=True, text=True).stdout)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "opt" / "my agent"
    directory.mkdir(parents=True)
    (directory / "agent.py").write_text(AGENT)
    (directory / "settings").write_text("")
    monkeypatch.setenv("FROM_HOST", "passed on")
    return directory


def declared(program: Path, command: str) -> AgentConfig:
    env = {"AGENT_MODE": "batch", "FROM_HOST": None}
    return AgentConfig(kind="command", command=command, binds=(str(program),), env=env)


def session(site: Site, agent: AgentConfig, *, resume: str | None = None) -> CommandSession:
    """Return a session as a worker opens it; its only tool answers in place of the judge."""
    directory = site.workspace.state / "agents" / "w01"
    requests, problem = directory / "requests", site.root / "problems/t/one"
    requests.mkdir(parents=True, exist_ok=True)

    def submit(arguments: Mapping[str, object]) -> Answer:
        return Answer(f"PASSED 1.5x: {arguments['message']}\nthe second line")

    view = confinement.View(
        problem="t/one",
        directory=problem,
        solution=directory / "solution",
        target="cpu",
        reading=directory / "view",
        home=directory / "home",
        requests=requests,
        binds=bound_paths(agent, site.root),
        environment=variables(agent),
    )
    brief = Brief(
        role="worker",
        prompt=PROMPT,
        agent=agent,
        solution=view.solution,
        resume=resume,
        offered=(Tool("submit", "", {}, submit),),
        view=view,
    )
    return CommandSession(brief)


def run(opened: CommandSession) -> list[Event]:
    return list(opened.events())


@pytest.mark.parametrize("style", ["--yes {prompt}", "exec - < {prompt_file}", "--model x --prompt-file {prompt_file}"])
def test_an_agent_gets_its_prompt_in_its_own_way_and_is_shown_what_it_declares(
    site: Site, program: Path, style: str
) -> None:
    agent = declared(program, f"python3 '{program}/agent.py' {style}")
    check_command(agent, site.root)
    opened = session(site, agent)
    events = run(opened)
    printed = command_log(site.workspace.state / "agents" / "w01", opened.id).read_text()
    assert events[-1] == End("done", events[-1].text if isinstance(events[-1], End) else ""), printed
    assert [event.name for event in events if isinstance(event, ToolUse)] == ["submit"]
    assert "mode batch host passed on\n" in printed
    assert f"prompt ends: {PROMPT[-40:]!r}\n" in printed
    assert "read-only\n" in printed
    assert "answer: PASSED 1.5x: wider\n" in printed
    assert not (program / "written").exists()


def test_transcripts_are_kept_for_each_session_and_printed(site: Site, program: Path) -> None:
    agent = declared(program, f"python3 '{program}/agent.py' --yes {{prompt}}")
    first = session(site, agent)
    run(first)
    run(session(site, agent, resume=first.id))
    second = session(site, replace_command(agent, "echo no licence >&2; exit 3"))
    assert run(second)[-1] == End("failed", "exit code 3: no licence")
    for opened, at in ((first, "01"), (second, "02")):
        write_account(site.workspace, account_of(opened.id, began=f"2026-01-{at}T00:00:00.000+00:00"))
    shown = site.call("transcript", "w01").stdout
    assert f"session {second.id} of w01 on t/one (command, command)\n" in shown
    assert "output    no licence\n" in shown
    assert "open: 0.2500 USD, 3 answers, 100 tokens read, 20 written, 1 evaluation\n" in shown
    before = site.call("transcript", "w01", "--session", first.id[:8]).stdout.splitlines()
    kinds = [line[10:20].strip() for line in before if line[10:20].strip() and line[20:21] != " "][1:-1]
    assert kinds == ["output", "tool", "result", "output", "tool", "result", "output"], before
    assert [line for line in before if "tool      submit message=wider" in line]
    assert before.count(f"{' ' * 20}the second line") == 4, "each answer, and what the program prints of it"
    items = json.loads(site.call("transcript", "w01", "--session", first.id, "--json").stdout)["items"]
    assert items[0]["text"].endswith("I submit now")
    listed = json.loads(site.call("transcript", "w01", "--list", "--json").stdout)
    assert [(row["session"], row["transcript"]) for row in listed] == [(first.id, "yes"), (second.id, "yes")]


def replace_command(agent: AgentConfig, command: str) -> AgentConfig:
    return agent.model_copy(update={"command": command})


def account_of(session: str, *, began: str) -> Account:
    spent = Spent(usd=0.25, input_tokens=100, output_tokens=20, turns=3, evaluations=1)
    account = Account(session, "main", "w01", "t/one", session, "command", began, "command", None, spent)
    return replace(account, id=f"account-{session}")


def test_a_missing_transcript_is_reported_with_the_existing_ones(site: Site) -> None:
    unknown_worker = site.call("transcript", "w09")
    assert unknown_worker.returncode == 1
    message = "there is no session of w09 in run main; workers with sessions: none\n  `harness start` opens sessions\n"
    assert message in unknown_worker.stdout
    write_account(site.workspace, replace(account_of("s1", began="2026-01-01"), agent="tuner"))
    tuner = site.call("transcript", "w01")
    assert tuner.returncode == 1
    assert "session s1 of w01 has no transcript: its kind is tuner" in tuner.stdout
    unknown_worker = site.call("transcript", "w09")
    assert "workers with sessions: w01\n  harness transcript w01\n" in unknown_worker.stdout
    unknown_session = site.call("transcript", "w01", "--session", "s9")
    assert "`harness transcript w01 --list` lists its sessions" in unknown_session.stdout
    home = site.workspace.state / "agents" / "w01" / "home/.claude/projects/-task"
    home.mkdir(parents=True)
    (home / "s2.jsonl").write_text('not json\n{"type": "user", "message": {"content": [3, {"type": "text"}]}}\n[]\n')
    write_account(site.workspace, replace(account_of("s2", began="2026-01-02"), agent="claude"))
    broken = site.call("transcript", "w01")
    assert broken.returncode == 0, "an agent can write into its home"
    assert "prompt" in broken.stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"binds": ("/missing/my-agent",)}, "agent.binds: no such file or directory: /missing/my-agent"),
        ({"binds": ("relative",)}, "agent.binds: no such file or directory: relative"),
        ({"binds": ("/",)}, "agent.binds: / would show the agent the workspace"),
        (
            {"env": {"NOT_SET_HERE": None}},
            "agent.env.NOT_SET_HERE: NOT_SET_HERE is not set in the environment of the harness",
        ),
        ({"env": {"A B": "x"}}, "agent.env: `A B` is not a valid name of a variable"),
        ({"command": "my-agent {prompt} {what}"}, "agent.command: unknown placeholder what"),
    ],
)
def test_what_cannot_be_declared_is_refused_before_anything_starts(
    site: Site, changes: dict[str, object], message: str
) -> None:
    agent = AgentConfig(kind="command", command="my-agent {prompt}").model_copy(update=changes)
    with pytest.raises(ConfigurationError) as refused:
        check_command(agent, site.root)
    assert str(refused.value).startswith(message)
