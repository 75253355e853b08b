"""Engines by name. A backend's library is imported only when its engine is asked for."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

from ..config import Settings
from ..errors import ConfigError
from ..hardware import default_threads
from .base import Engine
from .fake import FakeEngine
from .fake_embedding import FakeEmbeddingEngine

__all__ = ["engine_maker"]


def engine_maker(settings: Settings, model: Path | None) -> Callable[[], Engine]:
    """A function that makes one engine per call, not yet loaded. `model` may be None for the fake engine alone.

    Raises ConfigError when the engine's library is not installed. It is not imported here: that takes long, and the
    engine's own thread does it while the server already answers.
    """
    if settings.engine == "fake":
        return lambda: _fake(settings)
    assert model is not None  # the model was resolved, or the process did not start
    if missing := [name for name in ("llama_cpp", "numpy") if importlib.util.find_spec(name) is None]:
        needed = " and ".join(missing)
        raise ConfigError(f"the engine llama_cpp needs {needed}: pip install 'slim-serve[llama]', or use --engine fake")
    from .llama_cpp import LlamaEngine, LlamaOptions
    from .llama_cpp.embedding import LlamaEmbeddingEngine

    options = LlamaOptions(
        model_path=model,
        slots=settings.max_batch,
        context=settings.n_ctx,
        threads=settings.n_threads or default_threads(settings.replicas),
        prefill_chunk=settings.prefill_chunk,
        prompt_cache=settings.prompt_cache_mb * 2**20 // settings.replicas,
        gpu_layers=settings.n_gpu_layers,
        kv_type=settings.kv_type,
        mlock=settings.mlock,
    )
    if settings.embeddings:
        return lambda: LlamaEmbeddingEngine(options, settings.pooling)
    return lambda: LlamaEngine(options)


def _fake(settings: Settings) -> Engine:
    def step_seconds(decoding: int, prefill_tokens: int) -> float:
        first = settings.fake_ttft_s if prefill_tokens else 0.0
        return max(first, settings.fake_token_latency_s if decoding else 0.0)

    chosen = FakeEmbeddingEngine if settings.embeddings else FakeEngine
    return chosen(
        slots=settings.max_batch,
        context=settings.n_ctx,
        prefill_chunk=settings.prefill_chunk,
        step_seconds=step_seconds,
    )
