"""A tokenizer without a model: every byte, common pieces of JSON, some of them twice, and control tokens."""

import random

PIECES = (
    *('{"', '"}', '": ', '": "', '", "', '"]', "[]", "{}", "]}", "}}", ', "', "}, {", ": ", ", ", '["', '[{"'),
    *("true", "false", "null", "the", "ing", "name", "value", " a", "ab", "12", "00", ".5", "-1", "20", "http", "://"),
    *("the", "true"),  # again: a vocabulary may have several ids for the same bytes
)
CONTROL = ("<|end|>", "<|stop|>", "<|tool|>", "<|/tool|>")


class ByteTokenizer:
    """Implements slim.engines.base.Tokenizer; its encode takes the longest piece."""

    bos = ""
    eos = "<|end|>"

    def __init__(self):
        texts = [bytes([byte]) for byte in range(256)] + [piece.encode() for piece in PIECES]
        self.pieces = [*texts, b"", *(b"" for _ in CONTROL)]
        self.control = {name: len(texts) + 1 + number for number, name in enumerate(CONTROL)}
        self.end = frozenset({self.control["<|end|>"], self.control["<|stop|>"]})
        self.encoded = 0
        """How often it was asked to encode."""

    def encode(self, segments, *, leading=True):
        self.encoded += 1
        return tuple(byte for segment in segments for byte in segment.text.encode())


def allowed(mask):
    """The ids of a mask."""
    bits = int.from_bytes(mask, "little")
    ids = []
    while bits:
        lowest = bits & -bits
        ids.append(lowest.bit_length() - 1)
        bits ^= lowest
    return ids


def walk(constraint, tokenizer, seed, limit=800):
    """An answer that the masks allow, drawn by `seed`, or None when it has no end within `limit` tokens.

    It likes to close what is open, the more so the longer it is.
    """
    draw = random.Random(seed)
    answer = b""
    for step in range(limit):
        ids = allowed(constraint.mask())
        others = [token for token in ids if token not in tokenizer.end]
        if len(others) < len(ids) and (not others or draw.random() < 0.4 + step / 50):
            return answer
        closing = [token for token in others if tokenizer.pieces[token][:1] in (b'"', b"}", b"]", b"@")]
        pool = closing if closing and draw.random() < 0.2 + step / 50 else others
        chosen = draw.choice(pool)
        constraint.accept(chosen)
        answer += tokenizer.pieces[chosen]
    return None


def takes(constraint, text, end):
    """Whether the text is a whole answer, given byte by byte."""
    for byte in text.encode():
        if byte not in allowed(constraint.mask()):
            return False
        constraint.accept(byte)
    return bool(end & set(allowed(constraint.mask())))
