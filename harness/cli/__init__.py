"""The command line: one file per group of commands, which is imported when a command runs."""

from __future__ import annotations

import importlib

import click

import harness

# Command -> (module, one line of help). The line is stored here so that `harness --help` imports no command.
_COMMANDS = {
    "init": ("harness.cli.init", "Create a workspace."),
    "doctor": ("harness.cli.doctor", "Check this machine and workspace, and print the commands that fix problems."),
    "start": ("harness.cli.start", "Run planner, workers, daemon and judges until done or stopped."),
    "attach": ("harness.cli.attach", "Follow a run that was started with --detach."),
    "stop": ("harness.cli.process_commands", "End a running `harness start` cleanly."),
    "daemon": ("harness.cli.process_commands", "Run the benchmark daemon alone."),
    "planner": ("harness.cli.process_commands", "Run the planner alone, replay a ledger, or simulate policies."),
    "worker": ("harness.cli.process_commands", "Run one worker alone."),
    "submit": ("harness.cli.submit", "Commit the solution of the current worktree and wait for its evaluation."),
    "evaluate": ("harness.cli.evaluate", "Judge a solution now, without the ledger."),
    "profile": ("harness.cli.evaluate", "Read the hardware counters of a solution that passed."),
    "problems": (
        "harness.cli.problem_commands.problems",
        "List, show, check and import problems, and compute their bounds.",
    ),
    "hardware": ("harness.cli.hardware", "List the hardware figures of bounds, and measure a GPU that has none."),
    "status": ("harness.cli.status", "Show processes, standings, recent gains, cost, and what needs your attention."),
    "log": ("harness.cli.log", "Show ledger entries."),
    "transcript": ("harness.cli.transcript", "Print the messages and tool uses of a worker's agent, with the costs."),
    "baseline": ("harness.cli.evaluate", "Measure a problem's baselines."),
    "review": ("harness.cli.merge_commands", "Show the facts for the review of a candidate."),
    "pr": ("harness.cli.merge_commands", "Create a champion's branch and pull request, with its proof."),
    "proof": ("harness.cli.merge_commands", "Check that the ledger proves the solutions in a range of commits."),
    "audit": ("harness.cli.audit", "Check that the ledger is complete and unchanged."),
    "report": ("harness.cli.output_files", "Write one self-contained HTML page about a run."),
    "serve": ("harness.cli.serve", "Show a run as a live page in a browser."),
    "export": ("harness.cli.output_files", "Write a champion as a solution.json for SOL-ExecBench."),
    "completion": ("harness.cli.completion", "Print the completion script of a shell."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(_COMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(harness.__version__, prog_name="harness")
@click.option("--debug", is_flag=True, help="Print a traceback if the command fails.")
def cli(*, debug: bool) -> None:
    """Optimise GPU kernels with coding agents, and prove the speed-ups."""
    del debug  # read by harness.__main__, which prints errors
