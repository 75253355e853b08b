"""What tests of chat share: templates in the manner of each family, and vocabularies to render and encode with."""

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from attrs import field, frozen

from slim.chat.template import ChatTemplate
from slim.types import ChatPrompt
from support.smollm2 import smollm2_path

TEMPLATES = Path(__file__).parent.parent / "data" / "templates"
IM = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
CONTROLS = {
    "chatml": IM,
    "hermes": IM,
    "thinking": IM,
    "coder": IM,
    "opened": ("<|user|>", "<|assistant|>"),
    "llama3": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"),
    "mistral": ("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]"),
    "mistral_named": ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
    "gemma": ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    "function_gemma": (
        *("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        *("<start_function_call>", "<end_function_call>", "<escape>"),
    ),
}
"""The control tokens of the models that speak so. Qwen's `<tool_call>` and `<think>` are ordinary tokens."""


@frozen
class Names:
    """A tokenizer that only knows the names of control tokens: enough to render."""

    control: Mapping[str, int]
    bos: str = ""
    eos: str = ""
    pieces: Sequence[bytes] = field(default=(b"a",))
    end: frozenset[int] = frozenset({0})

    def encode(self, segments, *, leading=True):
        raise NotImplementedError


def source(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def template(name: str, tokenizer=None) -> ChatTemplate:
    """One of the templates, with its family's control tokens unless another tokenizer is given."""
    names = CONTROLS[name]
    bos, eos = (names[0], names[1]) if names[0] in ("<s>", "<bos>", "<|begin_of_text|>") else ("", "")
    return ChatTemplate(source(name), tokenizer or Names({text: n for n, text in enumerate(names)}, bos, eos))


def message(role: str, content: str = "", **more) -> dict:
    return {"role": role, "content": content, **more}


def call(name: str, arguments: object, id: str = "call_1") -> dict:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(name: str, parameters: dict | None = None, description: str = "Does something.") -> dict:
    function = {"name": name, "description": description}
    return {"type": "function", "function": function | ({} if parameters is None else {"parameters": parameters})}


def conversation(*messages: dict, **more) -> ChatPrompt:
    return ChatPrompt(messages=messages, **more)


def text_of(template: ChatTemplate, prompt: ChatPrompt) -> str:
    """The rendered prompt as one text."""
    return "".join(segment.text for segment in template.render(prompt))


@cache
def smollm2_vocabulary():
    """SmolLM2's own tokenizer; its weights are not loaded."""
    path = smollm2_path()
    from slim.engines.llama_cpp.native import library
    from slim.engines.llama_cpp.vocab import Vocabulary

    lib = library()
    options = lib.llama_model_default_params()
    options.vocab_only = True
    model = lib.llama_model_load_from_file(str(path).encode(), options)
    assert model, ctypes.get_errno()
    return Vocabulary(lib, model)
