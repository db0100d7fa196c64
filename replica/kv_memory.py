"""How many KV blocks a machine's own memory holds."""

from replica.config import ConfigError, available_memory_bytes, total_memory_bytes

_SHARE = 0.2


def pages_in_memory(memory_bytes: int | None, page_bytes: int) -> int:
    """None: a share of what is available. Raises ConfigError."""
    memory = int(available_memory_bytes() * _SHARE) if memory_bytes is None else memory_bytes
    if memory > total_memory_bytes():
        raise ConfigError(f"kv_memory_gib: this machine has {total_memory_bytes() / 2**30:.1f} GiB in all")
    return at_least_two(memory, page_bytes)


def at_least_two(memory: int, page_bytes: int) -> int:
    """Raises ConfigError."""
    num_pages = memory // page_bytes
    if num_pages < 2:
        raise ConfigError(f"kv_memory_gib: {memory / 2**30:g} hold fewer than 2 blocks of {page_bytes} bytes")
    return num_pages
