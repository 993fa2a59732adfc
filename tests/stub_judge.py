"""A judge with the real protocol that times nothing: it derives its figures from the solution that it judges.

It stands in for `python -m harness.judge` in tests of the code around the judge. Directives in a candidate's files
control its answer, as `stub: word` or `stub: word=value`:

    speedup=1.5     the speed-up it reports (default: derived from the files, 0.90 to 1.39)
    verdict=TIMEOUT a verdict other than PASSED
    kill            kill itself with SIGKILL; kill-once: only the first time (a file in the cache records it)
    hang            never answer
    exit=3          write a message to stderr; exit with this code
    garbage         answer with a line that is not the protocol
    hold=FILE       answer when FILE exists
    takes=1.5       answer after this many seconds
    binary=WORD     the identity of its compiled code; the stub does not measure a binary that the request lists

Directives of a problem (in its definition's description) apply to its baseline. With `two-clocks`, a sealed clock
measures the baseline too, and eager is the fastest on that clock. With `no-compile`, the baseline lacks
`torch.compile`, as on a machine without a compiler. The answer to a check is the candidate's verdict. The stub appends
each request to the file `$STUB_JUDGE_REQUESTS`, if that is set: one JSON object per line, with the time in seconds
since 1970.

`$STUB_JUDGE_VERSION` is the seed of the judge's version; `$STUB_JUDGE_ANSWERS_AS` replaces it in answers only.
`$STUB_JUDGE_PROTOCOL` is the protocol version in its messages; `$STUB_JUDGE_ANSWERS_IN` replaces it in answers only.
While the file `$STUB_JUDGE_FAULT` exists, the stub simulates a fault of the machine: it ends with the exit code and the
message in that file. A candidate's `fault=FILE` has the same effect on the evaluation of that candidate only.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.failpoints import failpoint

BLOCKS = 12
EAGER_US = 120.0
COMPILE_US = 100.0
SEALED_EAGER_US = 60.0
SEALED_COMPILE_US = 90.0
SOL_US = 40.0
# Upper 98 % quantiles of Student's t by degrees of freedom, (blocks - 1) times the number of workloads.
T98 = {
    11: 2.328139833481463,
    22: 2.1828926498742893,
    33: 2.1381587471270334,
    44: 2.1164379072450505,
    55: 2.10360676978025,
    66: 2.0951353585637627,
}
_DIRECTIVE = re.compile(r"stub: ([a-z-]+)(?:=(\S+))?")
_PR_SET_PDEATHSIG = 1

Json = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--sandbox", required=True)
    options, _ = parser.parse_known_args()
    end_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    stand_in()
    threading.Thread(target=_end_with_stdin, args=(lines := _Lines(),), daemon=True).start()
    judge = Stub(options.device, options.cache, options.sandbox)
    failpoint("judge.before_device")
    send(judge.ready())
    for request in lines:
        judge.serve(request)


def stand_in() -> None:
    """Start a child that stands in for the runner: in the judge's process group, killed with the judge."""
    judge = os.getpid()
    if os.fork() == 0:
        end_with_parent(signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while os.getppid() == judge:
            signal.pause()
        os._exit(0)


def end_with_parent(number: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


class _Lines:
    """Requests that a thread reads, so that the stub notices the end of stdin while it judges a request."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[Json] = []

    def put(self, request: Json) -> None:
        with self._changed:
            self._waiting.append(request)
            self._changed.notify()

    def __iter__(self) -> Iterator[Json]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                request = self._waiting.pop(0)
            yield request


def _end_with_stdin(lines: _Lines) -> None:
    for line in sys.stdin:
        lines.put(json.loads(line))
    os.kill(os.getpid(), signal.SIGTERM)


def send(event: Json) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def directives(directory: Path) -> dict[str, str]:
    """Return the directives to the stub in the files of a directory."""
    of_directory: dict[str, str] = {}
    for file in sorted(directory.rglob("*")):
        if file.is_file():
            of_directory |= {word: value or "" for word, value in _DIRECTIVE.findall(file.read_text(errors="replace"))}
    return of_directory


def content(directory: Path) -> bytes:
    """Return a hash of the names and contents of all files in a directory."""
    digest = hashlib.sha256()
    for file in sorted(directory.rglob("*")):
        if file.is_file():
            digest.update(str(file.relative_to(directory)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.digest()


class Stub:
    def __init__(self, device: str, cache: Path, sandbox: str) -> None:
        self.target = "cpu" if device.startswith("cpu") else "h200"
        self.device = {"name": f"stub {device}", "id": f"stub-{device}", "handshake_us": 90.0, "calibration_age_s": 60}
        self.cache = cache
        version = os.environ.get("STUB_JUDGE_VERSION", "1")
        self.environment = {
            "harness": "0.1.0",
            "judge": version_of(version),
            "python": "3",
            "torch": "none",
            "sandbox": sandbox,
        }
        self.protocol = int(os.environ.get("STUB_JUDGE_PROTOCOL", "2"))
        self.answers_in = int(os.environ.get("STUB_JUDGE_ANSWERS_IN", self.protocol))
        self.answers_as = version_of(os.environ.get("STUB_JUDGE_ANSWERS_AS", version))

    def ready(self) -> Json:
        message = {"event": "ready", "protocol": self.protocol, "target": self.target}
        return {**message, "device": self.device, "environment": self.environment}

    def serve(self, request: Json) -> None:
        """Answer a request, after passing the failpoints of the real judge and its runner in their order."""
        if request.get("op") == "check":
            note(request)
            send(self.checked(request))
            return
        failpoint("judge.request")
        if (protocol := request.get("protocol", 1)) != self.protocol:
            sys.stderr.write(f"harness judge: the client uses protocol {protocol}, not {self.protocol}\n  the fix\n")
            sys.stderr.flush()
            os._exit(2)
        note(request)
        judged = Path(request["solution_dir"] or request["problem_dir"])
        orders = directives(judged)
        self.obey(orders, judged)
        for place in ("judge.built", "judge.artefact_kept", "judge.standby_taken", "judge.runner_started"):
            failpoint(place)
        failpoint("judge.before_rounds")
        send({"event": "progress", "id": request["id"], "stage": "timing", "done": 1, "of": 2})
        failpoint("judge.before_timing")
        if not runner_lives():
            answer = self.refused(request, "RUNTIME_ERROR", "the runner was ended by SIGKILL")
        elif request["kind"] == "baseline":
            answer = self.baseline(request, orders)
        elif request["kind"] == "profile":
            answer = self.profile(request)
        elif (binary := binary_of(orders)) in request.get("known_binaries", {}):
            answer = self.repeated(request, request["known_binaries"][binary])
        elif "verdict" in orders:
            answer = self.refused(request, orders["verdict"], "the stub was asked for this verdict")
        else:
            answer = self.evaluation(request, orders)
        failpoint("judge.before_answer")
        failpoint("judge.answered")
        send({**answer, "binary": binary_of(orders)} if request["kind"] != "baseline" else answer)

    def checked(self, request: Json) -> Json:
        """Return the answer to a check, with the verdict that the candidate's directives name."""
        orders = directives(Path(request["solution_dir"]))
        verdict = orders.get("verdict", "PASSED")
        reason = None if verdict == "PASSED" else "the stub was asked for this verdict"
        works = [{"uuid": uuid, "verdict": verdict, "reason": reason} for uuid in workloads(request)]
        build = {"warnings": ["kernel.cpp:1: warning: of the stub"], "code": request["show"]}
        message = {"event": "checked", "id": request["id"], "verdict": verdict, "reason": reason}
        return {**message, "workloads": works, "build": build, "build_s": 0.1, "check_s": 0.2}

    def obey(self, orders: dict[str, str], judged: Path) -> None:
        mark = self.cache / f"stub-killed-{content(judged).hex()}"
        if "kill" in orders or ("kill-once" in orders and not mark.exists()):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        for file in filter(None, (os.environ.get("STUB_JUDGE_FAULT"), orders.get("fault"))):
            if Path(file).exists():
                code, _, message = Path(file).read_text().partition(" ")
                sys.stderr.write(f"harness judge: {message}\n")
                sys.stderr.flush()
                os._exit(int(code))
        if "exit" in orders:
            sys.stderr.write("stub judge: asked to give up\n")
            sys.stderr.flush()
            os._exit(int(orders["exit"]))
        if "garbage" in orders:
            sys.stdout.write("this is not the protocol\n")
            sys.stdout.flush()
        if "hang" in orders:
            threading.Event().wait()
        while "hold" in orders and not Path(orders["hold"]).exists():
            time.sleep(0.01)
        time.sleep(float(orders.get("takes", 0)))

    def answer(self, request: Json, **parts: Any) -> Json:
        cost = {"build_s": 0.0, "judge_s": 0.01}
        return {
            "event": "answer",
            "protocol": self.answers_in,
            "id": request["id"],
            "device": self.device,
            "environment": {**self.environment, "judge": self.answers_as},
            "cost": cost,
        } | parts

    def baseline(self, request: Json, orders: dict[str, str]) -> Json:
        uuids = workloads(request)
        sealed = {"eager": SEALED_EAGER_US, "compile": SEALED_COMPILE_US} if "two-clocks" in orders else None
        compile_us, missing = (None, {"compile": "no C++ compiler"}) if "no-compile" in orders else (COMPILE_US, {})
        return self.answer(
            request,
            verdict="PASSED",
            summary={"passed": len(uuids), "of": len(uuids)},
            environment={**self.environment, "judge": self.answers_as, "missing_baselines": missing},
            baselines={uuid: {"eager": EAGER_US, "compile": compile_us, "baseline": None} for uuid in uuids},
            sealed_baselines=dict.fromkeys(uuids, sealed) if sealed else {},
        )

    def profile(self, request: Json) -> Json:
        uuids = workloads(request)
        kernel = {
            "kernel": "stub",
            "launch": 0,
            "time_us": 10.0,
            "dram_share": 0.9,
            "sentence": "the stub is the limit",
        }
        report = {"workload": request["workload"] or uuids[0], "kernels": [kernel], "launches": 1}
        summary = {"passed": 0, "of": len(uuids)}
        return self.answer(request, verdict="PASSED", summary=summary, counters=report)

    def refused(self, request: Json, verdict: str, reason: str) -> Json:
        uuids = workloads(request)
        if request["kind"] == "baseline":
            return self.answer(
                request, verdict="INVALID_REFERENCE", reason=reason, summary={"passed": 0, "of": len(uuids)}
            )
        rows = [{"uuid": uuid, "verdict": verdict, "reason": reason} for uuid in uuids]
        summed = {"passed": 0, "of": len(uuids)}
        return self.answer(request, verdict=verdict, reason=reason, workloads=rows, summary=summed)

    def repeated(self, request: Json, verdict: str) -> Json:
        return self.answer(request, verdict=verdict, measured=False, summary={"passed": 0, "of": 0})

    def evaluation(self, request: Json, orders: dict[str, str]) -> Json:
        seed = content(Path(request["solution_dir"]))
        speedup = float(orders.get("speedup") or 0.9 + (seed[0] % 50) / 100)
        seed += request["kind"].encode()
        rows = [workload(uuid, speedup, seed, request["baseline"][uuid]) for uuid in workloads(request)]
        return self.answer(request, verdict="PASSED", workloads=rows, summary=summary(rows))


def binary_of(orders: dict[str, str]) -> str | None:
    return version_of(orders["binary"]) if "binary" in orders else None


def version_of(seed: str) -> str:
    return f"sha256:{hashlib.sha256(seed.encode()).hexdigest()}"


def runner_lives() -> bool:
    """Return whether a process in the runner's role passes the failpoints of the real runner."""
    runner = os.fork()
    if runner == 0:
        for place in ("start", "before_load", "loaded", "ready", "before_call", "after_done"):
            failpoint(f"runner.{place}")
        os._exit(0)
    return os.waitpid(runner, 0)[1] == 0


def note(request: Json) -> None:
    if file := os.environ.get("STUB_JUDGE_REQUESTS"):
        with Path(file).open("a") as notes:
            notes.write(json.dumps({**request, "noted_at": time.time()}) + "\n")


def workloads(request: Json) -> list[str]:
    lines = (Path(request["problem_dir"]) / "workload.jsonl").read_text().splitlines()
    return [json.loads(line)["uuid"] for line in lines if line.strip()]


def workload(uuid: str, speedup: float, seed: bytes, variant: str) -> Json:
    """Return the result of one workload: block ratios with a small spread, and the figures derived from them."""
    baseline_us = EAGER_US if variant == "eager" else COMPILE_US
    ratios = block_ratios(speedup, seed + uuid.encode())
    mean, interval = mean_and_interval([ratios])
    return {
        "uuid": uuid,
        "verdict": "PASSED",
        "log_ratios": ratios,
        "speedup": mean,
        "speedup_ci95": interval,
        "baseline_us": baseline_us,
        "latency_us": baseline_us / mean,
        "subtracted_us": 0.01,
        "sol_us": SOL_US,
        "floor_us": SOL_US / 2,
        "score": 1 / (1 + (baseline_us / mean - SOL_US) / (baseline_us - SOL_US)),
        "max_abs_error": 1e-3,
        "max_rel_error": 1e-3,
        "matched": 1.0,
        "checked": 512,
        "calls": 512,
        "blocks": BLOCKS,
        "variant": variant,
    }


def block_ratios(speedup: float, seed: bytes) -> list[float]:
    """Return ln(baseline / candidate) of each block: the same spread for all seeds, and a mean within 0.1 %."""
    drift = (hashlib.sha256(seed).digest()[0] - 127.5) / 127.5 * 0.001
    return [math.log(speedup) + drift + (block - (BLOCKS - 1) / 2) * 0.001 for block in range(BLOCKS)]


def mean_and_interval(rows: list[list[float]]) -> tuple[float, tuple[float, float]]:
    """Return the geometric mean and interval of harness.model.interval, for rows of equal spread, without scipy."""
    means = [math.fsum(row) / len(row) for row in rows]
    errors = [
        math.sqrt(math.fsum((value - mean) ** 2 for value in row) / (len(row) - 1) / len(row))
        for row, mean in zip(rows, means, strict=True)
    ]
    mean = math.fsum(means) / len(means)
    half = T98[(BLOCKS - 1) * len(rows)] * math.sqrt(math.fsum(error * error for error in errors)) / len(rows)
    return math.exp(mean), (math.exp(mean - half), math.exp(mean + half))


def summary(rows: list[Json]) -> Json:
    mean, interval = mean_and_interval([row["log_ratios"] for row in rows])
    score = math.fsum(row["score"] for row in rows) / len(rows)
    return {"speedup": mean, "speedup_ci95": interval, "score": score, "passed": len(rows), "of": len(rows)}


if __name__ == "__main__":
    main()
