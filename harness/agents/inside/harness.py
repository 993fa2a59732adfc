"""The `harness` command inside an agent's sandbox: writes requests to files, which the harness executes outside.

`harness check | submit -m TEXT | history [WORDS] | docs WORDS | note TEXT | profile [WORKLOAD]` prints the answer. The
exit code is 1 if the request failed. The package is not in the sandbox, so this file imports only the standard library.
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
    history = verbs.add_parser("history", help="attempts of all workers, their results, and lessons")
    history.add_argument("query", nargs="*")
    verbs.add_parser("docs", help="search the documentation").add_argument("query", nargs="*")
    note = verbs.add_parser("note", help="record a lesson, in one line")
    note.add_argument("--contradicts", default="", metavar="ID", help="a lesson that a submission shows to be wrong")
    note.add_argument("text", nargs="+")
    counters = verbs.add_parser(
        "profile", help="hardware counters of the last submission that passed, and what limits it"
    )
    counters.add_argument("workload", nargs="*", help="its sizes or uuid; by default the one with the most data")
    options = vars(parser.parse_args(words))
    verb = options.pop("verb")
    return verb, {name: " ".join(value) if isinstance(value, list) else value for name, value in options.items()}


def main(words: list[str]) -> int:
    """Write a request, wait for its answer, print it, and return the exit code."""
    verb, arguments = arguments_of(words)
    name = uuid.uuid4().hex
    temporary_file, answer_file = REQUESTS / f".{name}.tmp", REQUESTS / f"{name}.answer"
    temporary_file.write_text(json.dumps({"tool": verb, "arguments": arguments}))
    temporary_file.rename(REQUESTS / f"{name}.request")
    while not answer_file.exists():  # the session has a deadline, so this wait needs none
        time.sleep(_POLL_S)
    answer = json.loads(answer_file.read_text())
    answer_file.unlink()
    sys.stdout.write(f"{answer['text']}\n")
    return 1 if answer["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
