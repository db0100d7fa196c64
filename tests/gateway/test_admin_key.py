from pathlib import Path

import pytest

from gateway.admin_key import authorise, load_admin_key
from gateway.config import ConfigError
from gateway.errors import NotAuthorised, NotLoopback

KEY = "0123456789abcdef-é"


@pytest.mark.parametrize("authorization", [f"Bearer {KEY}", f"bearer  {KEY} "])
@pytest.mark.parametrize("remote", ["10.0.0.1", "127.0.0.1", None])
def test_the_key_opens_from_anywhere(authorization: str, remote: str | None) -> None:
    authorise(authorization, remote, KEY)


@pytest.mark.parametrize(
    "authorization", ["", KEY, f"Basic {KEY}", "Bearer", "Bearer ", f"Bearer {KEY}x", "Bearer \udcff"]
)
def test_with_a_key_nothing_else_does(authorization: str) -> None:
    with pytest.raises(NotAuthorised):
        authorise(authorization, "127.0.0.1", KEY)


@pytest.mark.parametrize("remote", ["10.0.0.1", "", None, "nonsense"])
def test_without_one_others_are_refused(remote: str | None) -> None:
    with pytest.raises(NotLoopback):
        authorise(f"Bearer {KEY}", remote, None)


@pytest.mark.parametrize("remote", ["127.0.0.1", "::1", "127.9.9.9"])
def test_without_one_this_machine_may(remote: str) -> None:
    authorise("", remote, None)


def test_where_the_key_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    assert load_admin_key(file, {"RYOKAN_ADMIN_KEY": "another-one-that-is-long"}) == KEY
    assert load_admin_key(None, {"RYOKAN_ADMIN_KEY": KEY}) == KEY
    assert load_admin_key(None, {}) is None


def test_a_key_that_can_t_be_used_is_refused_and_not_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing"):
        load_admin_key(tmp_path / "missing", {})
    (tmp_path / "key").write_text("short\n")
    for file, environment in ((tmp_path / "key", {}), (None, {"RYOKAN_ADMIN_KEY": "short"})):
        with pytest.raises(ConfigError, match="less than 16") as refused:
            load_admin_key(file, environment)
        assert "short" not in str(refused.value)
