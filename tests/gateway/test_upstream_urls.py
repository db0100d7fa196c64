import pytest

from gateway.upstream_urls import named_upstreams


def test_ids_and_urls() -> None:
    assert named_upstreams(["http://h:8000/v1/", "https://api.example.org/base", "http://[::1]:9", "http://u"]) == {
        "h:8000": "http://h:8000",
        "api.example.org-base": "https://api.example.org/base",
        "::1-:9": "http://[::1]:9",
        "u": "http://u",
    }


@pytest.mark.parametrize("url", ["", "h:1", "ftp://h", "http://", "http://h?x=1", "http://h:99999", "http://h:0"])
def test_no_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"(?i)port|URL"):
        named_upstreams([url])


def test_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="password") as error:
        named_upstreams(["http://me:secret@h"])
    assert "secret" not in str(error.value)


def test_one_that_is_given_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        named_upstreams(["http://h:1", "http://h:1/v1"])
