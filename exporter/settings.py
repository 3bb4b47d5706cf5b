"""Every setting of `rankskew exporter`: its flag, default and help, in one place."""

import re
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any, NamedTuple

from exporter import durations
from exporter.log import FORMATS


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def whole(text: str) -> int:
    """Return a whole number of at least 0."""
    return 0 if text == "0" else positive(text)


def file_mode(text: str) -> int:
    """Return the permission bits of an octal mode such as 0660."""
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise ValueError(f"{text!r} is not an octal file mode such as 0660")
    return int(text, 8)


def regular_expression(text: str) -> str:
    """Return *text* when it compiles as a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error
    return text


def one_of(*names: str) -> Callable[[str], str]:
    """Return what lets one of *names* pass."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is not one of {', '.join(names)}")
        return text

    return parse


def collector_names(text: str) -> frozenset[str]:
    """Return the names in a list with commas."""
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def web_address(text: str) -> str:
    """Return a URL that a browser can open, without a slash at its end; '' stays ''."""
    if text and not re.fullmatch(r"https?://[^\s\"'<>]+", text):
        raise ValueError(f"{text!r} is not a URL such as https://grafana.example.org")
    return text.rstrip("/")


def at_least(least: str, because: str) -> Callable[[str], float]:
    """Return what reads durations of *least* or more; *because* is why a shorter one is refused."""

    def parse(text: str) -> float:
        seconds = durations.parse(text)
        if seconds < durations.parse(least):
            raise ValueError(f"{text!r} is too short: at least {least}, as {because}")
        return seconds

    return parse


class Flag(NamedTuple):
    """How a field of Settings is given on the command line."""

    name: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str]
    help: str


def _flag(
    name: str,
    default: Any,
    help_text: str,
    parse: Callable[[str], Any] = str,
    show: Callable[[Any], str] = str,
) -> Any:
    return field(default=default, metadata={"flag": Flag(name, parse, show, help_text)})


@dataclass(frozen=True, slots=True)
class Settings:
    """The exporter's settings; durations are in seconds, '' turns a path or address off."""

    web_listen_address: str = _flag(
        "--web.listen-address",
        ":9917",
        "Listen address for /metrics and the live page; ':9917' listens on all addresses.",
    )
    web_config_file: str = _flag(
        "--web.config.file",
        "",
        "Web configuration file in the Prometheus exporter-toolkit format: TLS, basic auth, "
        "headers. It and its certificates are read again when they change.",
    )
    node_name: str = _flag(
        "--node.name",
        "",
        "Name of this node in metrics, alerts and on the live page; '' means its hostname. A "
        "container has a hostname of its own: pass the node's there.",
    )
    grafana_url: str = _flag(
        "--grafana.url",
        "",
        "Address of the Grafana that has the dashboards, as a browser reaches it; the live page "
        "links each job to its dashboard there. '' means no links.",
        web_address,
    )
    ingest_socket: str = _flag(
        "--ingest.socket",
        "/run/rankskew/exporter.sock",
        "Unix socket to which training processes post snapshots; '' turns it off.",
    )
    ingest_socket_mode: int = _flag(
        "--ingest.socket-mode",
        0o666,
        "File mode of the ingest socket: who on this node may post snapshots.",
        file_mode,
        lambda mode: f"{mode:04o}",
    )
    ingest_listen_address: str = _flag(
        "--ingest.listen-address",
        "",
        "host:port that also accepts snapshots, for when a socket cannot be shared; '' turns it "
        "off. Only loopback addresses are allowed without a token.",
    )
    ingest_token_file: str = _flag(
        "--ingest.token-file",
        "",
        "File with the token that every request to --ingest.listen-address must send; '' means "
        "none. It is read again when it changes. The listener has no TLS: use a trusted network.",
    )
    ingest_max_body_bytes: int = _flag(
        "--ingest.max-body-bytes", 65536, "Maximum size of a snapshot, in bytes.", positive
    )
    ingest_connections_per_rank: int = _flag(
        "--ingest.connections-per-rank",
        4,
        "Maximum number of open ingest connections, as a multiple of --ranks.max; one user gets "
        "at most half of them.",
        positive,
    )
    operator_socket: str = _flag(
        "--operator.socket",
        "/run/rankskew-operator/operator.sock",
        "Unix socket, open to this user and to root only, on which rankskew control gives "
        "orders; keep its directory out of containers. '' turns it off.",
    )
    ranks_max: int = _flag("--ranks.max", 64, "Maximum number of ranks on this node.", positive)
    ranks_jobs_max: int = _flag(
        "--ranks.jobs-max", 16, "Maximum number of jobs on this node.", positive
    )
    ranks_peer_groups_max: int = _flag(
        "--ranks.peer-groups-max", 32, "Maximum number of peer groups on this node.", positive
    )
    ranks_finished_retention_seconds: float = _flag(
        "--ranks.finished-retention",
        300.0,
        "How long to keep a rank's series after it has ended cleanly.",
        # Silent for longer, it may be taken over by another user.
        at_least("1s", "a rank that reports once a second would end between two reports"),
        durations.show,
    )
    ranks_silent_retention_seconds: float = _flag(
        "--ranks.silent-retention",
        3600.0,
        "How long to keep a rank's series after its last snapshot if it did not end cleanly.",
        at_least("1s", "ranks report once a second, and would come and go"),
        durations.show,
    )
    series_detail: frozenset[str] = _flag(
        "--series.detail",
        frozenset(),
        "Collectors that expose all their series, not only the core that alerts and the top rows "
        "of dashboards read: comma-separated names, or 'all'. '' means none.",
        collector_names,
        lambda names: ",".join(sorted(names)),
    )
    thresholds_file: str = _flag(
        "--thresholds.file",
        "",
        "Rule file with your overrides of thresholds (rankskew:threshold:override), the same that "
        "Prometheus loads, so that the live page has them too. '' means none.",
    )
    path_procfs: str = _flag("--path.procfs", "/proc", "Mount point of the node's procfs.")
    path_sysfs: str = _flag("--path.sysfs", "/sys", "Mount point of the node's sysfs.")
    node_network_device_exclude: str = _flag(
        "--collector.node_network.device-exclude",
        r"lo|ifb.*|dummy.*|veth.*|cali.*|cni.*|docker.*|br-.*|flannel.*|virbr.*|tap.*|"
        r"lxc.*|cilium.*|eni[0-9a-f]{11}|azv.*|gke[0-9a-f]{11}|vxlan.*|tunl.*|kube-.*|"
        r"[0-9a-f]{15}|ovn-k8s-mp\d*",
        "Regular expression of network devices to exclude; it must match the whole name.",
        regular_expression,
    )
    node_disk_device_exclude: str = _flag(
        "--collector.node_disk.device-exclude",
        r"(fd|sr)\d+",
        "Regular expression of physical disks to exclude; it must match the whole name.",
        regular_expression,
    )
    path_state: str = _flag(
        "--path.state",
        "/var/lib/rankskew",
        "Existing directory in which the list of this node's GPUs is stored across restarts; '' "
        "turns it off.",
    )
    gpus_expected: int = _flag(
        "--gpus.expected",
        0,
        "Number of GPUs that this node should have; 0 means all GPUs ever seen, minus those "
        "replaced or forgotten.",
        whole,
    )
    nvml_interval_seconds: float = _flag(
        "--nvml.interval",
        1.0,
        "Interval at which the GPUs are read.",
        at_least("100ms", "the driver has no newer figures before"),  # It samples every 1/6 s.
        durations.show,
    )
    nvml_window_seconds: float = _flag(
        "--nvml.window",
        15.0,
        "Window for means and minima of GPU readings: one scrape interval or more.",
        at_least("1s", "the driver counts some figures over a whole second"),
        durations.show,
    )
    log_level: str = _flag(
        "--log.level",
        "info",
        "Least severe messages to log: debug, info, warning or error.",
        one_of("debug", "info", "warning", "error"),
    )
    log_format: str = _flag(
        "--log.format",
        "text",
        "Format of the log: text, or one record per line in logfmt or json, with the time in UTC.",
        one_of(*FORMATS),
    )
    collectors_off: frozenset[str] = frozenset()


def flags() -> Iterator[tuple[Field[Any], Flag]]:
    """Yield the fields that have a flag of their own; the collector switches are a list apart."""
    for setting in fields(Settings):
        if "flag" in setting.metadata:
            yield setting, setting.metadata["flag"]
