"""A whole comparison over real HTTP against a scripted gateway and replicas, whose caches are exact sets of blocks."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from io import StringIO
from pathlib import Path

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console

from loadtest.compare import CompareOptions, compare, ours_and_baseline
from loadtest.errors import CompareError
from loadtest.report import publish
from replica.protocol.hashing import BLOCK_SIZE, block_hashes
from replica.protocol.text import ModelText

FIGURES = [
    *("ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "itl_mean_s", "tps_mean", "throughput_tokens_per_s"),
    *("prompt_tokens", "prompt_tokens_computed", "cached_tokens_delivered", "cached_tokens_limit"),
    *("requests_failed", "output_tokens_by_replica", "requests_by_replica"),
]


class FakeReplica:
    def __init__(self, name: str, text: ModelText, speed: float) -> None:
        self.name = name
        self.cache: set[int] = set()
        self.epoch = 0
        self.requests = 0
        self.refusals = 0
        self.url = ""
        self._text = text
        self._speed = speed
        self._prefilling = asyncio.Lock()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/cache/reset", self._reset)
        return app

    def match(self, tokens: list[int]) -> int:
        hashes = block_hashes(tokens, 0)[: (len(tokens) - 1) // BLOCK_SIZE]
        return BLOCK_SIZE * next((i for i, block in enumerate(hashes) if block not in self.cache), len(hashes))

    async def answer(self, request: web.Request, body: dict[str, object], headers: dict[str, str]) -> None:
        """Prefills in turn, then streams words that tell how many there are; the cache takes prompt and answer."""
        self.requests += 1
        prompt = self._text.render(body["messages"])  # type: ignore[arg-type]
        tokens = self._text.encode_chat(prompt)
        async with self._prefilling:
            cached = self.match(tokens)
            await asyncio.sleep((len(tokens) - cached) * 4e-6 * self._speed)
            self.cache.update(block_hashes(tokens, 0))
        response = web.StreamResponse(headers=headers | {"x-ryokan-delivered-tokens": str(cached)})
        await response.prepare(request)
        count = int(str(body["max_tokens"]))
        words = [f" {word}" for word in ("step-free", "lift", "wide", "ramp")]
        answer = "".join(words[i % 4] for i in range(count))
        for i in range(count):
            await response.write(_event({"choices": [{"delta": {"content": words[i % 4]}}]}))
            await asyncio.sleep(1e-4 * self._speed)
        self.cache.update(block_hashes(self._text.encode_chat(prompt + answer), 0))
        usage = {
            "prompt_tokens": len(tokens),
            "completion_tokens": count,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        await response.write(_event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert body["model"] == f"fake-{self.name}"
        await self.answer(request, body, {})
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": f"fake-{self.name}"}]})

    async def _reset(self, request: web.Request) -> web.Response:
        self.refusals -= 1
        if self.refusals >= 0:
            return web.Response(status=409, text="requests are running")
        self.cache = set()
        self.epoch += 1
        return web.json_response({})


def _event(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


class FakeFleet:
    """`speed` stretches all sleeps; `lag` is how many polls the gateway's view of a reset comes late."""

    def __init__(self, text: ModelText, replicas: int = 2, speed: float = 1.0, lag: int = 2) -> None:
        self.replicas = [FakeReplica(f"r{number}", text, speed) for number in range(replicas)]
        self.policy = "least_tokens"
        self.policies_set: list[str] = []
        self.fail_request: int | None = None
        self.url = ""
        self._text = text
        self._lag = lag
        self._shown: dict[str, tuple[int, int]] = {}
        self._polls = 0
        self._routed = 0
        self._traces: dict[str, dict[str, object]] = {}

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/admin/policy", self._set_policy)
        app.router.add_get("/replicas", self._replicas)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/trace/{id}", self._trace)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake"}]})

    async def _set_policy(self, request: web.Request) -> web.Response:
        name = (await request.json())["policy"]
        if name not in ("round_robin", "ttft", "least_tokens"):
            return web.json_response({"error": {"message": f"unknown policy {name}"}}, status=400)
        previous, self.policy = self.policy, name
        self.policies_set.append(name)
        return web.json_response({"policy": name, "previous": previous})

    async def _replicas(self, request: web.Request) -> web.Response:
        self._polls += 1
        if self._lag == 0 or self._polls % (self._lag + 1) == 0:
            self._shown = {replica.name: (replica.epoch, len(replica.cache)) for replica in self.replicas}
        rows = []
        for replica in self.replicas:
            epoch, blocks = self._shown.get(replica.name, (0, 0))
            shown = {"epoch": str(epoch), "indexed_blocks": blocks, "synced": True}
            rows.append({"id": replica.name, "url": replica.url, "state": "ready"} | shown)
        gone = {"id": "gone", "url": "http://x", "state": "draining", "epoch": "1"}
        return web.json_response([*rows, gone | {"indexed_blocks": 3, "synced": False}])

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        start_s = time.perf_counter()
        body = await request.json()
        tokens = self._text.encode_chat(self._text.render(body["messages"]))
        self._routed += 1
        if self._routed == self.fail_request:
            return web.json_response({"error": {"message": "no room"}}, status=429)
        replica = self.replicas[self._routed % len(self.replicas)]
        if self.policy == "ttft":
            replica = max(self.replicas, key=lambda one: (one.match(tokens), -one.requests))
        cached, request_id = replica.match(tokens), f"id-{self._routed}"
        routed_s = time.perf_counter() - start_s
        headers = {
            "x-request-id": request_id,
            "x-ryokan-replica": replica.name,
            "x-ryokan-cached-tokens": str(cached),
        }
        await replica.answer(request, body, headers)
        if request.headers.get("x-ryokan-trace") == "1":
            end_s = time.perf_counter() - start_s
            self._keep_trace(request_id, replica.name, len(tokens), cached, int(body["max_tokens"]), routed_s, end_s)
        return web.Response()

    def _keep_trace(
        self, request_id: str, replica: str, tokens: int, cached: int, outputs: int, routed_s: float, end_s: float
    ) -> None:
        first_s = routed_s + (end_s - routed_s) * 0.2
        step_s = (end_s - first_s) / outputs
        self._traces[request_id] = {
            "request_id": request_id,
            "events": [
                {"event": "received", "at_s": 0.0},
                {"event": "tokenised", "at_s": routed_s * 0.8, "tokens": tokens},
                {"event": "routed", "at_s": routed_s, "replica": replica, "predicted_cached_tokens": cached},
                {"event": "dispatched", "at_s": routed_s * 1.1, "replica": replica},
                {"event": "queued", "at_s": routed_s * 1.5, "source": "replica"},
                {
                    "event": "prefill",
                    "at_s": first_s * 0.97,
                    "cached_tokens": cached,
                    "computed_tokens": tokens - cached,
                },
                {"event": "first_token", "at_s": first_s * 0.98, "source": "replica"},
                {"event": "first_byte", "at_s": first_s},
                {"event": "done", "at_s": end_s * 0.99, "output_tokens": outputs, "source": "replica"},
                {"event": "done", "at_s": end_s},
            ],
            "kv": [[first_s * 0.98 + step * step_s, tokens + step] for step in range(outputs)],
        }

    async def _trace(self, request: web.Request) -> web.Response:
        trace = self._traces.get(request.match_info["id"])
        if trace is None:
            return web.json_response({"error": {"message": "no such trace"}}, status=404)
        return web.json_response(trace)


@pytest.fixture
async def fleet(tiny_text: ModelText) -> AsyncIterator[FakeFleet]:
    async with AsyncExitStack() as stack:
        fleet = FakeFleet(tiny_text)
        for replica in fleet.replicas:
            replica.url = await serve(stack, replica.app())
        fleet.url = await serve(stack, fleet.app())
        yield fleet


async def serve(stack: AsyncExitStack, app: web.Application) -> str:
    server = TestServer(app)
    await server.start_server()
    stack.push_async_callback(server.close)
    return str(server.make_url(""))


def options(fleet: FakeFleet, model: Path, **changes: object) -> CompareOptions:
    fields: dict[str, object] = {"agents": 6, "cities": 2, "output_tokens": 20, **changes}
    return CompareOptions(gateway_url=fleet.url, model=model, **fields)  # type: ignore[arg-type]


def quiet() -> Console:
    return Console(file=StringIO(), width=120)


async def test_a_comparison_end_to_end(fleet: FakeFleet, chatml_folder: Path, tmp_path: Path) -> None:
    console = quiet()
    report = await compare(options(fleet, chatml_folder, agents=9, ramp_s=0.3), console)
    files = publish(report, tmp_path / "out", console)
    written = orjson.loads(files.json.read_bytes())
    assert written["bench"] == "demo" and list(written["policies"]) == ["round_robin", "ttft"]
    assert written["order"] == ["round_robin", "ttft"]
    for figures in written["policies"].values():
        assert all(figures[name] is not None for name in FIGURES)
        assert figures["requests_failed"] == figures["requests_not_sent"] == 0
        assert sum(figures["requests_by_replica"].values()) == 18
        assert sum(figures["output_tokens_by_replica"].values()) == figures["output_tokens"] == 18 * 20
        assert set(figures["requests_by_replica"]) == {"r0", "r1"}
        assert 0 < figures["cached_tokens_delivered"] <= figures["cached_tokens_limit"]
        assert figures["prompt_tokens"] == figures["prompt_tokens_computed"] + figures["cached_tokens_delivered"]
        assert figures["cached_tokens_predicted"] <= figures["cached_tokens_delivered"]
    ratios = written["ratios"]
    assert (ratios["policy"], ratios["baseline"]) == ("ttft", "round_robin")
    computed = [written["policies"][name]["prompt_tokens_computed"] for name in ("ttft", "round_robin")]
    assert computed[0] < computed[1]
    assert ratios["prompt_tokens_computed"] == pytest.approx(computed[0] / computed[1])
    assert written["warmup"]["requests"] == 2 * 2 * 3
    assert {"cpu", "cores", "memory_gib", "os"} <= written["machine"].keys()
    assert written["workload"]["seed"] == 1 and written["workload"]["prompt_tokens"] == 1025
    assert len(written["samples"]["ttft"]["ttft_s"]) == 18
    assert "prompt tokens" in console.file.getvalue().lower()  # type: ignore[attr-defined]
    assert "<svg" in files.html.read_text()


async def test_the_traced_request_is_kept_as_an_example(fleet: FakeFleet, chatml_folder: Path) -> None:
    request = (await compare(options(fleet, chatml_folder), quiet())).request
    assert request["prompt_tokens"] == 1025 and 900 < request["cached_tokens"] < 1025
    assert [event["event"] for event in request["events"]][::9] == ["received", "done"]
    assert [entries for _, entries in request["kv"]] == list(range(1025, 1045))
    assert request["replica"] in ("r0", "r1") and request["policy"] == "ttft"


async def test_every_run_starts_from_empty_caches_and_the_policy_is_put_back(
    fleet: FakeFleet, chatml_folder: Path
) -> None:
    report = await compare(options(fleet, chatml_folder, rounds=2), quiet())
    assert report.order == ["round_robin", "ttft", "ttft", "round_robin"]
    assert fleet.policies_set == ["round_robin", *report.order, "ttft", "least_tokens"]
    assert [replica.epoch for replica in fleet.replicas] == [4, 4]
    first, second = report.policies["ttft"]["rounds"]
    assert first["cached_tokens_delivered"] == pytest.approx(second["cached_tokens_delivered"], rel=0.3)


async def test_a_replica_that_is_still_busy_is_reset_a_moment_later(fleet: FakeFleet, chatml_folder: Path) -> None:
    fleet.replicas[1].refusals = 2
    report = await compare(options(fleet, chatml_folder, policies=("ttft",)), quiet())
    assert report.requests_failed == 0 and fleet.replicas[1].refusals == -1


async def test_failed_requests_are_counted_and_shown(fleet: FakeFleet, chatml_folder: Path) -> None:
    fleet.fail_request = 2
    report = await compare(options(fleet, chatml_folder), quiet())
    assert report.policies["round_robin"]["requests_failed"] == 1
    assert report.policies["round_robin"]["requests_not_sent"] == 1
    assert report.requests_failed == 2


async def test_an_open_loop(fleet: FakeFleet, chatml_folder: Path) -> None:
    report = await compare(options(fleet, chatml_folder, rate_per_s=100.0, policies=("ttft",)), quiet())
    assert report.workload["closed_loop"] is False and report.policies["ttft"]["requests"] == 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": ("round_robin", "nonsense")}, "unknown policy nonsense"),
        ({"policies": ()}, "policies"),
        ({"policies": ("ttft", "ttft")}, "policies"),
        ({"cities": 99}, "cities"),
        ({"model": Path("/nowhere")}, "config.json"),
    ],
)
async def test_bad_options_are_clear_errors(
    fleet: FakeFleet, chatml_folder: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(CompareError, match=message):
        await compare(options(fleet, **{"model": chatml_folder, **changes}), quiet())  # type: ignore[arg-type]
    assert fleet.policy == "least_tokens"


async def test_no_replica_is_a_clear_error(fleet: FakeFleet, chatml_folder: Path) -> None:
    fleet.replicas.clear()
    with pytest.raises(CompareError, match="no replica that is ready"):
        await compare(options(fleet, chatml_folder), quiet())


async def test_another_models_tokenizer_is_noticed(fleet: FakeFleet, chatml_folder: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((chatml_folder / name).read_bytes())
    template = "{% for m in messages %}{{ m['role'] + ' ' + m['content'] }}{% endfor %}"
    (tmp_path / "tokenizer_config.json").write_bytes(orjson.dumps({"chat_template": template}))
    with pytest.raises(CompareError, match="isn't the model that it serves"):
        await compare(options(fleet, tmp_path), quiet())


def test_the_pair_that_is_compared() -> None:
    assert ours_and_baseline(("ttft", "lmetric", "round_robin")) == ("ttft", "round_robin")
    assert ours_and_baseline(("chwbl", "lmetric")) == ("lmetric", "chwbl")
    assert ours_and_baseline(("chwbl",)) == ("chwbl", "chwbl")
