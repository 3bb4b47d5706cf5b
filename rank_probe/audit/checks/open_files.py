"""How many files a rank may open: sockets to other ranks, and batches from its workers."""

from collections.abc import Iterator
from typing import Final

from rank_probe.audit.checks.findings import AuditFinding, count, fail, ok, ranks, warn
from rank_probe.audit.checks.launch import Launch, grouped

# Libraries, devices and data files.
ANY_RANK: Final = 256
# The store has a connection to each rank, and so has each rank in a group of gloo.
PER_RANK_OF_THE_JOB: Final = 1
# The workers' tensors are passed as files, two batches in advance.
PER_WORKER: Final = 128


def open_files(launch: Launch) -> Iterator[AuditFinding]:
    """Name the ranks whose RLIMIT_NOFILE is below what the job may open."""
    wanted = ANY_RANK + PER_RANK_OF_THE_JOB * launch.world_size + PER_WORKER * launch.workers
    jobs = count(launch.world_size, "rank")
    if launch.workers:
        jobs += f" with {count(launch.workers, 'loader worker')} each"
    limited = [facts for facts in launch.facts if facts.open_files is not None]
    for limit, bound in grouped(limited, lambda facts: facts.open_files or 0).items():
        if limit >= wanted:
            continue
        most = max(facts.most_open_files or 0 for facts in bound)
        who = "this process" if launch.alone else ranks(facts.rank for facts in bound)
        finding = fail if limit < ANY_RANK else warn
        yield finding(
            f"{who} may open {limit} files (ulimit -n), and may want {wanted} in a job of {jobs}",
            f"ulimit -n {wanted} in the job script"
            if most >= wanted
            else "raise the hard limit: LimitNOFILE= of the launcher or slurmd, docker run "
            "--ulimit nofile, or limits.conf",
        )
    yield ok(f"each rank may open {wanted} files or more")
