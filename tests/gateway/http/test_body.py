"""Bodies in pieces: any split gives the same payload and the same excess."""

from random import Random

import pytest

from gateway.http.body import Body, Chunked, Fixed, UntilClose
from gateway.http.errors import HttpError
from tests.gateway.http.raw import chunked


def fed(body: Body, pieces: list[bytes]) -> tuple[bytes, bytes]:
    """Payload, and what came behind the end."""
    payload, excess = b"", b""
    for piece in pieces:
        if body.done:
            excess += piece
        else:
            payload += body.feed(piece)
            excess = body.excess
    return payload, excess


def cut(whole: bytes, rng: Random) -> list[bytes]:
    cuts = sorted(rng.sample(range(1, len(whole)), rng.randrange(min(len(whole), 30))))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@pytest.mark.parametrize("seed", range(60))
def test_b11_any_split_gives_the_same(seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    payload = rng.randbytes(rng.randrange(1, 400))
    ends = [b"0\r\n\r\n", b"0;ext=1\r\n\r\n", b"000\r\ntrailer: x\r\nother:\r\n\r\n"]
    whole = chunked(payload, rng.randrange(1, 60)).removesuffix(b"0\r\n\r\n") + rng.choice(ends)
    body = Chunked()
    assert fed(body, cut(whole + b"next\r\n\r\n", rng)) == (payload, b"next\r\n\r\n")
    assert body.done
    fixed = Fixed(len(payload))
    assert fed(fixed, cut(payload + b"next", rng)) == (payload, b"next")
    assert fixed.done


def test_nothing_is_whole_at_once_and_some_never() -> None:
    assert Fixed(0).done
    endless = UntilClose()
    assert fed(endless, [b"a", b"b"]) == (b"ab", b"") and not endless.done


@pytest.mark.parametrize(
    "raw",
    [b"g\r\n", b"\r\n", b"1\r\nabc", b"1 1\r\n", b"1\n", b"0x1\r\n", b"1" * 16 + b"\r\n", b"0\r\nno field\r\n\r\n"],
)
@pytest.mark.parametrize("size", [1, 100])
def test_odd_chunks_are_refused(raw: bytes, size: int) -> None:
    body = Chunked()
    with pytest.raises(HttpError):
        for at in range(0, len(raw), size):
            body.feed(raw[at : at + size])


@pytest.mark.parametrize("seed", range(20))
def test_many_whole_chunks_in_one_read(seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    payloads = [rng.randbytes(rng.choice([1, 9, 300, 4095, 4096])) for _ in range(rng.randrange(1, 9))]
    body = Chunked()
    for _ in range(3):
        assert body.feed(b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in payloads)) == b"".join(payloads)
    assert (body.feed(b"3\r\nabc\r\n0\r\n\r\n"), body.done) == (b"abc", True)


@pytest.mark.parametrize("seed", range(40))
def test_whole_chunks_and_an_end_in_one_read_are_what_they_are_byte_by_byte(seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    parts = [b"0\r\n", b"\r\n", b"0", b"a", b"10"]
    for _ in range(20):
        payloads = [b"".join(rng.choices(parts, k=rng.randrange(1, 9))) for _ in range(rng.randrange(4))]
        whole = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in payloads)
        whole += rng.choice([b"", b"0\r\n\r\n", b"0\r\n\r\n0\r\n\r\n"])
        at_once, slowly = Chunked(), Chunked()
        assert fed(at_once, [whole]) == fed(slowly, [bytes([byte]) for byte in whole])
        assert at_once.done is slowly.done
