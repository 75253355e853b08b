"""Prometheus metrics, chosen by the question an operator asks. Knows nothing of trio, HTTP and engines.

Gauges are read from the scheduler at scrape time, so they can't drift. What happens once per request uses
prometheus-client's own objects. What happens once per token or step is counted in plain lists by `StepHistogram` and
exported by the same collector: the client library's `observe` takes a lock and costs microseconds. Both kinds are
written by the trio thread alone. Bucket bounds contain vLLM's up to minutes, so that quantiles compare, and start
lower: a small model is faster.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from attrs import define, field
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from .types import JobRecord, Outcome, Statistics

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

REJECTIONS = ("not_ready", "queue_full", "draining")
"""Label values of `slm_rejected_total`."""

DURATION = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
TOKEN_GAP = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
DECODE_RATE = (1, 2, 5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000)
CANCEL = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
BATCH = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@define
class StepHistogram:
    """A histogram that costs a fifth of a microsecond per value."""

    name: str
    help: str
    bounds: Sequence[float]
    _counts: list[int] = field(init=False)
    _sum: float = field(init=False, default=0.0)

    def __attrs_post_init__(self) -> None:
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self._sum += value

    def family(self) -> HistogramMetricFamily:
        buckets, total = [], 0
        for bound, count in zip((*map(float, self.bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((str(bound), float(total)))
        return HistogramMetricFamily(self.name, self.help, buckets=buckets, sum_value=self._sum)


class LiveCollector(Collector):
    """Gauges and step histograms, made at scrape time."""

    def __init__(self, histograms: Sequence[StepHistogram]) -> None:
        self.histograms = histograms
        self.statistics: Callable[[], Statistics] | None = None

    def collect(self) -> Iterator[Metric]:
        for histogram in self.histograms:
            yield histogram.family()
        if self.statistics is None:
            return
        now = self.statistics()
        yield GaugeMetricFamily("slm_queue_depth", "Requests without a slot: waiting, or being prepared", now.queued)
        yield GaugeMetricFamily("slm_inflight_requests", "Requests that hold a slot", now.running)
        yield GaugeMetricFamily("slm_replicas", "Replicas that are loaded and whole", now.replicas_ready)
        share = now.kv_used / now.kv_tokens if now.kv_tokens else 0.0
        yield GaugeMetricFamily("slm_kv_cache_usage_ratio", "Share of the KV cache that running requests hold", share)


class Metrics:
    """One server's metrics, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._gap = StepHistogram("slm_inter_token_latency_seconds", "Time between tokens of a request", TOKEN_GAP)
        self._batch = StepHistogram("slm_batch_size", "Requests that took part in an engine step", BATCH)
        self._live = LiveCollector((self._gap, self._batch))
        self.token_gap = self._gap.observe
        """Seconds between two tokens of a request."""
        self.step = self._batch.observe
        """An engine step over so many jobs has finished."""
        registry.register(self._live)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, text, buckets=buckets, registry=registry)

        self._rejected = counter("slm_rejected_total", "Requests refused at admission", "reason")
        self._requests = counter("slm_requests_total", "Admitted requests by their end", "outcome")
        self._prompt = counter("slm_prompt_tokens_total", "Prompt tokens of requests that got a slot")
        self._generated = counter("slm_generated_tokens_total", "Tokens generated")
        self._wasted = counter("slm_tokens_wasted_total", "Tokens generated for requests that did not end ok")
        self._queue_wait = histogram("slm_queue_wait_seconds", "Time from submission to a slot", FIRST_TOKEN)
        self._prefill = histogram("slm_request_prefill_time_seconds", "Time from slot to first token", FIRST_TOKEN)
        self._first = histogram("slm_time_to_first_token_seconds", "Time from submission to first token", FIRST_TOKEN)
        self._rate = histogram("slm_decode_tokens_per_second", "Decode speed of a request", DECODE_RATE)
        self._duration = histogram("slm_request_duration_seconds", "Duration of successful requests", DURATION)
        self._cancel = histogram("slm_cancel_latency_seconds", "Time from a cancel to a free slot", CANCEL)
        for reason in REJECTIONS:
            self._rejected.labels(reason)
        for outcome in Outcome:
            self._requests.labels(outcome.value)

    def watch(self, statistics: Callable[[], Statistics]) -> None:
        """Read the gauges from here at every scrape."""
        self._live.statistics = statistics

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)

    def rejected(self, reason: str) -> None:
        """`reason` is one of REJECTIONS."""
        self._rejected.labels(reason).inc()

    def cancelled(self, seconds: float) -> None:
        """A replica has dropped a job, so long after it was told to."""
        self._cancel.observe(seconds)

    def wasted(self, tokens: int) -> None:
        """These tokens came after the end of their job."""
        self._generated.inc(tokens)
        self._wasted.inc(tokens)

    def ended(self, record: JobRecord) -> None:
        """Count a job at its end."""
        self._requests.labels(record.outcome.value).inc()
        self._generated.inc(record.usage.completion_tokens)
        if record.queue_wait is not None:
            self._queue_wait.observe(record.queue_wait)
            self._prompt.inc(record.usage.prompt_tokens - record.usage.cached_tokens)
        if record.prefill is not None:
            self._prefill.observe(record.prefill)
        if record.first_token is not None:
            self._first.observe(record.first_token)
        if record.decode_rate is not None:
            self._rate.observe(record.decode_rate)
        if record.outcome is Outcome.OK:
            self._duration.observe(record.duration)
        else:
            self._wasted.inc(record.usage.completion_tokens)
