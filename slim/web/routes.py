"""Which handler answers which path. Knows no bodies and no answers."""

from collections.abc import Awaitable, Callable, Mapping

from attrs import frozen

from ..wire.errors import HttpError
from .chat import Chat
from .completions import Completions
from .embeddings import Embeddings
from .http import Reply, Request
from .ops import MODEL, Operations
from .tokenize import TokenizerRoutes

Handler = Callable[[Request, Reply], Awaitable[None]]


@frozen(eq=False)
class Routes:
    """The table of paths, each with a handler for each method that it takes."""

    table: Mapping[str, Mapping[str, Handler]]

    def handler(self, request: Request) -> Handler:
        """Raises HttpError 404 or 405."""
        methods = self.table.get(MODEL if request.path.startswith(MODEL) else request.path)
        if methods is None:
            raise HttpError(404, "There is nothing at this path. See /openapi.json for what there is.")
        # hypercorn leaves the body of an answer to HEAD out.
        handler = methods.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            names = {*methods, "HEAD"} if "GET" in methods else methods
            allow = ", ".join(sorted(names))
            raise HttpError(405, f"This path takes {allow}.", ((b"allow", allow.encode("ascii")),))
        return handler


def routes(
    completions: Completions, chat: Chat, embeddings: Embeddings, tokenizer: TokenizerRoutes, ops: Operations
) -> Routes:
    """All that is served."""
    return Routes(
        {
            "/v1/completions": {"POST": completions.create},
            "/v1/chat/completions": {"POST": chat.create},
            "/v1/embeddings": {"POST": embeddings.create},
            "/v1/models": {"GET": ops.models},
            MODEL: {"GET": ops.model},
            "/tokenize": {"POST": tokenizer.tokenize},
            "/detokenize": {"POST": tokenizer.detokenize},
            "/apply-template": {"POST": tokenizer.apply_template},
            "/tokenizer_info": {"GET": tokenizer.info},
            "/healthz": {"GET": ops.health},
            "/readyz": {"GET": ops.ready},
            "/metrics": {"GET": ops.prometheus},
            "/openapi.json": {"GET": ops.openapi},
        }
    )
