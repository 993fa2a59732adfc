"""What many agents cost one host: `python -m benchmarks.agents [--workers 16] [--turns 20]`.

Real SDK, CLI, sandbox, gateway, planner and daemon; a scripted model on the loopback and the stub judge. Overhead of a
turn is from the model's last byte to the next request of the same session: the CLI, a Read, and twice the gateway.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from tests.agents import agents_site as its
from tests.scripted_model import Asked, Say, ScriptedModel, Step, Use, scripted
from tests.site import Site, git, make_site

LIMIT_MIB, LIMIT_MS = 400, 150


def script(turns: int) -> list[Step]:
    """Turns that read, each another line; then a note, so that the planner has something to write."""
    reads = [Use("Read", {"file_path": "/task/COORDINATION.md", "offset": n + 1, "limit": 2}) for n in range(turns - 2)]
    return [*reads, Use("mcp__harness__note", {"text": "it was read"}), Say("Done."), Say("Done."), Say("Done.")]


class Memory:
    """The largest resident set of each process of the site, seen twice a second."""

    def __init__(self, site: Site) -> None:
        self._site, self._stop = site, threading.Event()
        self.peak_mib: dict[int, tuple[str, float]] = {}
        self._thread = threading.Thread(target=self._watch, name="memory")
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            for directory in Path("/proc").glob("[0-9]*"):
                with suppress(OSError, IndexError, ValueError):
                    command = (directory / "cmdline").read_bytes().split(b"\0")
                    first = Path(command[0].decode()).name
                    is_worker = b"worker" in command and b"harness" in command
                    if first != "claude" and not is_worker:
                        continue
                    status = (directory / "status").read_text()
                    mib = int(status.partition("VmHWM:")[2].split()[0]) / 1024
                    self.peak_mib[int(directory.name)] = ("worker" if is_worker else "cli", mib)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)


def overheads_ms(model: ScriptedModel) -> list[float]:
    """Per turn, from the answer's last byte to the session's next request."""
    found = []
    by_session: dict[str, list[Asked]] = defaultdict(list)
    for asked in model.asked:
        by_session[asked.session].append(asked)
    for those in by_session.values():
        for before, after in itertools.pairwise(those):
            sent = model.sent.get(id(before))
            if sent is not None:
                found.append((after.at - sent) * 1e3)
    return found


def main() -> int:
    """Run it; 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-agents-"))
    site = Site(root / "site", root / "scratch")
    make_site(site.root, tuple(f"t/p{number:02d}" for number in range(options.workers)))
    its.configure(site, "policy: {slice_evaluations: 1}\nagent: {kind: claude, per_session: {repeats: 100}}")
    begun = time.monotonic()
    with scripted(lambda _: script(options.turns)) as model:
        memory = Memory(site)
        process = site.start("start", "--workers", str(options.workers), extra=its.environment(model))
        sessions: dict[str, int] = {}
        while time.monotonic() - begun < 600 and process.poll() is None:
            sessions = defaultdict(int)
            for asked in list(model.asked):
                sessions[asked.session] += 1
            if sum(count >= options.turns for count in sessions.values()) >= options.workers:
                break
            time.sleep(0.5)
        elapsed = time.monotonic() - begun
        process.terminate()
        output, _ = process.communicate(timeout=120)
        memory.close()
        per_turn = overheads_ms(model)
    firsts = {asked.session: asked.at for asked in reversed(model.asked)}
    cli = [mib for kind, mib in memory.peak_mib.values() if kind == "cli"]
    workers = [mib for kind, mib in memory.peak_mib.values() if kind == "worker"]
    audit = site.run("audit")
    fsck = git(site.root, "fsck", "--no-dangling", "--no-progress")
    whole = [session for session, count in sessions.items() if count >= options.turns]
    result = {
        "workers": options.workers,
        "sessions with every turn": len(whole),
        "requests": len(model.asked),
        "seconds": round(elapsed, 1),
        "first to last connect s": round(max(firsts.values()) - min(firsts.values()), 1) if firsts else None,
        "overhead per turn ms, median": round(statistics.median(per_turn), 1),
        "overhead per turn ms, 95 %": round(statistics.quantiles(per_turn, n=20)[-1], 1),
        "CLI peak MiB, largest": round(max(cli)),
        "CLI peak MiB, median": round(statistics.median(cli)),
        "worker process peak MiB, largest": round(max(workers)),
        "coordination commits": int(git(site.root, "rev-list", "--count", "main")),
        "ledger and repository whole": audit.returncode == 0 and not fsck,
        "strays": len(site.strays()),
    }
    site.close()
    for name, value in result.items():
        print(f"{name:36} {value}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    good = len(whole) >= options.workers and result["ledger and repository whole"]
    good = bool(good and max(cli) <= LIMIT_MIB and statistics.median(per_turn) <= LIMIT_MS)
    if not good:
        print(output[-3000:])
    shutil.rmtree(root, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
