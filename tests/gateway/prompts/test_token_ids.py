from random import Random

import orjson

from gateway.prompts.token_ids import TokenIds
from replica.protocol.hashing import pack_tokens


def test_both_forms_say_the_same() -> None:
    print("seed", 1)
    rng = Random(1)
    for _ in range(50):
        rows = [[rng.randrange(1 << 17) for _ in range(rng.choice((0, 1, 5)))] for _ in range(rng.randrange(4))]
        tokens = [token for row in rows for token in row]
        joined = TokenIds.joined(map(TokenIds.of, rows))
        assert joined == TokenIds.of(tokens)
        assert joined.tokens == tokens and len(joined) == len(tokens)
        assert joined.packed == pack_tokens(tokens)
        assert orjson.loads(b"[" + joined.json + b"]") == tokens
