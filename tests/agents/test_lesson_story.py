"""A lesson of one worker appears in the prompt of the next with its proof, is contradicted, and is withdrawn.

Daemon, planner and workers are real processes; the judge is the stub, the agents are scripts.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from harness.model.assignment import Assignment
from tests.agents import agents_site
from tests.site import Site, git, site_in
from tests.waiting import wait_until

SCRIPT = """
set -eu
cd {solution}
case {worker} in
w01)
  echo "// stub: speedup=1.5" >> kernel.cpp
  harness submit -m "prefetch two rows"
  harness note "prefetching helps" ;;
w02)
  lesson=$(grep "w01: prefetching helps (entry 2: PASSED 1.5" {prompt_file})
  id=$(echo "$lesson" | sed 's/.*\\[\\([0-9a-f]*\\)\\].*/\\1/')
  if harness note --contradicts "$id" "too early"; then exit 9; fi
  sed -i "s/speedup=1.5/speedup=1.9/" kernel.cpp
  harness submit -m "no prefetch"
  harness note --contradicts "$id" "prefetching costs" ;;
w03)
  if grep "prefetching helps" {prompt_file}; then exit 8; fi
  grep "w02: prefetching costs (entry" {prompt_file}
  grep "w01: made it 1.[45].*prefetch two rows (entry" {prompt_file} ;;
esac
"""


def lessons(site: Site) -> str:
    committed = git(site.root, "ls-tree", "--name-only", "main", "ledger/lessons/t/one.yaml")
    return git(site.root, "show", "main:ledger/lessons/t/one.yaml") if committed else ""


def _holds(site: Site, text: str) -> bool:
    return text in lessons(site)


@pytest.mark.slow
def test_a_lesson_is_shown_to_others_with_its_proof_and_withdrawn_when_contradicted(tmp_path: Path) -> None:
    with site_in(tmp_path, tunable=True) as site:
        text = "\n".join(f"    {line}" for line in SCRIPT.strip().splitlines())
        agents_site.configure(site, f"agent:\n  kind: command\n  command: |\n{text}")
        site.start("daemon")
        for worker, left in (("w01", "prefetching helps"), ("w02", "prefetching costs"), ("w03", "")):
            agents_site.assign(site, Assignment(worker=worker, problem="t/one", state="pinned"))
            process = site.start("worker", worker)
            agents_site.wait_for_status(site, "has finished", agents_site.finished("t/one"), worker)
            process.terminate()
            process.communicate(timeout=120)
            assert "leaves t/one: done" in agents_site.log(site, worker), agents_site.log(site, worker)
            planner = site.start("planner", "--worker", "w09")
            wait_until(partial(_holds, site, left), event=f"the lesson {left!r} in the ledger")
            planner.terminate()
            planner.communicate(timeout=120)
