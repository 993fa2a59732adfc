"""Facts of a host and the reason to refuse it. `read_facts` runs on the host, as a Ray task."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Collection

import harness
from harness.cluster.messages import HostFacts
from harness.judge.version import judge_version
from harness.workspace.processes import gpu_names

CPU_JUDGE = "cpu_judge"
"""Ray's custom resource of a node that lends its CPU to a judge."""


def read_facts() -> str:
    """Return this host's facts as JSON."""
    return own_facts().model_dump_json()


def own_facts() -> HostFacts:
    """Return the facts of the host and the environment of this process."""
    return HostFacts(
        host=socket.gethostname(),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        harness=harness.__version__,
        judge=judge_version(),
        clock_s=time.time(),
        gpus=gpu_names(),
        niceness=os.nice(0),
        authenticated=os.environ.get("RAY_AUTH_MODE", "").lower() == "token",
    )


def refusal(facts: HostFacts, own: HostFacts) -> str | None:
    """Return the reason why a host may not judge for this head; None if it may.

    Args:
        own: facts of the head.
    """
    for name, version, own_version in (
        ("Python", facts.python, own.python),
        ("kernel-harness", facts.harness, own.harness),
        ("judge version", facts.judge[:19], own.judge[:19]),
    ):
        if version != own_version:
            return f"it has {name} {version}, and the head has {own_version}: install the same version on both"
    if not facts.authenticated:
        return "its Ray node requires no token: start it again with RAY_AUTH_MODE=token (docs/how-to/cluster.md)"
    return None


def devices_of(resources: dict[str, float]) -> tuple[str, ...]:
    """Return the devices for judges that a Ray node offers, by its resources: `cpu`, `cuda:0` ..."""
    cpu = ("cpu",) if resources.get(CPU_JUDGE, 0) >= 1 else ()
    return (*cpu, *(f"cuda:{number}" for number in range(int(resources.get("GPU", 0)))))


def free_name(host: str, used_names: Collection[str]) -> str:
    """Return a name for a node: that of its host, with a number if other nodes have the name.

    Args:
        used_names: names of the other nodes.
    """
    names = [host, *(f"{host}~{number}" for number in range(2, len(used_names) + 2))]
    return next(name for name in names if name not in used_names)
