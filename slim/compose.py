"""The composition root: settings in, the ready ASGI app out. Both launches use it; it starts nothing."""

from collections.abc import Callable

from .config import Settings
from .engines import engine_maker
from .engines.replica import Replica, Report
from .metrics import Metrics
from .models import ModelChoice
from .scheduler import Scheduler, SchedulerLimits
from .web.app import App
from .web.completions import BodyLimits, Completions
from .web.ops import Operations
from .wire.completions import RequestLimits


def build_app(settings: Settings, model: ModelChoice) -> App:
    """Wire the layers together. The scheduler, and with it the engines, starts with the app's lifespan."""
    make_engine = engine_maker(settings, model.path)

    def make_replicas(deliver: Callable[[Report], None], clock: Callable[[], float]) -> list[Replica]:
        return [Replica(index, make_engine(), deliver, clock) for index in range(settings.replicas)]

    limits = SchedulerLimits(settings.max_batch, settings.max_queue_size, settings.request_timeout_s, settings.stall_s)
    metrics = Metrics()
    scheduler = Scheduler(make_replicas, limits, metrics)
    metrics.watch(scheduler.statistics)
    body_limits = BodyLimits(settings.max_body_bytes, settings.body_timeout_s)
    request_limits = RequestLimits(settings.max_tokens_limit, settings.max_prompt_chars)
    completions = Completions(scheduler, model.name, body_limits, request_limits)
    return App(scheduler, completions, Operations(scheduler, metrics, model.name))
