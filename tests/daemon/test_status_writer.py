"""Messages of the daemon: each has a subject, by which it is replaced and removed."""

from __future__ import annotations

from harness.daemon.status_writer import StatusWriter
from harness.errors import LedgerError
from harness.model.process_status import DaemonStatus
from tests.site import Site


def messages(writer: StatusWriter, *, paused: str | None = None) -> tuple[str, ...]:
    record = writer.write(DaemonStatus(paused=paused), force=True)
    assert record is not None
    return record.messages


def test_the_last_failure_of_an_operation_replaces_the_earlier_one(site: Site) -> None:
    writer = StatusWriter(site.workspace)
    writer.add_failure("scanning", LedgerError("no space left"))
    writer.add_failure("scanning", LedgerError("read-only file system"))
    assert messages(writer) == ("scanning: read-only file system",)
    writer.remove_messages("scanning")
    assert messages(writer) == ()


def test_a_message_that_begins_like_another_subject_is_kept(site: Site) -> None:
    writer = StatusWriter(site.workspace)
    writer.add_message("paused work is listed in the report")
    writer.add_message("the judge of cpu ended", subject="judge of cpu")
    writer.add_failure("scanning", LedgerError("no space left"))
    writer.add_failure("scanning again", LedgerError("no space left"))
    assert "paused: the disk is full; tried again until it works" in messages(writer, paused="the disk is full")
    writer.remove_messages("scanning")
    writer.remove_messages("judge of cpu")
    assert messages(writer) == ("paused work is listed in the report", "scanning again: no space left")
