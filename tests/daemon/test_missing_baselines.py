"""Each entry names the baselines that could not be measured, since its speed-up is over the others."""

from __future__ import annotations

from harness.model.verdict import EntryKind
from harness.model.weaknesses import SYMBOL
from tests.daemon.conftest import Once, entries_of
from tests.site import Site, git, write_problem


def test_entries_name_the_baselines_that_are_missing(site: Site, once: Once) -> None:
    write_problem(site.root, "t/one", description="stub: no-compile")
    git(site.root, "commit", "--quiet", "-am", "Take the compiler away")
    without_compile, with_all = (
        site.submit("w01", "t/one", "stub: speedup=7.2"),
        site.submit("w02", "t/two", "stub: speedup=3.3"),
    )
    once()
    entries = site.entries()
    for kind in (EntryKind.EVALUATION, EntryKind.CONFIRMATION):
        (entry,) = entries_of(entries, without_compile, kind)
        assert entry.environment is not None
        assert (entry.environment.model_extra or {})["missing_baselines"] == {"compile": "no C++ compiler"}
        (entry,) = entries_of(entries, with_all, kind)
        assert entry.environment is not None
        assert not (entry.environment.model_extra or {}).get("missing_baselines")
    (line,) = [line for line in site.call("status").stdout.splitlines() if line.startswith(SYMBOL)]
    assert line.startswith(f"{SYMBOL} t/one: no torch.compile baseline: ")
    assert line.endswith("(no C++ compiler)")
