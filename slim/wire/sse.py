"""Framing of server-sent events (WHATWG HTML, section 9.2). Knows nothing of what the events say.

Only `data:` lines and comments are sent: openai-python breaks on `id:` and `retry:` fields.
"""

DONE = b"data: [DONE]\n\n"
"""Ends a stream that went well. It is never sent after an error."""


KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients skip it, and proxies see that the stream lives."""


def event(data: str) -> bytes:
    """One event. `data` is ASCII without line breaks, as `render.compact` makes it."""
    return f"data: {data}\n\n".encode("ascii")
