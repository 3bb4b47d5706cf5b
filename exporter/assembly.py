"""How the parts of the exporter are joined: store, collectors, NVML worker and applications."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from exporter.collectors import Sources, enabled, makers
from exporter.ingest_app import ingest_app, no_results
from exporter.live import LiveView
from exporter.nvml.supervisor import NvmlSupervisor
from exporter.nvml.timing import Timing
from exporter.peers import Door, ingest_protocol
from exporter.ranks import RankLimits, RankStore
from exporter.scrape import Scrape
from exporter.settings import Settings
from exporter.token_file import TokenFile
from exporter.web_app import web_app
from exporter.web_config import WebConfig
from exporter.web_guard import BasicAuth, WithHeaders


class Ready:
    """True once every check has held at the same time; it does not go back."""

    def __init__(self, checks: Sequence[Callable[[], bool]]) -> None:
        self._checks = checks
        self._was_ready = False

    def __call__(self) -> bool:
        self._was_ready = self._was_ready or all(check() for check in self._checks)
        return self._was_ready


class Exporter:
    """All parts for *settings*; only those between start() and stop() use a thread or process."""

    def __init__(self, settings: Settings, config: WebConfig) -> None:
        self._settings = settings
        self._config = config
        self._results = no_results()
        self._token = _token(settings)
        self._store = RankStore(_limits(settings))
        self._nvml = NvmlSupervisor(Timing(interval_seconds=settings.nvml_interval_seconds))
        self._needs_nvml = any(entry.needs_nvml for entry in enabled(settings))
        sources = Sources(settings, self._store, self._results, self._nvml)
        self._scrape = Scrape(makers=makers(sources))
        self.live = LiveView(self._store, self._gpus_visible)
        self._ready = Ready([self._scrape.is_ready, self._nvml_has_answered])

    def start(self) -> None:
        """Begin to read the node."""
        self._scrape.start()
        if self._needs_nvml:
            self._nvml.start()

    def stop(self) -> None:
        """End what start() began, the NVML worker included."""
        self._scrape.stop()
        if self._needs_nvml:
            self._nvml.stop()

    def web_app(self) -> ASGIApp:
        """Return what the web listener serves, behind what the web config file asks for."""
        registry = CollectorRegistry()
        registry.register(self._scrape)
        app: ASGIApp = web_app(registry, self.live, self._ready)
        if self._config.users:
            app = BasicAuth(app, self._config.users)
        return WithHeaders(app, self._config.headers) if self._config.headers else app

    def ingest_app(self) -> ASGIApp:
        """Return what the ingest listener serves."""
        limit = self._settings.ingest_max_body_bytes
        return ingest_app(self._store, self._results, limit, self._token)

    def ingest_protocol(self) -> type[asyncio.Protocol]:
        """Return how the ingest listener treats its connections."""
        wanted = self._settings.ingest_connections_per_rank * self._settings.ranks_max
        return ingest_protocol(Door(wanted), self._results)

    def _nvml_has_answered(self) -> bool:
        """Whether the worker has said what it found, which may be no driver or no GPU."""
        return not self._needs_nvml or self._gpus_visible() is not None

    def _gpus_visible(self) -> int | None:
        sample = self._nvml.latest()
        return None if sample is None else sample.gpus_visible


def _token(settings: Settings) -> TokenFile | None:
    file = settings.ingest_token_file
    return TokenFile(Path(file), "--ingest.token-file") if file else None


def _limits(settings: Settings) -> RankLimits:
    return RankLimits(
        settings.ranks_max,
        settings.ranks_jobs_max,
        settings.ranks_peer_groups_max,
        settings.ranks_finished_retention_seconds,
        settings.ranks_silent_retention_seconds,
    )
