import asyncio

import pytest
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AuthenticationError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from replica.protocol.redis_link import REASONS_MAX, REPEAT_S, REPLIES_AT_ONCE, Complaints, _Tcp, explain


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AuthenticationError("WRONGPASS invalid username-password pair"), "user or password is wrong"),
        (AuthenticationError("NOAUTH Authentication required."), "it wants a password"),
        (NoPermissionError("User x has no permissions to run the 'xadd' command"), "the user may not do that"),
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "its memory is full"),
        (ReadOnlyError("You can't write against a read only replica."), "read-only copy"),
        (MovedError("1 127.0.0.1:2"), "another node of the cluster"),
        (ResponseError("WRONGTYPE Operation against a key"), "a key of ours holds something else"),
        (TimeoutError(), "it didn't answer in time"),
        (ConnectionResetError(), "ConnectionResetError"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(error: Exception, words: str) -> None:
    assert words in explain(error)
    assert "\n" not in explain(error)


def test_what_was_to_be_written_is_not_said() -> None:
    error = OutOfMemoryError("Command # 1 (SET k {'a': (1)}) of pipeline caused error: ('not allowed',)")
    assert explain(error) == "its memory is full (maxmemory): not allowed"


def test_a_reason_is_repeated_after_a_while_only() -> None:
    complaints = Complaints()
    assert [complaints.is_new("a", now) for now in (0.0, 1.0, REPEAT_S - 1, REPEAT_S, REPEAT_S + 1)] == [
        *(True, False, False),
        *(True, False),
    ]
    assert complaints.is_new("b", 1.0)
    for number in range(3 * REASONS_MAX):
        assert complaints.is_new(str(number), 0.0)


async def test_others_have_their_turn_between_replies_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async def there(connection: AbstractConnection) -> bytes:
        return b""

    monkeypatch.setattr(AbstractConnection, "read_response", there)

    async def read() -> None:
        connection = _Tcp(host="127.0.0.1", port=1)
        for _ in range(10 * REPLIES_AT_ONCE):
            await connection.read_response()

    reading, turns = asyncio.create_task(read()), 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert 10 <= turns < 20
