"""The HTTP side of a vLLM or SGLang server: is it well, what does it serve, how loaded is it."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import aiohttp
import orjson

from adopt.config import Engine

_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

CACHE_RESET = {Engine.VLLM: "/reset_prefix_cache", Engine.SGLANG: "/flush_cache"}


class Health(Enum):
    OK = "ok"
    BAD = "bad"
    """It says so, or there is nobody."""
    SILENT = "silent"
    """No answer in time: it may be busy."""


class EngineUnreachable(Exception):
    """No answer, or one that makes no sense."""


@dataclass(frozen=True, slots=True)
class Served:
    model: str
    max_context: int | None
    """None: the server doesn't say."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    """Share of KV memory that requests hold."""
    total_tokens: int = 0
    """That KV memory holds; 0: the engine doesn't say."""


class EngineClient:
    def __init__(self, session: aiohttp.ClientSession, engine: Engine, url: str) -> None:
        self._session = session
        self._engine = engine
        self.url = url

    async def health(self) -> Health:
        try:
            async with self._session.get(f"{self.url}/health", timeout=_TIMEOUT) as response:
                return Health.OK if response.status == 200 else Health.BAD
        except aiohttp.ConnectionTimeoutError:
            return Health.BAD
        except TimeoutError:
            return Health.SILENT
        except (aiohttp.ClientError, OSError):
            return Health.BAD

    async def served(self) -> Served:
        """Its first model. Raises EngineUnreachable."""
        try:
            model = orjson.loads(await self.get("/v1/models"))["data"][0]
            limit = model.get("max_model_len")
            return Served(str(model["id"]), limit if isinstance(limit, int) and limit > 0 else None)
        except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError) as error:
            raise EngineUnreachable(f"{self.url}/v1/models: no list of models") from error

    async def load(self) -> EngineLoad:
        """Raises EngineUnreachable."""
        return parse_load(self._engine, (await self.get("/metrics")).decode(errors="replace"))

    async def tokenize(self, model: str, text: str) -> list[int] | None:
        """Without special tokens; None where it doesn't offer that. Raises EngineUnreachable."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        try:
            async with self._session.post(f"{self.url}/tokenize", json=body, timeout=_TIMEOUT) as response:
                tokens = (await response.json())["tokens"] if response.status == 200 else None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnreachable(f"{self.url}/tokenize: {error or type(error).__name__}") from error
        except (orjson.JSONDecodeError, ValueError, LookupError, TypeError):
            return None
        return tokens if isinstance(tokens, list) else None

    async def get(self, path: str) -> bytes:
        """Raises EngineUnreachable."""
        try:
            async with self._session.get(self.url + path, timeout=_TIMEOUT) as response:
                body = await response.read()
                if response.status != 200:
                    raise EngineUnreachable(f"{self.url}{path} answers {response.status}")
                return body
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnreachable(f"{self.url}{path}: {error or type(error).__name__}") from error


def parse_load(engine: Engine, text: str) -> EngineLoad:
    """From a page in Prometheus's format. Of several ranks the sum, or the mean usage."""
    return _vllm_load(text) if engine is Engine.VLLM else _sglang_load(text)


def _vllm_load(text: str) -> EngineLoad:
    blocks = 0
    for labels, _ in _samples(text, "vllm:cache_config_info"):
        count, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        blocks += int(count) * int(size) if count.isdigit() and size.isdigit() else 0
    usage = _values(text, "vllm:kv_cache_usage_perc") or _values(text, "vllm:gpu_cache_usage_perc")
    return EngineLoad(
        int(sum(_values(text, "vllm:num_requests_running"))),
        int(sum(_values(text, "vllm:num_requests_waiting"))),
        _mean(usage),
        blocks,
    )


def _sglang_load(text: str) -> EngineLoad:
    return EngineLoad(
        int(sum(_values(text, "sglang:num_running_reqs"))),
        int(sum(_values(text, "sglang:num_queue_reqs"))),
        _mean(_values(text, "sglang:token_usage")),
        int(sum(_values(text, "sglang:max_total_num_tokens"))),
    )


def _values(text: str, name: str) -> list[float]:
    return [value for _, value in _samples(text, name)]


def _samples(text: str, name: str) -> Iterator[tuple[Mapping[str, str], float]]:
    """Looked up by name rather than parsed as a whole: pages have thousands of lines."""
    at = text.find(f"\n{name}")
    while at >= 0:
        end = text.find("\n", at + 1)
        found = _SAMPLE.match(text[at + 1 : end if end >= 0 else len(text)])
        if found is not None and found.group(1) == name:
            with contextlib.suppress(ValueError):
                yield dict(_LABEL.findall(found.group(2) or "")), float(found.group(3))
        at = text.find(f"\n{name}", at + 1)


def _mean(values: list[float]) -> float:
    return min(1.0, max(0.0, sum(values) / len(values))) if values else 0.0
