"""GGUF models through llama.cpp. Importing this package needs numpy; llama_cpp itself is imported by `load`."""

from .engine import LlamaEngine
from .loaded import LlamaOptions

__all__ = ["LlamaEngine", "LlamaOptions"]
