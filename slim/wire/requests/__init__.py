"""Request bodies to records: what is honoured, what is refused and how. Pure; knows no answer.

`completion` and `chat` are the two endpoints' bodies; `generation`, `sampling` and `form` what they share; `messages`
and `tools` the parts of a conversation; `unbuilt` what is refused by name.
"""

from .call import Call, RequestLimits
from .chat import conversation, parse_chat
from .completion import parse_completion

__all__ = ["Call", "RequestLimits", "conversation", "parse_chat", "parse_completion"]
