"""What the gateway's tests stand on: a tiny model folder, a replica that can misbehave, and a publisher of digests."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from gateway.app import make_app
from gateway.config import GatewayConfig
from gateway.front import make_front, make_runner
from gateway.identity import Identity
from replica.protocol import headers
from replica.protocol.canary import fingerprints
from replica.protocol.hashing import BLOCK_SIZE, HASH_VERSION
from replica.protocol.listening import bind, listen
from replica.protocol.records import (
    CostModel,
    Delta,
    Heartbeat,
    Keys,
    Load,
    ReplicaState,
    Snapshot,
    StateChange,
    xor_root,
)
from replica.protocol.text import ModelText

COST = CostModel(c0=0.005, c_lin=2e-4, c_att=1e-8, c_dec=1e-4, max_step_tokens=512)
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
IDENTITY = Identity("model", "tokenizer")


def write_model(folder: Path, *, max_context: int = 4096, **special: Any) -> Path:
    """A byte-level BPE model folder without weights: every byte is a token, with a few merges."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: number for number, letter in enumerate(alphabet)}
    merges = [("t", "h"), ("th", "e"), ("a", "n"), ("Ġ", "the")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=special.pop("add_prefix_space", False))
    tokenizer.decoder = decoders.ByteLevel()
    names = special.pop("names", ("<|im_start|>", "<|im_end|>", "<|im_end|><|x|>"))
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, **special) for name in names])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": max_context, "eos_token_id": 261}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}))
    return folder


def heartbeat(replica: str = "r1", **changes: Any) -> Heartbeat:
    fields: dict[str, Any] = {
        "replica": replica,
        "url": "http://127.0.0.1:1",
        "state": ReplicaState.READY,
        "model": "tiny",
        "model_fingerprint": IDENTITY.model_fingerprint,
        "tokenizer_fingerprint": IDENTITY.tokenizer_fingerprint,
        "hash_version": HASH_VERSION,
        "block_size": BLOCK_SIZE,
        "max_context": 4096,
        "epoch": "e1",
        "cost": COST,
        "load": Load(),
    }
    return Heartbeat(**(fields | changes))


class Publisher:
    """A replica's publishing side, step by step: what it holds, and what of that it tells Redis."""

    def __init__(self, redis: Any, beat: Heartbeat, keys: Keys | None = None) -> None:
        self.redis = redis
        self.keys = keys or Keys()
        self.beat_record = beat
        self.held: set[int] = set()
        self.epoch = beat.epoch
        self.seq = 0
        self.last_id = "0-0"
        self.beats = 0
        self._stopped = asyncio.Event()

    @property
    def name(self) -> str:
        return self.beat_record.replica

    async def beat(self, **changes: Any) -> None:
        fields = {name: getattr(self.beat_record, name) for name in Heartbeat.__dataclass_fields__}
        self.beats += 1
        self.beat_record = Heartbeat(**(fields | {"epoch": self.epoch, "seq": self.seq, "beats": self.beats} | changes))
        await self.redis.sadd(self.keys.replicas, self.name)
        await self.redis.set(self.keys.heartbeat(self.name), self.beat_record.encode(), px=2000)

    async def announce(self) -> None:
        await self.redis.xadd(self.keys.stream, StateChange(self.name).encode())

    async def change(self, added: Iterable[int] = (), removed: Iterable[int] = (), *, lost: bool = False) -> None:
        """One step of the cache; `lost`: Redis never gets the delta."""
        added, removed = tuple(added), tuple(removed)
        self.held |= set(added)
        self.held -= set(removed)
        self.seq += 1
        delta = Delta(self.name, self.epoch, self.seq, added, removed, len(self.held), xor_root(self.held))
        if not lost:
            self.last_id = (await self.redis.xadd(self.keys.stream, delta.encode())).decode()

    async def snapshot(self) -> None:
        """Behind a delta, whose stream id is surely of the stream that is there now."""
        await self.change()
        data = Snapshot(self.epoch, self.seq, self.last_id, tuple(self.held)).encode()
        await self.redis.set(self.keys.snapshot(self.name), data)
        await self.redis.delete(self.keys.snapshot_wanted(self.name))

    def new_epoch(self, epoch: str) -> None:
        self.held, self.seq, self.epoch = set(), 0, epoch

    async def serve(self) -> None:
        """Beats, and answers wishes for snapshots, until stopped.

        NOTE: cancelling alone isn't enough, since the Redis client may swallow it (see `index/reader.py`).
        """
        while not self._stopped.is_set():
            with contextlib.suppress(RedisConnectionError):  # Some tests kill connections.
                await self._serve_once()

    async def _serve_once(self) -> None:
        await self.beat()
        for _ in range(10):
            if self._stopped.is_set():
                return
            if await self.redis.exists(self.keys.snapshot_wanted(self.name)):
                await self.snapshot()
            await asyncio.sleep(0.05)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Publisher"]:
        self._stopped.clear()
        task = asyncio.create_task(self.serve())
        try:
            yield self
        finally:
            self._stopped.set()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def redis_client(url: str) -> AsyncIterator[Any]:
    client: Any = Redis.from_url(url, protocol=2)
    try:
        yield client
    finally:
        await client.aclose()


Behaviour = Callable[["FakeReplica", web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@dataclass
class FakeReplica:
    """A real HTTP server that answers as it is told to, and keeps what it was asked."""

    name: str
    behaviour: Behaviour
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    seen_headers: list[dict[str, str]] = field(default_factory=list)
    aborted: int = 0
    """Requests whose client left before the end."""
    live: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """For behaviours that wait until the test lets them go on."""

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        self.requests.append(body)
        self.seen_headers.append({name.lower(): value for name, value in request.headers.items()})
        self.live += 1
        try:
            return await self.behaviour(self, request, body)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.live -= 1

    async def _trace(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "events": [{"event": "queued", "at_s": 0.0}, {"event": "done", "at_s": 0.25, "output_tokens": 3}],
                "kv": [[0.1, 7]],
            }
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeReplica"]:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self._generate)
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_get("/trace/{request_id}", self._trace)
        async with serving(app) as self.url:
            yield self


@asynccontextmanager
async def serving(app: web.Application, runner: web.AppRunner | None = None) -> AsyncIterator[str]:
    """Runs an application on a free port; its URL."""
    runner = runner or web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{site.port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serving_lean(app: web.Application) -> AsyncIterator[str]:
    """A gateway's application as in life: behind the lean server."""
    runner = make_runner(app, 0.2)
    await runner.setup()
    front = make_front(runner)
    listener = bind("127.0.0.1", 0)
    listen(listener)
    await front.listen(listener)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        front.drain()
        await runner.cleanup()
        await front.close(0.2)


def serving_aiohttp(app: web.Application) -> contextlib.AbstractAsyncContextManager[str]:
    return serving(app, make_runner(app, 0.2))


SERVERS: dict[str, Callable[[web.Application], contextlib.AbstractAsyncContextManager[str]]] = {
    "lean": serving_lean,
    "aiohttp": serving_aiohttp,
}
SERVER = "lean"
"""What `gateway` runs behind."""


def event(text: str) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}) + b"\n\n"


async def open_stream(request: web.Request, delivered: int = 0) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", headers.DELIVERED_TOKENS: str(delivered)}
    )
    await response.prepare(request)
    return response


async def answers(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """A short, good answer."""
    if not body.get("stream"):
        value = {"object": "chat.completion", "choices": [{"index": 0, "message": {"content": replica.name}}]}
        return web.json_response(value, headers={headers.DELIVERED_TOKENS: "16"})
    response = await open_stream(request, delivered=16)
    for text in ("one ", "two ", replica.name):
        await response.write(event(text))
    await response.write(b"data: [DONE]\n\n")
    return response


def answers_status(status: int) -> Behaviour:
    async def behave(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        error = {"error": {"message": f"fake {status}", "type": "fake", "param": None, "code": None}}
        return web.json_response(error, status=status)

    return behave


async def resets(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Closes the connection instead of answering."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def stalls(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Sends nothing until the gate opens."""
    await replica.gate.wait()
    return await answers(replica, request, body)


async def stalls_in_stream(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """One event, and no other until the gate opens."""
    response = await open_stream(request)
    await response.write(event("one "))
    await replica.gate.wait()
    await response.write(event("two ") + b"data: [DONE]\n\n")
    return response


async def dies_in_body(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Half an event or half a JSON body, then the end."""
    if body.get("stream"):
        response = await open_stream(request)
        await response.write(event("one ") + b'data: {"choi')
    else:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "100"})
        await response.prepare(request)
        await response.write(b'{"object"')
    await asyncio.sleep(0.05)
    assert request.transport is not None
    request.transport.abort()
    return response


@dataclass
class Stack:
    """A gateway with its fleet, all real but for the engines."""

    url: str
    app: web.Application
    redis: Any
    http: aiohttp.ClientSession

    async def chat(self, text: str = "Is there a ramp?", **fields: Any) -> aiohttp.ClientResponse:
        return await self.http.post(f"{self.url}/v1/chat/completions", json=chat_body(text, **fields))


def chat_body(text: str = "Is there a ramp?", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}]} | fields


@asynccontextmanager
async def gateway(config: GatewayConfig, load: Callable[[], GatewayConfig] | None = None) -> AsyncIterator[Stack]:
    app = make_app(config, [ModelText.load(config.model, "tiny")], load=load)
    async with (
        SERVERS[SERVER](app) as url,
        redis_client(config.redis_url) as redis,
        aiohttp.ClientSession() as http,
    ):
        yield Stack(url, app, redis, http)


def publisher_for(redis: Any, replica: FakeReplica, model: Path, **changes: Any) -> Publisher:
    fields = {"url": replica.url, **fingerprints(ModelText.load(model)), **changes}
    return Publisher(redis, heartbeat(replica.name, **fields))


async def eventually(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Waits until it holds; fails the test where it never does."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


def blocks(prefix: int, count: int) -> Sequence[int]:
    """Distinct fake block hashes, spread over the 64-bit range as real ones are."""
    return [((prefix << 20) + number) * 0x9E3779B97F4A7C15 % 2**64 for number in range(1, count + 1)]
