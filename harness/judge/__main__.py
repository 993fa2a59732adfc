"""`python -m harness.judge --device cpu --cache DIR --sandbox bubblewrap|none`: one judge process.

The process reads requests from stdin and writes answers to stdout, one JSON object per line, in the format of
`harness.model.judging`. It exits at the end of stdin, on SIGTERM, and when its parent exits. Diagnostics go to stderr.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported: idle workers do not spin

import argparse
import ctypes
import signal
import sys
from pathlib import Path

from pydantic import BaseModel

from harness.errors import EXIT_INTERNAL_ERROR, ConfigurationError, HarnessError, HostFaultError
from harness.failpoints import failpoint
from harness.judge.devices.opening import open_device
from harness.judge.host_faults import host_fault
from harness.judge.isolation import sandbox
from harness.judge.judge import Judge
from harness.judge.request_inbox import RequestInbox
from harness.judge.solution_check import WaitingChecks, check_solution
from harness.model.judging import CheckRequest, JudgeAnswer, JudgeReady, JudgeRequest
from harness.workspace.crash_report import report_crash

_PR_SET_PDEATHSIG = 1


class _Terminated(BaseException):
    """Raised on SIGTERM: unwinds the stack, so that every runner is ended."""


def _on_term(*_: object) -> None:
    raise _Terminated


def _send(event: BaseModel) -> None:
    sys.stdout.write(event.model_dump_json() + "\n")
    sys.stdout.flush()


def _answer(judge: Judge, request: JudgeRequest) -> JudgeAnswer:
    """Return the judge's answer.

    Raises:
        HostFaultError: a `ConfigurationError` of a judge that has already started: part of this machine is missing or
            broken now.
    """
    try:
        return judge.answer(request, _send)
    except ConfigurationError as error:
        raise HostFaultError(error.message, where=error.where, remedy=error.remedy) from error


def _serve(arguments: argparse.Namespace) -> None:
    sandbox.check(arguments.sandbox)
    failpoint("judge.before_device")
    device = open_device(arguments.device, cache=arguments.cache, sandbox=arguments.sandbox)
    inbox = RequestInbox(sys.stdin.fileno())

    def check(request: CheckRequest) -> None:
        _send(check_solution(request, device, cache_dir=arguments.cache, sandbox=arguments.sandbox))

    def check_between_batches(request: CheckRequest) -> None:
        check(request)
        device.runners.after_check()

    try:
        checks = WaitingChecks(check_between_batches, inbox.next_check)
        judge = Judge(device, cache_dir=arguments.cache, sandbox=arguments.sandbox, checks=checks)
    except BaseException:
        device.close()
        raise
    try:
        _send(JudgeReady(target=device.hardware.target, device=device.record(), environment=judge.environment))
        inbox.start()
        while (request := inbox.next()) is not None:
            if isinstance(request, CheckRequest):
                check(request)
                device.runners.start_standby()
                continue
            answer = _answer(judge, request)
            failpoint("judge.answered")
            _send(answer)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the process is ending already
        judge.close()


def main() -> None:
    """Parse the command line and answer requests until stdin ends."""
    parser = argparse.ArgumentParser(prog="harness.judge", description="One judge process; see docs/judge.md.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--sandbox", choices=("bubblewrap", "none"), default="bubblewrap")
    arguments = parser.parse_args()
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(0)  # the parent exited before the call of prctl, so the signal will not come
    signal.signal(signal.SIGTERM, _on_term)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C: it closes this process's stdin
    try:
        _serve(arguments)
    except (_Terminated, BrokenPipeError):
        sys.exit(0)
    except HarnessError as error:
        sys.stderr.write(f"harness judge: {error}\n")
        sys.exit(error.exit_code)
    except Exception as error:  # noqa: BLE001 - outermost handler of the process: a defect gets a crash report
        fault = host_fault(error)
        sys.stderr.write(f"harness judge: {fault or report_crash(error)}\n")
        sys.exit(fault.exit_code if fault else EXIT_INTERNAL_ERROR)


if __name__ == "__main__":
    main()
