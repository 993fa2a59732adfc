"""Admission of hosts to the cluster: versions and the token are checked before a host gets work."""

from __future__ import annotations

import socket
import sys

import pytest

import harness
from harness.cli.cluster import cluster_hosts
from harness.cluster import connection
from harness.cluster.host_facts import devices_of, free_name, own_facts, read_facts, refusal
from harness.cluster.messages import HostFacts
from harness.errors import ConfigurationError
from harness.judge.version import judge_version

OWN = HostFacts(host="head", python="3.11", harness="1.0", judge="sha256:aa", authenticated=True)


def test_the_same_versions_may_judge() -> None:
    assert refusal(OWN.model_copy(update={"host": "gpu-a", "clock_s": 3600.0}), OWN) is None


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("python", "3.12", "it has Python 3.12, and the head has 3.11"),
        ("harness", "1.1", "it has kernel-harness 1.1, and the head has 1.0"),
        ("judge", "sha256:bb", "it has judge version sha256:bb, and the head has sha256:aa"),
    ],
)
def test_a_host_of_another_version_is_refused_with_the_reason(field: str, value: str, reason: str) -> None:
    assert (refusal(OWN.model_copy(update={field: value}), OWN) or "").startswith(reason)


def test_a_node_that_demands_no_token_is_refused() -> None:
    assert "RAY_AUTH_MODE=token" in (refusal(OWN.model_copy(update={"authenticated": False}), OWN) or "")


def test_a_host_states_its_own_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    facts = HostFacts.model_validate_json(read_facts())
    assert (facts.harness, facts.judge) == (harness.__version__, judge_version())
    assert facts.python == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert facts.authenticated
    monkeypatch.delenv("RAY_AUTH_MODE")
    assert not own_facts().authenticated


def test_devices_follow_from_the_resources_of_a_node() -> None:
    assert devices_of({"GPU": 2.0, "CPU": 8.0}) == ("cuda:0", "cuda:1")
    assert devices_of({"cpu_judge": 1.0}) == ("cpu",)
    assert devices_of({"CPU": 8.0, "memory": 1e9}) == ()


def test_nodes_of_one_host_have_different_names() -> None:
    assert free_name("gpu-a", []) == "gpu-a"
    assert free_name("gpu-a", ["gpu-a", "gpu-a~2"]) == "gpu-a~3"
    assert free_name("gpu-a", ["gpu-a~2"]) == "gpu-a"


def test_an_address_that_nothing_answers_at_is_an_error_before_ray_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "require_ray", lambda: None)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        port = bound.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"nothing answers at 127.0.0.1:{port}: "):
            cluster_hosts(f"127.0.0.1:{port}")
    with pytest.raises(ConfigurationError, match=r"nothing answers at .*:99999: "):
        cluster_hosts("127.0.0.1:99999")
    with pytest.raises(ConfigurationError, match="no such address: gpu-a"):
        cluster_hosts("gpu-a")
