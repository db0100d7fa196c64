"""D09 from one end to the other: two tenants, a gateway with keys, real replicas."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.tenants.key_file import tenant_salt
from replica.protocol.hashing import BLOCK_SIZE
from tests.gateway.test_keys import ALICE, BOB, SECRET, bearer, write_keys
from tests.processes import Process

SYSTEM = "You know accessible hotels, their lifts and their ramps. " * 2


@pytest.fixture(scope="module")
def url(tool_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("tenants")
    keys = write_keys(folder / "keys.toml")
    (folder / "gateway.toml").write_text(f'keys_file = "{keys}"\n[public_prompts]\ntravel = "{SYSTEM}"\n')
    command = ["deploy.cli", "up", "--model", str(tool_folder), "--replicas", "1", "--port", "0"]
    command += ["--kv-memory-gib", "0.05"]
    process = Process(command, folder / "log", env={"RYOKAN_CONFIG": str(folder / "gateway.toml")})
    yield process.wait_for(r"gateway +(http\S+)")
    assert process.stop() == 0


async def cached(http: aiohttp.ClientSession, url: str, key: str, system: str, **fields: Any) -> tuple[int, int]:
    """Tokens that the replica took from its cache, and that the gateway expected there."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "My name is Ada. " * 4}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 1, "temperature": 0} | fields
    async with http.post(f"{url}/v1/chat/completions", json=body, headers=bearer(key)) as response:
        value = await response.json()
        assert response.status == 200, value
        expected = int(response.headers["x-ryokan-cached-tokens"])
        return value["usage"]["prompt_tokens_details"]["cached_tokens"], expected


async def test_d09_no_tenant_finds_another_s_blocks(url: str) -> None:
    system = "Something of Alice that nobody else has listed. " * 2
    salt = tenant_salt(SECRET.encode(), "alice")
    async with aiohttp.ClientSession() as http:
        assert await cached(http, url, ALICE, system) == (0, 0)
        hit = await cached(http, url, ALICE, system)
        assert hit[0] == hit[1] > 5 * BLOCK_SIZE
        assert await cached(http, url, BOB, system, cache_salt=salt) == (0, 0)
        assert await cached(http, url, BOB, system) == hit
        assert await cached(http, url, ALICE, system, cache_salt="another") == hit


async def test_d09_all_find_the_listed_prompt_s_blocks_and_no_more(url: str) -> None:
    async with aiohttp.ClientSession() as http:
        assert await cached(http, url, ALICE, SYSTEM) == (0, 0)
        whole, _ = await cached(http, url, ALICE, SYSTEM)
        public = await cached(http, url, BOB, SYSTEM, cache_salt=tenant_salt(SECRET.encode(), "alice"))
        assert public[0] == public[1]
        assert len(SYSTEM) - BLOCK_SIZE < public[0] < whole
        assert await cached(http, url, BOB, SYSTEM) == (whole, whole)
