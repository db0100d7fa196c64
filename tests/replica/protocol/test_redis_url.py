from pathlib import Path

import pytest

from replica.protocol.redis_url import RedisUrl, RedisUrlError, Tls, parse_redis_url, without_secret


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", RedisUrl("standalone", (("h", 6379),))),
        ("redis://h:7/3", RedisUrl("standalone", (("h", 7),), db=3)),
        ("redis://h?db=3", RedisUrl("standalone", (("h", 6379),), db=3)),
        ("redis://:p%40ss@h", RedisUrl("standalone", (("h", 6379),), password="p@ss")),
        ("redis://u:p:q@[::1]:7", RedisUrl("standalone", (("::1", 7),), username="u", password="p:q")),
        ("unix:///run/redis.sock?db=2", RedisUrl("unix", path="/run/redis.sock", db=2)),
        ("unix://u:p@/run/r", RedisUrl("unix", path="/run/r", username="u", password="p")),
        (
            "redis+sentinel://u:p@a,b:7,[::1]/main/2?sentinel_username=s",
            RedisUrl(
                "sentinel",
                (("a", 26379), ("b", 7), ("::1", 26379)),
                service="main",
                db=2,
                username="u",
                password="p",
                sentinel_username="s",
            ),
        ),
        ("redis+cluster://a:1,b:2", RedisUrl("cluster", (("a", 1), ("b", 2)))),
        ("rediss+cluster://a", RedisUrl("cluster", (("a", 6379),), tls=Tls())),
        ("rediss://h", RedisUrl("standalone", (("h", 6379),), tls=Tls())),
        (
            "rediss://h?ssl_cert_reqs=none",
            RedisUrl("standalone", (("h", 6379),), tls=Tls(None, None, None, False, False)),
        ),
        ("rediss://h?ssl_check_hostname=no", RedisUrl("standalone", (("h", 6379),), tls=Tls(check_hostname=False))),
    ],
)
def test_urls(url: str, expected: RedisUrl) -> None:
    assert parse_redis_url(url) == expected


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "begin with"),
        ("nonsense", "begin with"),
        ("http://geheim@h", "begin with"),
        ("redis://", "host is missing"),
        ("redis://:geheim@", "host is missing"),
        ("redis://:geheim@h:port", "HOST:PORT"),
        ("redis://:geheim@h:99999", "HOST:PORT"),
        ("redis://:geheim@a,b", "several hosts"),
        ("redis://h/x", "database"),
        ("redis://h/-1", "database"),
        ("redis://h/1/2", "database"),
        ("redis://h?geheim", "no URL"),
        ("redis://h?nonsense=geheim", "unknown option 'nonsense'"),
        ("redis://h?ssl_ca_certs=x", "needs rediss"),
        ("rediss://h?ssl_ca_certs=/none", "no file"),
        ("rediss://h?ssl_cert_reqs=maybe", "ssl_cert_reqs"),
        ("rediss://h?ssl_check_hostname=maybe", "ssl_check_hostname"),
        ("redis+sentinel://h", "name of the service"),
        ("redis+sentinel://a,/main", "host is missing"),
        ("redis+cluster://h/1", "no databases"),
        ("redis://h?sentinel_username=x", "unknown option"),
        ("unix://h", "path"),
        ("redis://[::1", "no URL"),
        ("redis://h?password_file=/none", "no file"),
    ],
)
def test_a_wrong_url_is_one_clear_error_without_its_password(url: str, words: str) -> None:
    with pytest.raises(RedisUrlError, match=words) as caught:
        parse_redis_url(url)
    assert "geheim" not in str(caught.value)
    assert "geheim" not in without_secret(url)


def test_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.touch()
    url = parse_redis_url(f"rediss://h?ssl_ca_certs={file}&ssl_certfile={file}&ssl_keyfile={file}&password_file={file}")
    assert url.tls == Tls(str(file), str(file), str(file))
    assert url.password_file == file


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:geheim@h/1", "redis://h:6379/1"),
        ("unix://u:geheim@/run/r", "unix:///run/r"),
        ("rediss+sentinel://u:geheim@a,[::1]/main", "rediss+sentinel://a:26379,[::1]:26379/main"),
        ("redis+cluster://u:geheim@a", "redis+cluster://a:6379"),
    ],
)
def test_what_is_shown_holds_no_secret(url: str, shown: str) -> None:
    assert without_secret(url) == str(parse_redis_url(url)) == shown
    assert "geheim" not in repr(parse_redis_url(url))
