"""The paths between the GPUs of a node: whether one GPU's are worse than the others'."""

from collections.abc import Iterator

from rank_probe.audit.checks.devices import without_gpus
from rank_probe.audit.checks.findings import AuditFinding, fail, names, not_checked, ok, warn
from rank_probe.audit.checks.launch import Launch, majority
from rank_probe.audit.readings.facts import Facts, GpuFacts

# nvmlGpuTopologyLevel_t, and what nvidia-smi topo -m calls it.
LEVELS = {0: "", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def peer_paths(launch: Launch) -> Iterator[AuditFinding]:
    """Name the GPUs with fewer NVLinks, or farther from their peers, than most of their node."""
    nothing = without_gpus(launch)
    problem = next((facts.nvml_problem for facts in launch.facts if facts.nvml_problem), "")
    nodes = [
        max(machine, key=lambda facts: len(facts.gpus))
        for machine in launch.machines()
        if any(len(facts.gpus) > 1 for facts in machine)
    ]
    if nothing or not nodes:
        yield nothing or not_checked(problem or "there is one GPU on each node")
        return
    for facts in nodes:
        yield from _links(facts)
        yield from _paths(facts)
    yield ok("the GPUs of each node have equally good paths to each other")


def _links(facts: Facts) -> Iterator[AuditFinding]:
    links = {gpu.index: gpu.nvlinks or 0 for gpu in facts.gpus}
    usual = majority(links) or max(links.values())
    for gpu in facts.gpus:
        if links[gpu.index] < usual:
            yield fail(
                f"GPU {gpu.index} ({gpu.uuid}) on {facts.node} has {links[gpu.index]} NVLinks up, "
                f"the others {usual}",
                f"look at nvidia-smi nvlink --status -i {gpu.index} and dmesg for errors of the "
                "fabric; drain the node",
            )


def _paths(facts: Facts) -> Iterator[AuditFinding]:
    """Yield the GPUs that are farther from the others; none if no distance is usual."""
    distances = {gpu.index: tuple(sorted(gpu.paths.values())) for gpu in facts.gpus}
    usual = majority(distances)
    if usual is None:
        return
    far = [gpu for gpu in facts.gpus if sum(distances[gpu.index]) > sum(usual)]
    if far:
        yield warn(
            f"farther from their peers than most GPUs on {facts.node} ({_levels(usual)}): "
            f"{names([f'GPU {gpu.index} ({_told(gpu)})' for gpu in far])}",
            "compare nvidia-smi topo -m with other nodes: a riser, a PCIe switch or a setting of "
            "the BIOS may differ; leave these GPUs out, or give them ranks of their own group",
        )


def _told(gpu: GpuFacts) -> str:
    return _levels(tuple(sorted(gpu.paths.values())))


def _levels(levels: tuple[int, ...]) -> str:
    """Return such as '3 x NODE, 4 x SYS'."""
    counts = {level: levels.count(level) for level in sorted(set(levels))}
    return ", ".join(f"{count} x {LEVELS.get(level) or level}" for level, count in counts.items())
