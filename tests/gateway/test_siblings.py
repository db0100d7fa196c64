"""Workers that speak for each other; as real processes in tests/e2e/test_rolling.py."""

from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.siblings import Siblings, merged_metrics


def exposition(requests: int, tasks: int) -> str:
    registry = CollectorRegistry()
    Counter("requests", "Of clients", ("path",), registry=registry).labels('a "quoted} {path').inc(requests)
    Gauge("tasks", "Now", registry=registry).set(tasks)
    return generate_latest(registry).decode()


def test_each_sample_says_whose_it_is() -> None:
    text = merged_metrics([(0, exposition(3, 7)), (1, exposition(4, 8))])
    families = {family.name: family for family in text_string_to_metric_families(text)}
    counted = {
        sample.labels["worker"]: sample.value
        for sample in families["requests"].samples
        if sample.name.endswith("total")
    }
    assert counted == {"0": 3, "1": 4}
    assert all(sample.labels["path"] == 'a "quoted} {path' for sample in families["requests"].samples)
    assert [(sample.labels, sample.value) for sample in families["tasks"].samples] == [
        ({"worker": "0"}, 7),
        ({"worker": "1"}, 8),
    ]
    assert text.count("# TYPE tasks ") == 1


async def test_one_that_is_not_there_is_none_and_harms_no_other(tmp_path: Path) -> None:
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text=f"{request.method} {request.path_qs} {(await request.read()).decode()}")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", hello)
    runner = web.AppRunner(app)
    await runner.setup()
    sockets = tuple(tmp_path / f"{number}.sock" for number in range(3))
    try:
        await web.UnixSite(runner, sockets[2]).start()
        replies = await Siblings(sockets, 0).ask("POST", "/a?b=1", b"body")
    finally:
        await runner.cleanup()
    assert replies[1] is None
    assert replies[2] is not None and replies[2].body == b"POST /a?b=1 body"
