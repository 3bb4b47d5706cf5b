"""What the policy decides on: a node, what Prometheus has seen of it, and what is held already."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from rankskew.report.times import Span


class Node(NamedTuple):
    """A node as Prometheus knows it; *cluster* is empty where there is only one."""

    cluster: str
    instance: str


@dataclass(frozen=True, slots=True)
class Episode:
    """A time in which a node was late, for *cause* most of all: alerts fired in *spans*.

    *incidents* are their ids, as `rankskew report` prints them; *place* is a rank or the node.
    """

    spans: Sequence[Span]
    cause: str
    detail: str = ""
    job_id: str = ""
    place: str = ""
    incidents: Sequence[str] = ()

    @property
    def end(self) -> float:
        """Return when an alert fired last."""
        return self.spans[-1][1]


@dataclass(frozen=True, slots=True)
class Seen:
    """What Prometheus says of *node*, which schedulers call *name*.

    *episodes* are in the order of their ends. *jobs* has the names of the nodes of each job that
    runs on this one, *pools* those of the cluster and of each partition. Ranks were *judged* then.
    """

    node: Node
    name: str
    episodes: Sequence[Episode] = ()
    jobs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    pools: Mapping[str, frozenset[str]] = field(default_factory=dict)
    judged: Sequence[Span] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """When a node is held, of how many, and when it is freed.

    It is held if it is late for *lasting_seconds*, or in *episodes* of *window_seconds*. At most
    *most_nodes* are held at once, and *most_percent* of a pool; each job keeps *job_nodes_left*.
    It is freed after *back_seconds* in which it was judged and not late, or after *again_seconds*.
    """

    lasting_seconds: float
    episodes: int
    window_seconds: float
    most_nodes: int
    most_percent: float
    job_nodes_left: int
    back_seconds: float
    again_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A node that is held by its *name*, since a Unix time."""

    name: str
    since: float


@dataclass
class HeldNodes:
    """What one target holds, when it freed nodes, and which it watches, by the rule why."""

    held: dict[Node, Held] = field(default_factory=dict)
    freed: dict[Node, float] = field(default_factory=dict)
    watched: dict[Node, str] = field(default_factory=dict)


class NodeAction(StrEnum):
    """What is to be done with a node."""

    HOLD = "hold"
    FREE = "free"
    KEEP = "keep"
    WAIT = "wait"
    DISMISS = "dismiss"


@dataclass(frozen=True, slots=True)
class Decision:
    """An *action*, the *rule* that it follows from, a *sentence* for a person, and about what."""

    action: NodeAction
    rule: str
    sentence: str
    episode: Episode | None = None
