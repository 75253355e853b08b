"""GGUF models through llama.cpp. Importing this package needs numpy; llama_cpp itself is imported by `load`."""

from .engine import LlamaEngine

__all__ = ["LlamaEngine"]
