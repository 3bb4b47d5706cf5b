"""Nodes as Prometheus may have seen them."""

from rankskew.act.model import Episode, Held, HeldNodes, Limits, Node, Seen

NOW = 1_795_420_000.0
HOUR = 3600.0
LIMITS = Limits(
    lasting_seconds=HOUR / 2,
    episodes=3,
    window_seconds=24 * HOUR,
    most_nodes=2,
    most_percent=10,
    job_nodes_left=1,
    back_seconds=HOUR,
)
NAMES = frozenset(f"n{number}" for number in range(40))
N1 = Node("eu", "n1:9917")


def late(
    *minutes: tuple[float, float], cause: str = "slow_device", detail: str = "clocks"
) -> Episode:
    """Return an episode in which alerts fired between so many *minutes* ago."""
    spans = [(NOW - 60 * begin, NOW - 60 * end) for begin, end in minutes]
    return Episode(spans, cause, detail, "llama", "rank 9 on n1", ["1126-1935-abcd"])


def seen(*episodes: Episode, name: str = "n1", **more: object) -> Seen:
    """Return what is known of n1, which runs a job on itself and n2, in a cluster of 40 nodes."""
    jobs, pools = {"llama": frozenset({"n1", "n2"})}, {"cluster eu": NAMES}
    return Seen(N1, name, episodes, **({"jobs": jobs, "pools": pools} | more))  # type: ignore[arg-type]


def holding(*names: str, since: float = NOW - HOUR) -> HeldNodes:
    """Return a state in which these are held."""
    return HeldNodes({Node("eu", f"{name}:9917"): Held(name, since) for name in names})
