"""A Messages API on the loopback interface that answers from a test's script in place of the model.

Everything else of an agent's session is real: the SDK, its CLI, the sandbox, the gateway. A session is known by the
CLI's `x-claude-code-session-id`; its script is chosen from its first request. Each request of a session's main loop
takes one step of its script; after the last one it answers that it is done. Steps for faults answer with an
error, break off, or never answer.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Content = list[dict[str, Any]]


@dataclass(frozen=True)
class Say:
    """Text that ends the turn."""

    text: str = "Done."
    input_tokens: int = 100
    output_tokens: int = 20
    takes_s: float = 0.0
    """The model's latency."""


@dataclass(frozen=True)
class Use:
    """One use of a tool. `raw` replaces the input's JSON, for an input that is not JSON."""

    tool: str
    input: dict[str, Any] = field(default_factory=dict)
    raw: str | None = None
    input_tokens: int = 100
    output_tokens: int = 20
    takes_s: float = 0.0


@dataclass(frozen=True)
class Fail:
    """An answer with an HTTP status; after `times` such answers, the script continues."""

    status: int
    retry_after: str | None = None
    times: int = 1
    kind: str = "api_error"


@dataclass(frozen=True)
class Drop:
    """A stream that ends in the middle of the answer."""


@dataclass(frozen=True)
class Hang:
    """No answer until the client disconnects."""


Ask = Callable[["ModelRequest"], "Say | Use"]
"""A step that depends on the request."""
Step = Say | Use | Fail | Drop | Hang | Ask


@dataclass(frozen=True)
class ModelRequest:
    """One request to the model."""

    session: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float

    @property
    def text(self) -> str:
        """Return the whole text of the request, to choose a script and for assertions."""
        return json.dumps([self.body.get("system"), self.body.get("messages")], ensure_ascii=False)

    @property
    def last_result(self) -> str:
        """Return the text of the last tool results in the request."""
        for message in reversed(self.body.get("messages", [])):
            content = message.get("content")
            results = [block for block in content if block.get("type") == "tool_result"] if _listed(content) else []
            if results:
                return "\n".join(_text_of(block.get("content")) for block in results)
        return ""

    @property
    def results(self) -> list[str]:
        """Return the texts of all tool results in the request, in order."""
        texts = []
        for message in self.body.get("messages", []):
            content = message.get("content")
            if _listed(content):
                texts += [_text_of(block.get("content")) for block in content if block.get("type") == "tool_result"]
        return texts


def _listed(content: object) -> bool:
    return isinstance(content, list)


def _text_of(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(block.get("text", "")) for block in content)
    return str(content)


@dataclass
class ScriptedModel:
    """The server's state. `choose` gives a session its script, from the session's first request."""

    choose: Callable[[ModelRequest], Sequence[Step]]
    url: str = ""
    requests: list[ModelRequest] = field(default_factory=list)
    """Requests of main loops, in order."""
    other_requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of all other requests."""
    keys: set[str] = field(default_factory=set)
    """Credentials of the requests."""
    sent: dict[int, float] = field(default_factory=dict)
    """id of a request in `requests` -> the time at which the last byte of its answer was sent."""
    _scripts: dict[str, Iterator[Step]] = field(default_factory=dict)
    _failing: dict[str, tuple[Fail, int]] = field(default_factory=dict)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.keys.add(headers.get("x-api-key") or headers.get("authorization", ""))
        if request.method != "POST" or request.path != "/v1/messages":
            self.other_requests.append((request.method, request.path))
            return web.json_response({"input_tokens": 10} if "count_tokens" in request.path else {})
        body = await request.json()
        session = headers.get("x-claude-code-session-id", "")
        model_request = ModelRequest(session, headers, body, time.monotonic())
        if not body.get("tools"):  # a request for a title or a summary, which takes no step
            self.other_requests.append(("POST", "aside"))
            return await _send(request, body, Say("ok"))
        self.requests.append(model_request)
        step = self._step(model_request)
        while isinstance(step, Hang):
            await asyncio.Event().wait()
        if isinstance(step, Fail):
            return _failed(step)
        if isinstance(step, Drop):
            return await _break_off(request, body)
        if callable(step):
            step = await asyncio.get_running_loop().run_in_executor(None, step, model_request)
        await asyncio.sleep(step.takes_s)
        response = await _send(request, body, step)
        self.sent[id(model_request)] = time.monotonic()
        return response

    def _step(self, model_request: ModelRequest) -> Step:
        fail, left = self._failing.get(model_request.session, (None, 0))
        if fail is not None and left > 0:
            self._failing[model_request.session] = (fail, left - 1)
            return fail
        if model_request.session not in self._scripts:
            self._scripts[model_request.session] = iter(self.choose(model_request))
        step = next(self._scripts[model_request.session], Say())
        if isinstance(step, Fail):
            self._failing[model_request.session] = (step, step.times - 1)
        return step


def _failed(step: Fail) -> web.Response:
    headers = {"retry-after": step.retry_after} if step.retry_after is not None else {}
    body = {"type": "error", "error": {"type": step.kind, "message": f"scripted {step.status}"}}
    return web.json_response(body, status=step.status, headers=headers)


def _blocks(step: Say | Use, number: int) -> Content:
    if isinstance(step, Say):
        return [{"type": "text", "text": step.text}]
    return [{"type": "tool_use", "id": f"toolu_{number:06d}", "name": step.tool, "input": step.input}]


_numbers = iter(range(1, 1 << 30))


def _message(body: dict[str, Any], step: Say | Use, content: Content) -> dict[str, Any]:
    return {
        "id": f"msg_{next(_numbers):06d}",
        "type": "message",
        "role": "assistant",
        "model": body.get("model", "scripted"),
        "content": content,
        "stop_reason": "end_turn" if isinstance(step, Say) else "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": step.input_tokens, "output_tokens": step.output_tokens},
    }


def _events(body: dict[str, Any], step: Say | Use) -> Iterator[dict[str, Any]]:
    (block,) = _blocks(step, next(_numbers))
    whole = _message(body, step, [])
    begun = {**whole, "stop_reason": None, "usage": {"input_tokens": step.input_tokens, "output_tokens": 1}}
    yield {"type": "message_start", "message": begun}
    if isinstance(step, Say):
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": block["text"]}}
    else:
        yield {"type": "content_block_start", "index": 0, "content_block": {**block, "input": {}}}
        text = step.raw if step.raw is not None else json.dumps(step.input)
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": text}}
    yield {"type": "content_block_stop", "index": 0}
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": step.output_tokens}}
    yield {"type": "message_stop"}


async def _stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-cache"})
    await response.prepare(request)
    return response


async def _write(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())


async def _send(request: web.Request, body: dict[str, Any], step: Say | Use) -> web.StreamResponse:
    if not body.get("stream"):
        return web.json_response(_message(body, step, _blocks(step, next(_numbers))))
    response = await _stream(request)
    for event in _events(body, step):
        await _write(response, event)
    await response.write_eof()
    return response


async def _break_off(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await _stream(request)
    for event in list(_events(body, Say("this is cut")))[:3]:
        await _write(response, event)
    await asyncio.sleep(0.2)  # so that the written part arrives before the end of the stream
    assert request.transport is not None
    request.transport.abort()
    return response


@contextmanager
def scripted(choose: Callable[[ModelRequest], Sequence[Step]]) -> Iterator[ScriptedModel]:
    """Serve on a loopback port, in a thread, until the end of the block."""
    model = ScriptedModel(choose)
    loop = asyncio.new_event_loop()
    started = threading.Event()

    async def serve() -> web.AppRunner:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{tail:.*}", model.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.2, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        model.url = f"http://{host}:{port}"
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(serve())
        started.set()
        loop.run_forever()
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(runner.cleanup())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=run, name="scripted-model")
    thread.start()
    try:
        assert started.wait(10)
        yield model
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=120)
