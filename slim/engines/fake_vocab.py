"""The fake engine's vocabulary: small, made up, and the same in every process. Knows no engine.

Its ids are the 256 bytes, three control tokens, the WORDS that the engine writes, and above them ids for the words of
prompts. Those are a hash of the word: many words share one, and its piece is just some word. So a prompt's tokens are
counted as a reader counts, a word or a run of white space each, but can't be turned back into the prompt.
"""

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache

from ..types import Segment

SIZE = 32768
BYTES = 256
CONTROL = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": 258}
END = frozenset({256, 258})
WORDS = tuple(
    b" " + word
    for word in (
        b"amber birch cedar delta ember fjord grove heath inlet jetty knoll larch marsh north ocean plain "
        b"quartz ridge shore tidal umber vale willow xenon yarrow zephyr blue calm dusk elm fern gold"
    ).split()
)
FIRST_WORD = BYTES + len(CONTROL)
FIRST_HASHED = FIRST_WORD + len(WORDS)
PIECES = (
    *(bytes([byte]) for byte in range(BYTES)),
    *(b"" for _ in CONTROL),
    *WORDS,
    *(WORDS[token % len(WORDS)] for token in range(FIRST_HASHED, SIZE)),
)
KNOWN = {PIECES[token]: token for token in range(FIRST_HASHED) if PIECES[token]}

TEMPLATE = r"""{%- if tools -%}
<|im_start|>system
{% if messages[0].role == "system" %}{{ messages[0].content }}

{% endif %}You may call these functions:
<tools>
{%- for tool in tools %}
{{- "\n" ~ (tool | tojson) }}
{%- endfor %}
{{ "\n" }}</tools>
Call one with <tool_call>{"name": its name, "arguments": an object}</tool_call>.<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == "tool" -%}
<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif not (tools and loop.first and message.role == "system") -%}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{- "\n" if message.content or not loop.first }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""
"""ChatML, with tools in the form that Hermes and Qwen write. Its marks of tools are ordinary text."""

_CONTROL = re.compile("(" + "|".join(map(re.escape, CONTROL)) + ")")
_WORD = re.compile(r"\s+|\S+")


def token_id(data: bytes) -> int:
    """The id of some bytes: their own where they have one, else a hash of them."""
    known = KNOWN.get(data)
    return known if known is not None else FIRST_HASHED + zlib.crc32(data) % (SIZE - FIRST_HASHED)


class FakeTokenizer:
    """One token for each word, for each run of white space, and for each control token where those are parsed."""

    pieces: Sequence[bytes] = PIECES
    control = CONTROL
    end = END
    bos = ""
    eos = "<|endoftext|>"

    def encode(self, segments: Sequence[Segment], *, leading: bool = True) -> tuple[int, ...]:
        tokens: list[int] = []
        text = ""
        for segment in segments:
            parts = _CONTROL.split(segment.text) if segment.parse_special else [segment.text]
            for number, part in enumerate(parts):
                if number % 2:  # the split puts control tokens between texts
                    tokens += [*_words(text), CONTROL[part]]
                    text = ""
                else:
                    text += part
        tokens += _words(text)
        if leading and not tokens:
            tokens = [CONTROL[self.eos]]
        return tuple(tokens)


@lru_cache(SIZE)
def _word_id(word: str) -> int:
    return token_id(word.encode("utf-8", "replace"))


def _words(text: str) -> list[int]:
    return list(map(_word_id, _WORD.findall(text)))
