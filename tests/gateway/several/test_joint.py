from collections.abc import Mapping

import orjson

from gateway.http.exchange import Flow
from gateway.relay import KEEP_ALIVE
from gateway.several.joint import Joint, PartExchange
from gateway.several.merge import StreamMerger


class Client:
    """An exchange that keeps what it is given."""

    method, path, remote = "POST", "/v1/completions", "127.0.0.1"

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.more_headers: Mapping[str, str] = {}
        self.written: list[bytes] = []
        self.flow: Flow | None = None
        self.ended = False

    async def body(self) -> bytes:
        return b""

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        raise AssertionError("a stream isn't sent at once")

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def end(self) -> None:
        self.ended = True

    def draw_from(self, flow: Flow | None) -> None:
        self.flow = flow


class Source:
    def __init__(self) -> None:
        self.paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Scene:
    def __init__(self) -> None:
        self.now = 0.0
        self.client = Client()
        self.joint = Joint(
            self.client, StreamMerger(2, 1, lambda given: given), lambda: {"x": "y"}, lambda: self.now, 10
        )
        self.joint.opened = True
        self.parts = [PartExchange(prompt, self.client, self.joint) for prompt in (0, 1)]


EVENT = b"data: " + orjson.dumps({"id": "a", "choices": [{"index": 0, "text": "x"}]}) + b"\n\n"


def test_the_reply_begins_with_its_first_bytes() -> None:
    scene = Scene()
    scene.parts[1].start(200, {})
    assert scene.client.status == 0
    scene.parts[1].write(EVENT)
    assert (scene.client.status, len(scene.client.written)) == (200, 1)
    for part in scene.parts:
        part.end()
    assert not scene.client.ended
    scene.joint.end()
    assert scene.client.ended


def test_a_sign_of_life_is_for_all_and_only_where_there_is_silence() -> None:
    scene = Scene()
    scene.parts[0].write(EVENT)
    scene.now = 4
    scene.parts[1].write(KEEP_ALIVE)
    assert KEEP_ALIVE not in scene.client.written
    scene.now = 10
    for part in scene.parts:
        part.write(KEEP_ALIVE)
    assert scene.client.written.count(KEEP_ALIVE) == 1


def test_none_goes_out_before_it_is_sure_that_there_will_be_an_answer() -> None:
    scene = Scene()
    scene.joint.opened = False
    scene.now = 10
    scene.parts[0].write(KEEP_ALIVE)
    assert scene.client.status == 0
    scene.joint.opened = True
    scene.parts[0].write(KEEP_ALIVE)
    assert scene.client.written == [KEEP_ALIVE]


def test_a_client_that_does_not_keep_up_holds_up_all() -> None:
    scene, sources = Scene(), [Source(), Source()]
    for part, source in zip(scene.parts, sources, strict=True):
        part.draw_from(source)
    assert scene.client.flow is not None
    scene.client.flow.pause_reading()
    assert [source.paused for source in sources] == [True, True]
    scene.client.flow.resume_reading()
    assert [source.paused for source in sources] == [False, False]
    scene.parts[0].draw_from(None)
    scene.client.flow.pause_reading()
    assert [source.paused for source in sources] == [False, True]
    scene.parts[1].draw_from(None)
    assert scene.client.flow is None
