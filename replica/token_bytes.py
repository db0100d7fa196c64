"""What each token stands for, by itself."""

import functools

from tokenizers import Tokenizer, decoders

_WORD_START = "▁"
"""How sentencepiece vocabularies write a space."""


class TokenBytes:
    """Remembers what was asked for; bounded by the vocabulary. For one thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)
        self._special = special_token_ids(tokenizer)
        self._texts: dict[int, str] = {}

    def bytes(self, token: int) -> bytes | None:
        """None for special tokens, and ids that the tokenizer doesn't know."""
        piece = None if token in self._special else self._tokenizer.id_to_token(token)
        if piece is None:
            return None
        if self._byte_level:
            return bytes_of(piece)
        if len(piece) == 6 and piece.startswith("<0x"):
            return bytes([int(piece[3:5], 16)])
        return piece.replace(_WORD_START, " ").encode()

    def text(self, token: int) -> str:
        """Part of a character is written as OpenAI's completions write it: `bytes:\\xe2\\x82`."""
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self._text(token)
        return text

    def _text(self, token: int) -> str:
        data = self.bytes(token)
        if data is None:
            return self._tokenizer.id_to_token(token) or ""
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def special_token_ids(tokenizer: Tokenizer) -> frozenset[int]:
    return frozenset(number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special)


def bytes_of(piece: str) -> bytes:
    """Of a byte-level tokenizer's piece. Tokens added to the vocabulary by hand are plain text."""
    alphabet = byte_alphabet()
    if all(character in alphabet for character in piece):
        return bytes(alphabet[character] for character in piece)
    return piece.encode()


@functools.cache
def byte_alphabet() -> dict[str, int]:
    """The character that byte-level tokenizers write for each byte (GPT-2's table): printable Latin-1 characters stand
    for themselves, the other bytes for the characters from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
