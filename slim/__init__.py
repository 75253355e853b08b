"""SLIM, the Small Language Inference Machine: serves small language models to many clients at once."""

__version__ = "0.2.0"
