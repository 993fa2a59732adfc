"""Inside an agent's sandbox: the `harness` verbs, as requests in files that the harness carries out outside.

`harness check | submit -m TEXT | history [WORDS] | docs WORDS | note TEXT | profile [WORKLOAD]`. Prints the answer;
the exit code is 1 when the request failed. Runs from a directory of its own inside the sandbox, so it imports nothing
of the harness.
"""

import argparse
import json
import sys
import time
import uuid
from pathlib import Path

REQUESTS = Path("/run/harness/requests")
_POLL_S = 0.1


def arguments_of(words: list[str]) -> tuple[str, dict[str, str]]:
    """Return the verb and its arguments."""
    parser = argparse.ArgumentParser(prog="harness", description="Requests of an agent to the harness.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    check = verbs.add_parser("check", help="build and compare outputs with the reference, without timing")
    check.add_argument("--show", default="", choices=["assembly", "ptx", "sass"], help="show a function's code")
    check.add_argument("--function", default="", help="part of the name of that function")
    submit = verbs.add_parser("submit", help="commit the solution and wait for its evaluation")
    submit.add_argument("-m", "--message", default="Submit a solution", help="what changed and why")
    verbs.add_parser("history", help="attempts of all workers, their results, and lessons").add_argument(
        "query", nargs="*"
    )
    verbs.add_parser("docs", help="search the documentation").add_argument("query", nargs="*")
    note = verbs.add_parser("note", help="record a lesson, in one line")
    note.add_argument("--contradicts", default="", metavar="ID", help="a lesson that a submission shows to be wrong")
    note.add_argument("text", nargs="+")
    counters = verbs.add_parser(
        "profile", help="hardware counters of the last submission that passed, and what limits it"
    )
    counters.add_argument("workload", nargs="*", help="its sizes or uuid; by default the one with the most data")
    given = vars(parser.parse_args(words))
    verb = given.pop("verb")
    return verb, {name: " ".join(value) if isinstance(value, list) else value for name, value in given.items()}


def main(words: list[str]) -> int:
    """Ask, wait, print."""
    verb, given = arguments_of(words)
    name = uuid.uuid4().hex
    fresh, answer = REQUESTS / f".{name}.tmp", REQUESTS / f"{name}.answer"
    fresh.write_text(json.dumps({"tool": verb, "arguments": given}))
    fresh.rename(REQUESTS / f"{name}.request")
    while not answer.exists():  # no deadline: the session has one
        time.sleep(_POLL_S)
    said = json.loads(answer.read_text())
    answer.unlink()
    sys.stdout.write(f"{said['text']}\n")
    return 1 if said["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
