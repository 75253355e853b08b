"""The error tree. Each class says what went wrong for a request or at start; it knows no HTTP.

SlimError
├── ConfigError                 a setting, a flag or a path is wrong: the process does not start
├── InvalidRequest              the client's request can't be honoured as it is
│   ├── ContextLengthExceeded
│   └── Unanswerable            the model was at work before that showed
├── Unavailable                 the server can't take the request now; a later try may work
│   ├── ModelLoading
│   ├── ModelFailed
│   ├── Stalled
│   ├── Overloaded
│   └── Draining
├── DeadlineExceeded            admitted, but not finished in time
├── RequestCancelled            the client left; nobody reads the answer
└── EngineFailed                the engine raised while it worked on the request
"""


class SlimError(Exception):
    """Base of every expected error. `str(error)` is text that a client may read."""


class ConfigError(SlimError):
    """A setting is wrong. The text names the setting and what would be right."""


class InvalidRequest(SlimError):
    """The request is wrong. `param` names the first bad field (a path such as `stop[1]`), or is None."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthExceeded(InvalidRequest):
    """The prompt leaves no room for one new token in the model's context."""

    def __init__(self, prompt_tokens: int, max_tokens: int, context: int, param: str = "prompt") -> None:
        super().__init__(
            f"This model's maximum context length is {context} tokens. However, you requested "
            f"{prompt_tokens + max_tokens} tokens ({prompt_tokens} in the prompt, {max_tokens} for the completion). "
            "Please reduce the length of the prompt.",
            param=param,
        )


class Unanswerable(InvalidRequest):
    """The request's own grammar hit a limit while it was answered, or its fields left no token to choose."""


class Unavailable(SlimError):
    """The server can't take the request now. `retry_after` is in seconds, above 0 and at most 60, or None."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelLoading(Unavailable):
    """No replica has finished loading its model."""


class ModelFailed(Unavailable):
    """Every replica failed: the model did not load, or its engine broke twice within a minute."""


class Stalled(Unavailable):
    """Work is active, but no step has finished for longer than the stall limit."""


class Overloaded(Unavailable):
    """Every place in the system is taken."""


class Draining(Unavailable):
    """The server is shutting down."""


class DeadlineExceeded(SlimError):
    """The deadline over queue and generation, so many seconds, passed before the answer was complete."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The request was not finished within its deadline of {seconds:g} s.")


class RequestCancelled(SlimError):
    """The client left before the answer was complete."""


class EngineFailed(SlimError):
    """The engine raised. `cause` is for the log; the client reads only the fixed text."""

    def __init__(self, cause: str) -> None:
        super().__init__("The engine failed while generating this answer.")
        self.cause = cause
