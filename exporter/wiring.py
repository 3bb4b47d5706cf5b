"""Connects the exporter's parts: store, collectors, NVML worker and applications."""

import logging
import resource
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil
from starlette.types import ASGIApp

from exporter.collectors.catalog import Sources, collectors, enabled
from exporter.collectors.gpu.faults import GpuFaultsCollector
from exporter.errors import Failures
from exporter.events import EventLog
from exporter.evidence.job_changes import ChangeCauses
from exporter.evidence.late_causes import LateCauses
from exporter.evidence.sampler import Sampler
from exporter.evidence.service import EvidenceService
from exporter.ingest.app import IngestApp, IngestCounts
from exporter.ingest.token_file import TokenFile
from exporter.listeners.connection import Bounds
from exporter.listeners.handshakes import Handshakes
from exporter.listeners.listener import Listener
from exporter.listeners.sockets import host_and_port, is_loopback
from exporter.live.page import LiveView, PageNode
from exporter.nvml.expected import ExpectedGpus
from exporter.nvml.supervisor import NvmlSupervisor
from exporter.nvml.timing import Timing
from exporter.operator.app import operator_app
from exporter.operator.levels import Orders
from exporter.processes.host_watch import HostWatch
from exporter.processes.process import Proc
from exporter.processes.watch import ProcessWatch
from exporter.processes.worker_states import WorkerStates
from exporter.ranks.limits import RankLimits
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from exporter.scrape.exposition import Exposition
from exporter.scrape.levels import Shown
from exporter.scrape.sampling import Scrape
from exporter.scrapers import Scrapers
from exporter.settings import Settings
from exporter.vocabulary.thresholds import Thresholds, read_overrides
from exporter.web.app import web_app
from exporter.web.health import GpusGone, Ready
from exporter.web.protection import Protected
from exporter.web.reload import CurrentContext, WatchedConfig

logger = logging.getLogger(__name__)

# Far more than a few Prometheus replicas and open browsers need.
WEB_CONNECTIONS: Final = 128
WEB_FULL: Final = b"Too many web connections are open on this exporter; try again later.\n"
INGEST_FULL: Final = (
    b'{"error": "Too many ingest connections are open on this node, in total or for this user; '
    b'close idle ones, or raise --ingest.connections-per-rank."}'
)
OPERATOR_CONNECTIONS: Final = 16
OPERATOR_FULL: Final = b'{"error": "Too many orders are being given; try again."}'
TEXT, JSON = b"text/plain; charset=utf-8", b"application/json"


class ExporterParts:
    """All parts for *settings*; threads and processes exist only between start() and stop().

    *config* protects the web listener, if there is a web configuration file.
    """

    def __init__(self, settings: Settings, config: WatchedConfig | None = None) -> None:
        psutil.PROCFS_PATH = settings.path_procfs  # psutil has one path per process.
        self._settings = settings
        self._config = config
        self.failures = Failures()
        self._counts = IngestCounts()
        self._token = _token(settings)
        self._store = RankStore(_limits(settings))
        expected = _expected_gpus(settings)
        self._nvml = NvmlSupervisor(
            _timing(settings),
            on_sample=expected.see,
            failures=self.failures,
        )
        self._needs_nvml = any(entry.needs_nvml for entry in enabled(settings))
        self._gpu_orders = self._nvml if self._needs_nvml else None
        procfs, sysfs = Path(settings.path_procfs), Path(settings.path_sysfs)
        self._watch = ProcessWatch(self._nvml, Proc(procfs), failures=self.failures)
        self._host = HostWatch(procfs, sysfs, failures=self.failures)
        name = self._name = settings.node_name or socket.gethostname()
        self._jobs = NodeJobs(self._store, _thresholds(settings))
        self._orders = Orders(self._store)
        causes, changes = LateCauses(), ChangeCauses()
        sources = Sources(
            settings,
            self._store,
            self._counts,
            self._nvml,
            expected,
            jobs=self._jobs,
            causes=causes,
            changes=changes,
            processes=self._watch.processes,
            host=self._host,
            node_name=name,
            web_config=config,
            thresholds=_thresholds(settings),
            failures=self.failures,
        )
        made = collectors(sources)
        self._scrape = Scrape(made, shown=Shown(settings.series_detail))
        faults = (each.told for each in made if isinstance(each, GpuFaultsCollector))
        node = PageNode(name, settings.grafana_url or None, sources.join, *faults)
        self.live = LiveView(self._jobs, self._gpus_visible, node, causes.of, changes.of)
        self._workers = WorkerStates(procfs, self.failures)
        sampler = Sampler(self._store, self._nvml, sources.join, self._host, self._scrape.latest)
        self.evidence = EvidenceService(
            self._store,
            self._jobs,
            sampler,
            self._host,
            causes,
            self._workers,
            name,
            changes=changes,
            page=page_address(settings.web_listen_address, name, config),
        )
        # What is to be done once a second, in the event loop; the page shows what was found before.
        self.looks = {
            "the evidence": lambda now, _: self.evidence.look(now),
            "the live page": self.live.sample,
        }
        nvml = self._nvml if self._needs_nvml else None
        self._ready = Ready(self._scrape.is_ready, nvml)
        self._gpus_gone = GpusGone(nvml)
        self._scrapers = Scrapers()

    def start(self) -> None:
        """Start reading the node."""
        self._scrape.start()
        self._host.start()
        self._workers.start()
        if self._needs_nvml:
            self._nvml.start()
            self._watch.start()

    def stop(self) -> None:
        """End what start() began, the NVML worker included."""
        self._scrape.stop()
        self._host.stop()
        self._workers.stop()
        if self._needs_nvml:
            self._watch.stop()
            self._nvml.stop()

    def web_app(self) -> ASGIApp:
        """Return the web application, behind the login and headers of the web config file."""
        exposition = Exposition(self._scrape)
        app = web_app(exposition, self.live, self._ready, self._gpus_gone, self._scrapers)
        return app if self._config is None else Protected(app, self._config.current)

    def web_listener(
        self, sockets: Sequence[socket.socket], handshakes: Handshakes | None
    ) -> Listener:
        """Return the listener for Prometheus and browsers; *handshakes* limits those of TLS."""
        bounds = Bounds(WEB_CONNECTIONS, WEB_FULL, TEXT, handshakes=handshakes)
        tls = None
        if self._config is not None and self._config.current().tls is not None:
            tls = CurrentContext.of(self._config.current)
        return Listener(sockets, self.web_app(), bounds, tls)

    def ingest_listener(self, sockets: Sequence[socket.socket]) -> Listener:
        """Return the listener for training processes, whose connections never give way."""
        limit = self._settings.ingest_max_body_bytes
        app = IngestApp(
            self._store,
            self._counts,
            self._orders,
            limit,
            self._token,
            self._scrapers,
            EventLog(self._name),
            self._jobs,
            self.evidence.pushed,
        )
        wanted = self._settings.ingest_connections_per_rank * self._settings.ranks_max
        bounds = Bounds(
            affordable(wanted),
            INGEST_FULL,
            JSON,
            idle_gives_way=False,
            turned_away=self._counts.turn_away,
        )
        return Listener(sockets, app, bounds)

    def operator_listener(self, sockets: Sequence[socket.socket]) -> Listener:
        """Return the listener for `rankskew control`."""
        app = operator_app(self._orders, self._gpu_orders, self._gpus_gone)
        return Listener(sockets, app, Bounds(OPERATOR_CONNECTIONS, OPERATOR_FULL, JSON))

    def _gpus_visible(self) -> int | None:
        sample = self._nvml.latest()
        return None if sample is None else sample.gpus_visible


def page_address(listens: str, name: str, config: WatchedConfig | None) -> str:
    """Return the address of this exporter's page for browsers elsewhere; empty if it has none."""
    host, port = host_and_port(listens, "--web.listen-address")
    if is_loopback(host) or not port:
        return ""
    host = name if host in ("", "0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    is_tls = config is not None and config.current().tls is not None
    return f"http{'s' * is_tls}://{host}:{port}/"


def _token(settings: Settings) -> TokenFile | None:
    file = settings.ingest_token_file
    return TokenFile(Path(file), "--ingest.token-file") if file else None


def _thresholds(settings: Settings) -> Thresholds:
    file = settings.thresholds_file
    return read_overrides(Path(file)) if file else Thresholds()


def _timing(settings: Settings) -> Timing:
    return Timing(
        interval_seconds=settings.nvml_interval_seconds,
        window_seconds=settings.nvml_window_seconds,
        path_sysfs=settings.path_sysfs,
    )


def _expected_gpus(settings: Settings) -> ExpectedGpus:
    directory = Path(settings.path_state) if settings.path_state else None
    return ExpectedGpus(directory, settings.gpus_expected)


def _limits(settings: Settings) -> RankLimits:
    return RankLimits(
        settings.ranks_max,
        settings.ranks_jobs_max,
        settings.ranks_peer_groups_max,
        settings.ranks_finished_retention_seconds,
        settings.ranks_silent_retention_seconds,
    )


def affordable(connections: int) -> int:
    """Return *connections*, or half this process's file descriptors if that is less."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or connections <= files // 2:
        return connections
    logger.warning(
        "only %d of %d ingest connections can be open at once: "
        "raise the limit on open files (LimitNOFILE=, ulimit -n)",
        files // 2,
        connections,
    )
    return files // 2
