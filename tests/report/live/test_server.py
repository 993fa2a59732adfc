"""The live page's server: no access without the token or from other sites, and streams that can be resumed."""

from __future__ import annotations

import asyncio
import logging
import re
from http.cookies import SimpleCookie
from pathlib import Path

import pytest

from harness.errors import ConfigurationError
from harness.report.live import server
from harness.report.live.access import Access
from harness.report.live.server import listen
from tests.report.live.page_server import Served, in_loop, serving
from tests.waiting import DEADLINE_S

FILES = ("", "page.css", "live.css", "charts.js", "live.js", "events")
PACKAGE = Path(__file__).parents[3] / "harness/report"


def test_nothing_is_answered_without_the_token() -> None:
    async def test(served: Served) -> None:
        served.publish(meta={"run": "a secret name"})
        access = served.access
        places = ["/", "/?token=", f"/?token={'x' * 32}", f"/?token={access.token}x", f"/?token={access.cookie}"]
        for path in [*places, "/favicon.ico", "/etc/passwd", *(access.path + name for name in FILES)]:
            status, body = await served.get(path)
            assert (status, body) == (
                403,
                "Open the URL that `harness serve` printed: it has the token that this page needs.\n",
            )
        name = access.cookie_name
        for wrong in (
            f"{name}=",
            f"{name}={access.token}",
            f"{name}={access.cookie}x",
            f"other={access.cookie}",
            f"{name}=é",
        ):
            status, body = await served.get(access.path, {"Cookie": wrong})
            assert status == 403
            assert "secret" not in body

    in_loop(test)


def test_the_token_is_exchanged_for_a_cookie_of_this_page_alone() -> None:
    async def test(served: Served) -> None:
        access = served.access
        assert access.url == f"{served.root}/?token={access.token}"
        async with served.client.get(access.url, allow_redirects=False) as response:
            assert response.status == 303
            assert response.headers["Location"] == access.path, "the URL that stays in the browser has no token"
            cookie = SimpleCookie(response.headers["Set-Cookie"])[access.cookie_name]
        assert (cookie.value, cookie["path"]) == (access.cookie, access.path)
        assert (cookie["httponly"], cookie["samesite"], cookie["domain"]) == (True, "Strict", "")
        assert access.token not in access.cookie
        for name in FILES[:-1]:
            assert (await served.get(access.path + name, served.cookie))[0] == 200
        assert (await served.get(access.path + "other", served.cookie))[0] == 404
        assert (await served.get("/", served.cookie))[0] == 403, "the cookie opens the page only"

    in_loop(test)


def test_a_request_for_another_host_is_refused() -> None:
    """The DNS name of a site can point to this machine; requests of its pages then have that name."""

    async def test(served: Served) -> None:
        access = served.access
        for host in (f"localhost:{access.port}", f"[::1]:{access.port}"):
            assert (await served.get(access.path, served.cookie | {"Host": host}))[0] == 200
        for host in (
            "evil.example",
            f"evil.example:{access.port}",
            "127.0.0.1",
            f"127.0.0.1:{access.port + 1}",
            f"127.0.0.2:{access.port}",
            "",
        ):
            for path in (access.path, f"{access.path}events", f"/?token={access.token}"):
                status, body = await served.get(path, served.cookie | {"Host": host})
                assert (status, body.partition(":")[0]) == (403, "Refused"), host

    in_loop(test)


def test_a_request_of_another_origin_is_refused() -> None:
    async def test(served: Served) -> None:
        access = served.access
        own = {"Origin": served.root}
        assert (await served.get(access.path, served.cookie | own))[0] == 200
        foreign = (
            "http://evil.example",
            "null",
            "",
            f"https://127.0.0.1:{access.port}",
            f"http://localhost:{access.port}",
            f"http://127.0.0.1:{access.port + 1}",
        )
        for origin in foreign:
            for path in (access.path, f"{access.path}events", f"/?token={access.token}"):
                status, body = await served.get(path, served.cookie | {"Origin": origin})
                assert (status, body.partition(":")[0]) == (403, "Refused"), origin

    in_loop(test)


def test_it_is_read_only() -> None:
    async def test(served: Served) -> None:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert (await served.get(served.access.path, served.cookie, method))[0] == 405

    in_loop(test)


def test_every_answer_forbids_what_the_page_does_not_need() -> None:
    async def test(served: Served) -> None:
        access = served.access
        policy = (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        for path in (access.path, f"/?token={access.token}", f"{access.path}events", f"{access.path}other", "/"):
            async with served.client.get(served.root + path, headers=served.cookie, allow_redirects=False) as response:
                assert response.headers["Content-Security-Policy"] == policy, path
                assert response.headers["Cache-Control"] == "no-store"
                assert response.headers["Referrer-Policy"] == "no-referrer"
                assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
                assert "Access-Control-Allow-Origin" not in response.headers

    in_loop(test)


def test_the_page_names_no_other_address_and_has_no_code_of_its_own() -> None:
    page = (PACKAGE / "live/live.html").read_text()
    assert re.findall(r'(?:src|href)="([^"#]+)"', page) == ["data:,", "page.css", "live.css", "charts.js", "live.js"]
    assert not re.search(r"<style|style=|\son\w+=|<script(?! src=)", page)
    for name in ("charts.js", "live/live.js", "live/live.css", "page.css"):
        text = (PACKAGE / name).read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|url\(|@import|innerHTML", text), name


@pytest.fixture
def _no_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the heartbeat, so that only a change sends an event."""
    monkeypatch.setattr(server, "HEARTBEAT_S", 100 * DEADLINE_S)


@pytest.mark.usefixtures("_no_heartbeat")
def test_a_viewer_gets_everything_and_then_what_changes() -> None:
    async def test(served: Served) -> None:
        served.publish(meta={"run": "main"}, problem__a={"key": "a"}, problem__b={"key": "b"})
        async with served.events() as next_event, served.events() as other_viewer:
            for viewer in (next_event, other_viewer):
                _, whole = await viewer()
                assert whole == {"meta": {"run": "main"}, "problem:a": {"key": "a"}, "problem:b": {"key": "b"}}
            served.publish(meta={"run": "main"}, problem__a={"key": "a", "n": 1})
            for viewer in (next_event, other_viewer):
                assert (await viewer())[1] == {"problem:a": {"key": "a", "n": 1}, "problem:b": None}
            assert served.viewers.count == 2

    in_loop(test)


def test_a_stream_without_changes_sends_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEARTBEAT_S", 0.01)

    async def test(served: Served) -> None:
        async with served.client.get(f"{served.root}{served.access.path}events", headers=served.cookie) as response:
            while await asyncio.wait_for(response.content.readline(), DEADLINE_S) != b": still here\n":
                pass

    in_loop(test)


def test_a_viewer_that_reconnects_gets_what_it_missed() -> None:
    async def test(served: Served) -> None:
        served.publish(meta={"run": "main"}, problem__a={"n": 0})
        async with served.events() as next_event:
            first_id, _ = await next_event()
        for number in (1, 2, 3):
            served.publish(meta={"run": "main"}, problem__a={"n": number})
        async with served.events(first_id) as next_event:
            last_id, missed = await next_event()
            assert missed == {"problem:a": {"n": 3}}, "one event for what came meanwhile"
        async with served.events(last_id) as next_event:
            served.publish(meta={"run": "other"}, problem__a={"n": 3})
            newest_id, changed = await next_event()
            assert changed == {"meta": {"run": "other"}}, "data that the viewer has is not sent again"
        of_another_server = f"another-{newest_id.partition('-')[2]}"
        for unknown_id in ("", "0-0", of_another_server, f"{first_id.partition('-')[0]}-99999999999", "é"):
            async with served.events(unknown_id) as next_event:
                assert set((await next_event())[1]) == {"meta", "problem:a"}

    in_loop(test)


def test_it_ends_at_once_while_pages_are_open() -> None:
    async def run() -> None:
        async with serving() as served:
            served.publish(meta={})
            async with served.events() as next_event:
                await next_event()
                served.task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(served.task, DEADLINE_S)
                assert served.viewers.count == 0

    asyncio.run(run())


def test_secrets_are_in_no_log_and_no_repr(caplog: pytest.LogCaptureFixture) -> None:
    async def test(served: Served) -> None:
        served.publish(meta={})
        await served.get(f"/?token={served.access.token}")
        async with served.events() as next_event:
            await next_event()
        secrets = (served.access.token, served.access.cookie, served.access.path)
        assert min(map(len, secrets[:2])) >= 32
        for secret in secrets:
            assert secret not in caplog.text
            assert secret not in repr(served.access)

    with caplog.at_level(logging.DEBUG):
        in_loop(test)


@pytest.mark.parametrize(
    ("address", "host", "allowed"),
    [
        ("0.0.0.0", "192.168.1.7:80", True),
        ("0.0.0.0", "[fd00::1]:80", True),
        ("0.0.0.0", "localhost:80", True),
        ("0.0.0.0", "evil.example:80", False),
        ("192.168.1.7", "192.168.1.7:80", True),
        ("192.168.1.7", "127.0.0.1:80", False),
        ("::1", "[::1]:80", True),
        ("::1", "::1:80", False),
        ("127.0.0.1", None, False),
    ],
)
def test_hosts_of_other_addresses(address: str, host: str | None, allowed: bool) -> None:
    assert Access(address, 80).host_allowed(host) is allowed


def test_urls_can_be_opened_on_this_machine() -> None:
    starts = {address: Access(address, 80).url.partition("?")[0] for address in ("127.0.0.1", "0.0.0.0", "::1", "::")}
    assert starts == {
        "127.0.0.1": "http://127.0.0.1:80/",
        "0.0.0.0": "http://127.0.0.1:80/",
        "::1": "http://[::1]:80/",
        "::": "http://[::1]:80/",
    }


def test_a_port_that_is_taken_names_the_fix() -> None:
    with listen("127.0.0.1", 0) as first, pytest.raises(ConfigurationError) as error:
        listen("127.0.0.1", first.getsockname()[1])
    assert re.fullmatch(r"--port: port \d+ is used by another program\n  harness serve --port 0 .*", str(error.value))


@pytest.mark.parametrize(
    ("address", "message"),
    [("localhost", "`localhost` is not an IP address"), ("192.0.2.1", "cannot listen at 192.0.2.1")],
)
def test_an_address_that_cannot_be_used_names_the_fix(address: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as error:
        listen(address, 0)
    assert "harness serve    # listens at 127.0.0.1" in (error.value.remedy or "")
