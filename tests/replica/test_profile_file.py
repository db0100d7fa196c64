from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import pytest

from replica.profile_file import ProfileError, decode_profile, encode_profile, fetch_profile, read_profile
from replica.profiles import PROFILES

GOOD = asdict(PROFILES["cpu"])


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_a_profile_survives_a_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    file.write_bytes(encode_profile(read_profile(name)))
    assert read_profile(str(file)) == PROFILES[name]


def test_what_may_be_left_out_has_a_default() -> None:
    values = {name: value for name, value in GOOD.items() if not name.startswith("decode_")}
    assert decode_profile(orjson.dumps(values), "here") == PROFILES["cpu"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (b"{", "no JSON"),
        (b"[]", "no profile"),
        (GOOD | {"c1": 1.0}, "no profile"),
        ({name: value for name, value in GOOD.items() if name != "c0"}, "c0"),
        (GOOD | {"c0": "0.1"}, "c0"),
        (GOOD | {"c_lin": -1e-3}, "c_lin must be at least 0"),
        (GOOD | {"kv_tokens": 0}, "kv_tokens must be at least 1"),
        (GOOD | {"max_running": 1.5}, "max_running"),
        (GOOD | {"decode_by_use": [1, 2]}, "decode_by_use"),
    ],
)
def test_what_is_wrong_is_named(values: Any, said: str) -> None:
    data = values if isinstance(values, bytes) else orjson.dumps(values)
    with pytest.raises(ProfileError, match=f"^here.*{said}"):
        decode_profile(data, "here")


def test_names_and_files_that_do_not_exist() -> None:
    with pytest.raises(ProfileError, match=r"unknown profile 'h200'; there are .*cpu, .*json"):
        read_profile("h200")
    with pytest.raises(ProfileError, match=r"/no/such\.json: No such file"):
        read_profile("/no/such.json")


def test_an_url_that_is_no_replica() -> None:
    for url in ("http://127.0.0.1:1", "nonsense"):
        with pytest.raises(ProfileError, match=f"^{url} is no replica"):
            fetch_profile(url)
