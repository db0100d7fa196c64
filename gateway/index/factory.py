"""Which index serves: the native one, or the plain one where that can't be built."""

import logging
import secrets

from gateway.index.native_index import NativeIndex, load_library
from gateway.index.plain_index import PlainIndex
from gateway.index.prefix_index import MAX_BLOCKS, PrefixIndex
from native.build import BuildError

log = logging.getLogger(__name__)


def make_index(max_blocks: int = MAX_BLOCKS) -> PrefixIndex:
    try:
        return NativeIndex(load_library(), secrets.randbits(64), max_blocks)
    except BuildError as error:
        log.warning("the index runs in plain Python, many times slower: the native one can't be built (%s)", error)
        return PlainIndex(max_blocks)
