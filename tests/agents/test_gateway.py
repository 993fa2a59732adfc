"""The gateway alone: the requests it passes, the headers it adds, the tokens it counts, and no delay."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from harness.agents.governor import SpendTracker
from harness.agents.model_access import api_backoff
from harness.agents.model_access.endpoint import Upstream
from harness.agents.model_access.gateway import Gateway
from harness.agents.model_access.meter import Meter
from harness.agents.model_access.prices import price_of, usd
from harness.agents.model_access.request_budget import RequestBudget
from harness.agents.model_access.usage import AnswerUsage
from harness.errors import ConfigurationError
from harness.ledger.accounts import Spent, unrecorded_accounts
from harness.model.config import Config, GatewayConfig, Price
from harness.workspace.directories import Workspace
from tests.scripted_model import Fail, Say, ScriptedModel, scripted
from tests.site import git

KEY = "sk-the-real-one"
BODY = {"model": "claude-opus-4-5", "messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "x"}]}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    git(tmp_path, "init", "--quiet")
    return Workspace(tmp_path)


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with scripted(lambda _: [Say(input_tokens=1000, output_tokens=200)] * 9) as scripted_model:
        yield scripted_model


def unlimited(workspace: Workspace) -> RequestBudget:
    spend_tracker = cast("SpendTracker", None)  # only a limit reads it
    return RequestBudget(Meter(workspace, Config(), "w01", "claude", "t/one"), spend_tracker, ())


def ask(
    workspace: Workspace,
    model: ScriptedModel,
    *,
    path: str = "/v1/messages",
    limit_message: str | None = None,
    **body: Any,
) -> tuple[int, str]:
    upstream = Upstream.of_environment({"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": KEY})
    config = GatewayConfig(first_s=0.1, longest_s=0.2, hold_s=1.0)
    directory = workspace.state / "gateway"
    with (
        Gateway(workspace, upstream, config) as gateway,
        gateway.serve(directory, unlimited(workspace), lambda: limit_message),
    ):
        # A socket's path has at most 107 characters, and a test's directory may be deep.
        handle = os.open(directory, os.O_PATH)
        try:
            return asyncio.run(_post(Path(f"/proc/self/fd/{handle}/socket"), path, {**BODY, **body}))
        finally:
            os.close(handle)


async def _post(socket: Path, path: str, body: dict[str, Any]) -> tuple[int, str]:
    connector = aiohttp.UnixConnector(str(socket))
    headers = {"x-api-key": "forged", "x-claude-code-session-id": "s1"}
    async with (
        aiohttp.ClientSession(connector=connector) as client,
        client.post(f"http://gateway{path}", json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_passes_and_is_counted(workspace: Workspace, model: ScriptedModel, *, stream: bool) -> None:
    status, text = ask(workspace, model, stream=stream)
    assert status == 200
    assert "Done." in text
    assert model.keys == {KEY}, "the agent's own key is not passed on"
    (account,) = unrecorded_accounts(workspace)
    assert (account.spent.input_tokens, account.spent.output_tokens, account.spent.turns) == (1000, 200, 1)
    assert account.spent.usd == pytest.approx(1000 * 5e-6 + 200 * 25e-6)
    assert account.model == "claude-opus-4-5"


@pytest.mark.parametrize("path", ["/v1/files", "/v1/messages/batches", "/", "/v1/messages/../files", "/admin"])
def test_only_the_messages_api_passes(workspace: Workspace, model: ScriptedModel, path: str) -> None:
    status, _ = ask(workspace, model, path=path)
    assert status == 404
    assert (model.requests, model.other_requests) == ([], [])


def test_a_session_past_its_budget_is_refused(workspace: Workspace, model: ScriptedModel) -> None:
    status, text = ask(workspace, model, limit_message="the limit of 5 USD for a session is reached")
    assert status == 400
    assert "5 USD" in text
    assert model.requests == []


def test_all_sessions_wait_when_one_meets_the_limit(workspace: Workspace) -> None:
    with scripted(lambda _: [Fail(529, times=50)]) as model:
        status, text = ask(workspace, model)
    assert status == 429
    assert "all workers wait" in json.loads(text)["error"]["message"]
    assert api_backoff.read_backoff(workspace).failures > 1


def test_stopped_sessions_send_no_request(workspace: Workspace, model: ScriptedModel) -> None:
    api_backoff.stop_requests(workspace, "the key is bad")
    assert ask(workspace, model)[0] == 401
    assert model.requests == []
    api_backoff.allow_requests(workspace)
    assert ask(workspace, model)[0] == 200


def test_back_off_doubles_to_its_limit_and_ends_with_success(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1e9)  # on a busy machine, the rest of the wait is shorter when it is read
    config = GatewayConfig(first_s=1, longest_s=5)
    waits = [
        api_backoff.back_off(workspace, config, after_s=after_s, reason="x").wait_s()
        for after_s in (None, 0.0, None, 0.0)
    ]
    assert waits == [1, 2, 4, 5]
    assert api_backoff.back_off(workspace, config, after_s=60, reason="x").wait_s() == 60
    api_backoff.allow_requests(workspace)
    assert api_backoff.read_backoff(workspace).wait_s() == 60, "a wait stays in force over a restart"
    api_backoff.reset_failures(workspace, api_backoff.read_backoff(workspace))
    assert api_backoff.read_backoff(workspace).failures == 0


def test_a_missing_credential_is_reported() -> None:
    with pytest.raises(ConfigurationError, match="no credential for the model"):
        Upstream.of_environment({})
    token = Upstream.of_environment({"ANTHROPIC_AUTH_TOKEN": "t"})
    assert (token.url, dict(token.headers)) == ("https://api.anthropic.com", {"authorization": "Bearer t"})


def test_usage_is_read_however_the_stream_is_cut() -> None:
    start = {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 7, "output_tokens": 1}}}
    end = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 9, "cache_read_input_tokens": 3}}
    raw = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in (start, end)).encode()
    for size in (1, 7, 64, len(raw)):
        used = AnswerUsage(streamed=True)
        for at in range(0, len(raw), size):
            used.feed(raw[at : at + size])
        used.end()
        assert used.spent() == Spent(input_tokens=7, output_tokens=9, cache_read_tokens=3, turns=1)
        assert (used.model, used.begun) == ("m", True)


def test_the_output_of_a_stream_that_broke_off_is_estimated() -> None:
    text = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x" * 300}}
    tool = {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "y" * 100}}
    start = {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 7, "output_tokens": 1}}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 90}}
    used = AnswerUsage(streamed=True)
    for event in (start, text, tool):
        used.feed(f"data: {json.dumps(event)}\n\n".encode())
    assert used.spent() == Spent(input_tokens=7, output_tokens=100, turns=1)
    used.feed(f"data: {json.dumps(end)}\n\n".encode())
    assert used.spent().output_tokens == 90, "what the model API reports counts"


def test_an_unknown_model_has_the_highest_price_unless_the_run_sets_one() -> None:
    million = Spent(input_tokens=1_000_000, cache_read_tokens=1_000_000)
    assert usd(million, price_of("brand-new", {})) == pytest.approx(16.5)
    assert usd(million, price_of("claude-haiku-4-5", {"claude-haiku*": Price(input=2, output=1)})) == pytest.approx(2.2)
