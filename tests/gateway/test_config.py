from pathlib import Path

import pytest

from gateway.config import ConfigError, GatewayConfig, Timeouts


def config(**changes: object) -> GatewayConfig:
    return GatewayConfig(**({"model": Path("m"), "redis_url": "redis://h:1"} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", -1),
        ("port", 65536),
        ("fleet", ""),
        ("fleet", "a{b}"),
        ("redis_url", "http://x"),
        ("redis_url", ""),
        ("upstreams", ("h:1",)),
        ("probe_interval_s", 0),
        ("replica_networks", ("10.0.0.1/8",)),
        ("replica_networks", ("http://x",)),
        ("body_limit", 0),
        ("retry_budget", 1.5),
        ("tokenise_threads", 0),
        ("index_max_blocks", 0),
    ],
)
def test_a_bad_setting_is_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        config(**{name: value})


def test_upstreams_need_no_redis() -> None:
    assert config(redis_url="", upstreams=("http://h:1",)).upstreams == ("http://h:1",)


def test_times_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="idle_s"):
        Timeouts(idle_s=0)


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_loopback(host: str, loopback: bool) -> None:
    assert config(host=host).is_loopback is loopback


def test_the_redis_password_stays_out_of_what_is_shown() -> None:
    assert "secret" not in repr(config(redis_url="redis://user:secret@host:6379/1"))


def test_the_admin_key_stays_out_of_what_is_shown() -> None:
    assert "secret" not in repr(config(admin_key="secret-0123456789"))
