"""An engine's OpenAI server, speaking as vLLM and SGLang do, with a cache whose events it publishes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from replica.protocol.text import ModelText
from tests.adopt.fakes import FakePublisher, Path

VLLM_METRICS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="served"} 3.0
vllm:num_requests_waiting{engine="0",model_name="served"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="served",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="served"} 0.25
vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="0",num_gpu_blocks="100",sliding_window="None"} 1.0
"""


@dataclass
class FakeEngine:
    text: ModelText
    block_size: int = 32
    publisher: FakePublisher | None = None
    pieces: tuple[str, ...] = ("Hel", "lo", ".")
    reports_cached: bool = True
    dies_after: int | None = None
    """Events of a stream."""
    stalls: bool = False
    """No token comes."""
    pause_s: float = 0.0
    """Before the first token."""
    refuses: tuple[int, Any] | None = None
    """Status and body."""
    stream_error: Any = None
    max_model_len: int | None = 2048
    tokenizes: bool = True
    has_metrics: bool = True
    requests: list[dict[str, Any]] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    aborted: int = 0
    healthy: bool = True
    url: str = ""

    def __post_init__(self) -> None:
        self._cached: set[Path] = set()
        self._untold: list[Any] = []

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/reset_prefix_cache", self._reset)
        return app

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator["FakeEngine"]:
        runner = web.AppRunner(self.app(), handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        request = orjson.loads(await http.read())
        self.requests.append(request)
        self.request_ids.append(http.headers.get("x-request-id", ""))
        if self.refuses is not None:
            return web.json_response(self.refuses[1], status=self.refuses[0])
        try:
            await asyncio.sleep(60 if self.stalls else self.pause_s)
            cached = self._prefill(request["prompt"])
            if request.get("stream"):
                return await self._stream(http, request, cached)
            return web.json_response(self._whole(request, cached))
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            raise

    def _prefill(self, prompt: list[int]) -> int:
        """Tokens that were cached; stores what is new, and tells."""
        size = self.block_size
        ends = range(size, len(prompt) + 1, size)
        paths = [tuple(prompt[:end]) for end in ends]
        new = [path for path in paths if path not in self._cached]
        self._cached.update(new)
        if new and self.publisher is not None:
            self.publisher.publish(*self._untold, self.publisher.wire.stored(new[-1], size, len(new)))
            self._untold = []
        usable = [path for path in paths if path not in new and len(path) < len(prompt)]
        return len(usable) * size

    def _usage(self, request: dict[str, Any], cached: int) -> dict[str, Any]:
        tokens, answer = len(request["prompt"]), len(self.pieces) * request.get("n", 1)
        usage: dict[str, Any] = {"prompt_tokens": tokens, "completion_tokens": answer, "total_tokens": tokens + answer}
        return usage | ({"prompt_tokens_details": {"cached_tokens": cached}} if self.reports_cached else {})

    def _whole(self, request: dict[str, Any], cached: int) -> dict[str, Any]:
        choices = [
            {"index": index, "text": "".join(self.pieces), "logprobs": self._logprobs(request, self.pieces)}
            | {"finish_reason": "stop", "stop_reason": None}
            | ({"token_ids": [1, 2, 3], "prompt_token_ids": request["prompt"]} if "return_token_ids" in request else {})
            for index in range(request.get("n", 1))
        ]
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": request["model"]}
        return head | {"choices": choices, "usage": self._usage(request, cached)}

    @staticmethod
    def _logprobs(request: dict[str, Any], pieces: tuple[str, ...]) -> dict[str, Any] | None:
        if "logprobs" not in request:
            return None
        return {
            "tokens": list(pieces),
            "token_logprobs": [-0.5] * len(pieces),
            "top_logprobs": [{piece: -0.5, "other": -0.25, "\ufffd": -3.0} for piece in pieces],
            "text_offset": [0] * len(pieces),
        }

    async def _stream(self, http: web.Request, request: dict[str, Any], cached: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(http)
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": request["model"]}
        options = request.get("stream_options", {})
        sent = 0
        for position, piece in enumerate(self.pieces):
            for index in range(request.get("n", 1)):
                if sent == self.dies_after:
                    assert http.transport is not None
                    http.transport.abort()
                    return response
                last = position == len(self.pieces) - 1
                choice = {"index": index, "text": piece, "logprobs": self._logprobs(request, (piece,))}
                choice |= {"finish_reason": "stop" if last else None}
                if "return_token_ids" in request:
                    choice |= {"token_ids": [position], "prompt_token_ids": None if position else request["prompt"]}
                chunk = head | {"choices": [choice]}
                if options.get("continuous_usage_stats"):
                    chunk["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
                await response.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
                sent += 1
        if self.stream_error is not None:
            await response.write(b"data: " + orjson.dumps({"error": self.stream_error}) + b"\n\n")
        elif options.get("include_usage"):
            chunk = head | {"choices": [], "usage": self._usage(request, cached)}
            await response.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _models(self, http: web.Request) -> web.Response:
        model = {"id": "served", "object": "model", "max_model_len": self.max_model_len}
        return web.json_response({"object": "list", "data": [model]})

    async def _health(self, http: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _metrics(self, http: web.Request) -> web.Response:
        return web.Response(text=VLLM_METRICS) if self.has_metrics else web.Response(status=404)

    async def _tokenize(self, http: web.Request) -> web.Response:
        if not self.tokenizes:
            return web.Response(status=404)
        request = orjson.loads(await http.read())
        tokens = self.text.encode_plain(request["prompt"], add_special_tokens=request["add_special_tokens"])
        return web.json_response({"count": len(tokens), "max_model_len": self.max_model_len, "tokens": tokens})

    async def _reset(self, http: web.Request) -> web.Response:
        """Tells of it only with its next step, as vLLM does."""
        if self.stalls:
            return web.Response(body=b'{"success":false}')
        self._cached.clear()
        if self.publisher is not None:
            self._untold = [self.publisher.wire.cleared()]
        return web.Response(body=b'{"success":true}')
