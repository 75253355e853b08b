"""The composition root of both launches: settings in, the ready ASGI app out. It starts nothing and listens nowhere."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from .chat.template import check_syntax
from .config import Settings, load_settings
from .engines import engine_maker
from .engines.replica import Replica, Report
from .errors import ConfigError
from .keys import KeyRing
from .logs import configure
from .metrics import Metrics
from .models import ModelChoice, resolve_model
from .policy import LOOKAHEAD
from .scheduler import Scheduler, SchedulerLimits
from .web import edge
from .web.access import PROBES, Access
from .web.app import App
from .web.chat import Chat
from .web.completions import Completions
from .web.cors import Cors
from .web.embeddings import Embeddings
from .web.generation import Bodies, BodyLimits, Generator
from .web.ops import Operations
from .web.routes import routes
from .web.tokenize import TokenizerRoutes
from .wire.requests import RequestLimits

log = logging.getLogger("slim")


def prepare(flags: Mapping[str, str | None]) -> tuple[App, Settings]:
    """Read the settings, set up logging and the network guard, build the app. Raises ConfigError.

    `flags` maps names of settings to texts, as `load_settings` takes them.
    """
    settings = load_settings(flags)
    configure(settings.log_level, settings.log_json)
    for warning in settings.warnings:
        log.warning(warning)
    model = resolve_model(settings)
    if model.embedded:
        log.info("no model named: serving the embedded %s", model.name)
    edge.install(edge.EdgeLimits(settings.max_connections, settings.write_timeout_s, settings.http2_cleartext))
    metrics = Metrics()
    return build_app(settings, model.name, build_scheduler(settings, model, metrics), metrics), settings


def build_scheduler(settings: Settings, model: ModelChoice, metrics: Metrics) -> Scheduler:
    """The scheduler over real engines on real threads; they start with the app's lifespan. Raises ConfigError."""
    make_engine = engine_maker(settings, model.path)

    def make_replicas(deliver: Callable[[Report], None], clock: Callable[[], float]) -> list[Replica]:
        return [Replica(index, make_engine(), deliver, clock) for index in range(settings.replicas)]

    return Scheduler(
        make_replicas, scheduler_limits(settings), metrics, chat_template=read_template(settings.chat_template)
    )


def read_template(path: str | None) -> str | None:
    """The text of a template file. Raises ConfigError when it can't be read or is no Jinja."""
    if path is None:
        return None
    try:
        source = Path(path).expanduser().read_text(encoding="utf-8")
        check_syntax(source)
    except (OSError, ValueError) as error:
        raise ConfigError(f"SLM_CHAT_TEMPLATE: {path} can't be used: {error}") from error
    return source


def scheduler_limits(settings: Settings) -> SchedulerLimits:
    places = settings.replicas * settings.max_batch + settings.max_queue_size
    # A text is embedded in one step, which may rightly last as long as a request.
    stall = max(settings.stall_s, settings.request_timeout_s) if settings.embeddings else settings.stall_s
    return SchedulerLimits(places, settings.request_timeout_s, stall)


def build_app(settings: Settings, model_name: str, scheduler: Scheduler, metrics: Metrics) -> App:
    """The HTTP side over a scheduler. Raises ConfigError."""
    metrics.watch(scheduler.statistics)
    bodies = Bodies(scheduler, BodyLimits(settings.max_body_bytes, settings.body_timeout_s))
    generator = Generator(scheduler, bodies, settings.sse_keepalive_s)
    limits = RequestLimits(settings.max_tokens_limit, settings.max_prompt_chars, scheduler.places)
    served = routes(
        Completions(generator, model_name, limits),
        Chat(generator, model_name, limits),
        Embeddings(scheduler, bodies, model_name, limits, inputs_under_way(settings), settings.request_timeout_s),
        TokenizerRoutes(scheduler, bodies, limits),
        Operations(scheduler, metrics, model_name),
    )
    cors = Cors(frozenset(origin.encode("ascii") for origin in settings.cors_origins))
    return App(scheduler, bodies, served, build_access(settings), cors)


def inputs_under_way(settings: Settings) -> int:
    """Inputs of one embedding request that hold places at a time: every slot, and one more for each replica."""
    return min(settings.replicas * (settings.max_batch + LOOKAHEAD), scheduler_limits(settings).places)


def build_access(settings: Settings) -> Access:
    """The check of keys, or of web pages where there are none. Raises ConfigError."""
    keys = KeyRing(settings.api_key, Path(settings.api_keys_file).expanduser() if settings.api_keys_file else None)
    hosts = frozenset({settings.host.lower(), *settings.allowed_hosts})
    return Access(keys, hosts, PROBES | {"/metrics"} if settings.metrics_open else PROBES)
