"""Counters of the server in Prometheus' text format, each app with a registry of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Scope

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """What the HTTP side counts itself, and the engine's counters as it last told them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "vivace_http_requests", "Requests by route and status.", ("route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "vivace_http_request_seconds",
            "From request to end of answer.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._first = Histogram(
            "vivace_time_to_first_token_seconds",
            "From request to first token.",
            ("model",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._tokens = Counter(
            "vivace_tokens",
            "Tokens by model and kind: prompt, cached, generated.",
            ("model", "kind"),
            registry=self.registry,
        )
        self._engine_up = Gauge("vivace_engine_up", "1 while the engine process serves.", registry=self.registry)
        self._engine = Gauge(
            "vivace_engine", "Counters of the engine since its start.", ("counter",), registry=self.registry
        )
        self._jobs = Gauge(
            "vivace_engine_jobs", "Jobs that run or wait now.", ("model", "state"), registry=self.registry
        )
        self._guesses = Gauge(
            "vivace_engine_guesses",
            "Guesses of drafters: drafted (checked) and accepted (right, each saved a step).",
            ("model", "kind"),
            registry=self.registry,
        )
        self._pages = Gauge(
            "vivace_engine_pages",
            "Pages by page group: total, free, cached (free once needed).",
            ("model", "group", "state"),
            registry=self.registry,
        )

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request that is over. The label is the route, not the path, which a client could make up."""
        route = getattr(scope.get("route"), "path", "other")
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def first_token(self, model: str, seconds: float) -> None:
        """Observe the wait for the first token of an answer."""
        self._first.labels(model).observe(seconds)

    def tokens(self, model: str, prompt: int, cached: int, generated: int) -> None:
        """Count the tokens of an answer."""
        for kind, value in (("prompt", prompt), ("cached", cached), ("generated", generated)):
            self._tokens.labels(model, kind).inc(value)

    def render(self, engine: Mapping[str, Any] | None) -> bytes:
        """The page; `engine` is what the engine says of itself, None if it does not answer."""
        self._engine_up.set(0 if engine is None else 1)
        for gauge in (self._engine, self._jobs, self._guesses, self._pages):
            gauge.clear()  # an engine that does not answer leaves no numbers behind
        for name, value in (engine or {}).items():
            if isinstance(value, int | float):
                self._engine.labels(name).set(value)
        for model, lane in (engine or {}).get("lanes", {}).items():
            for state in ("running", "waiting"):
                self._jobs.labels(model, state).set(lane[state])
            for kind in ("drafted", "accepted"):
                self._guesses.labels(model, kind).set(lane["counts"].get(kind, 0))
            for group, counts in lane["pages"].items():
                for state, count in counts.items():
                    self._pages.labels(model, group, state).set(count)
        return generate_latest(self.registry)
