"""A BERT of two small layers with random weights, as a GGUF file, and the same computed in numpy.

No small encoder can be installed as a package, and llama.cpp goes another way for models that only encode. Writes as
much of GGUF (version 3) as this model needs.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, HEADS, LAYERS, INNER, CONTEXT = 64, 4, 2, 128, 96
EPSILON = 1e-12
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁the", "▁cat", "▁sat", "▁on", "▁a", "▁mat", "s", "▁dog", "▁ran"]
CONTROL = 3
"""GGUF's type of a control token; 1 is an ordinary one."""

Weights = dict[str, Any]
U32, I32, F32, BOOL, TEXT, ARRAY = 4, 5, 6, 7, 8, 9


def make_weights(seed: int = 7) -> Weights:
    """By GGUF's names. Shapes as numpy has them, the outputs of a matrix first."""
    random = np.random.default_rng(seed)

    def normal(*shape: int, scale: float) -> Any:
        return random.normal(0, scale, shape).astype(np.float32)

    def norm(name: str) -> Weights:
        return {f"{name}.weight": 1 + normal(WIDTH, scale=0.1), f"{name}.bias": normal(WIDTH, scale=0.1)}

    def linear(name: str, outputs: int, inputs: int) -> Weights:
        return {f"{name}.weight": normal(outputs, inputs, scale=0.15), f"{name}.bias": normal(outputs, scale=0.1)}

    weights: Weights = {
        "token_embd.weight": normal(len(WORDS), WIDTH, scale=1),
        "token_types.weight": normal(2, WIDTH, scale=0.2),
        "position_embd.weight": normal(CONTEXT, WIDTH, scale=0.3),
        **norm("token_embd_norm"),
    }
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights |= linear(f"{block}.{name}", WIDTH, WIDTH)
        weights |= linear(f"{block}.ffn_up", INNER, WIDTH) | linear(f"{block}.ffn_down", WIDTH, INNER)
        weights |= norm(f"{block}.attn_output_norm") | norm(f"{block}.layer_output_norm")
    return weights


def token_vectors(weights: Weights, tokens: Sequence[int]) -> Any:
    """The last layer's output for each token (Devlin et al. 2019)."""

    def norm(x: Any, name: str) -> Any:
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x: Any, name: str) -> Any:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def heads(x: Any) -> Any:
        return x.reshape(len(tokens), HEADS, WIDTH // HEADS).swapaxes(0, 1)

    x = weights["token_embd.weight"][list(tokens)] + weights["token_types.weight"][0]
    x = norm(x + weights["position_embd.weight"][: len(tokens)], "token_embd_norm")
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        q, k, v = (heads(linear(x, f"{block}.attn_{name}")) for name in "qkv")
        scores = np.exp(q @ k.swapaxes(1, 2) / np.sqrt(WIDTH // HEADS))
        mixed = (scores / scores.sum(axis=-1, keepdims=True) @ v).swapaxes(0, 1).reshape(len(tokens), WIDTH)
        x = norm(x + linear(mixed, f"{block}.attn_output"), f"{block}.attn_output_norm")
        up = linear(x, f"{block}.ffn_up")
        gelu = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        x = norm(x + linear(gelu, f"{block}.ffn_down"), f"{block}.layer_output_norm")
    return x


def write_model(path: Path, weights: Weights, pooling: int) -> Path:
    """`pooling` is llama.cpp's number of it, as the model's own."""
    facts = {
        "general.architecture": (TEXT, "bert"),
        "bert.block_count": (U32, LAYERS),
        "bert.context_length": (U32, CONTEXT),
        "bert.embedding_length": (U32, WIDTH),
        "bert.feed_forward_length": (U32, INNER),
        "bert.attention.head_count": (U32, HEADS),
        "bert.attention.layer_norm_epsilon": (F32, EPSILON),
        "bert.attention.causal": (BOOL, False),
        "bert.pooling_type": (U32, pooling),
        "tokenizer.ggml.model": (TEXT, "bert"),
        "tokenizer.ggml.token_type_count": (U32, 2),
        "tokenizer.ggml.tokens": (ARRAY, (TEXT, WORDS)),
        "tokenizer.ggml.token_type": (ARRAY, (I32, [CONTROL if word[0] == "[" else 1 for word in WORDS])),
        **{
            f"tokenizer.ggml.{name}_token_id": (U32, WORDS.index(word))
            for name, word in (
                ("padding", "[PAD]"),
                ("unknown", "[UNK]"),
                ("cls", "[CLS]"),
                ("bos", "[CLS]"),
                ("seperator", "[SEP]"),
                ("eos", "[SEP]"),
                ("mask", "[MASK]"),
            )
        },
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, len(weights), len(facts))
    for name, (kind, value) in facts.items():
        head += _value(TEXT, name) + struct.pack("<I", kind) + _value(kind, value)
    data = b""
    for name, array in weights.items():
        sizes = array.shape[::-1]
        head += _value(TEXT, name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, len(data))
        data += _padded(array.tobytes())
    path.write_bytes(_padded(head) + data)
    return path


def _value(kind: int, value: Any) -> bytes:
    if kind == TEXT:
        data = value.encode()
        return struct.pack("<Q", len(data)) + data
    if kind == ARRAY:
        item, values = value
        return struct.pack("<IQ", item, len(values)) + b"".join(_value(item, one) for one in values)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], value)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 32)
