"""Rankskew on a real Slurm: the commands of its page, and what Slurm does to jobs."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from devstack.parts import AlertmanagerProcess, PrometheusProcess
from devstack.process import answers, wait_for
from devstack.webhook import Webhook
from tests.deploy import ROOT, blocks
from tests.deploy.machine import USER, USER_ID, Machine, Network

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

NODES: Final = ("node1", "node2")
# As Debian's units expect it. CPUs are not what is tested, so there are enough for every job.
SLURM: Final = """\
ClusterName=test
SlurmctldHost=node1
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
NodeName=node[1-2] CPUs=16 RealMemory=2000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PAGE: Final = "docs/slurm.md"
TEN_MINUTES: Final = 600.0
# The page's train.py; it reads its arguments from TRAIN, so the page's commands run unchanged.
TRAIN: Final = f"""\
import os, runpy, sys
sys.argv[1:] = os.environ["TRAIN"].split()
runpy.run_path("{ROOT}/demo/train.py", run_name="__main__")
"""
HEALTHY: Final = "--steps 1000000 --step-seconds 0.4"
LATE: Final = f"{HEALTHY} --fault data --delay 0.2"
TORCHRUN, SRUN = 0, 1


class Cluster:
    """Two nodes; the first is the controller. Jobs run in *shared*, which all nodes see."""

    def __init__(self, nodes: Sequence[Machine], shared: Path) -> None:
        self.nodes, self.shared = nodes, shared
        self.first = nodes[0]

    def as_user(self, script: str, seconds: float = 120) -> str:
        """Type *script* as the user of the jobs; torch is on the path, as after `activate`."""
        activate = f"export PATH={ROOT}/.venv/bin:$PATH PYTHONPATH={ROOT} OMP_NUM_THREADS=1\n"
        # The training's own packages; the probe is the one of this checkout.
        return self.first.run(activate + script, USER, self.shared, seconds=seconds)

    def submit(self, script: str) -> str:
        """Type `sbatch ...`; return the job's number."""
        return self.as_user(script).strip().splitlines()[-1].split()[-1]

    def state(self, job: str) -> str:
        """Return the job's state and reason, such as `RUNNING None`."""
        return self.first.run(f"squeue --noheader --format '%T %r' --job {job} || true").strip()

    def wait_for_state(self, job: str, state: str, seconds: float = 60) -> None:
        """Wait until the state and reason of *job* contain *state*."""
        done = wait_for(lambda: state in self.state(job) or None, seconds, every=0.5)
        assert done, f"job {job} is {self.state(job)}, not {state}; {self.log(job)}"

    def cancel(self, job: str) -> None:
        """End *job*, and wait until it is over."""
        self.first.run(f"scancel {job}")
        done = wait_for(lambda: not self.state(job) or None, 40, every=0.5)
        assert done, f"job {job} does not end: {self.state(job)}"

    def log(self, job: str) -> str:
        """Return the output of *job*."""
        file = self.shared / f"slurm-{job}.out"
        return file.read_text(errors="replace") if file.exists() else "no output"


@contextmanager
def cluster(layers: Sequence[Path], network: Network, directory: Path) -> Iterator[Cluster]:
    """Boot the nodes with *layers*, and start Slurm on them."""
    shared = directory / "shared"
    shared.mkdir()
    nodes = [
        Machine(directory, name, layers, network, number, writable=[shared])
        for number, name in enumerate(NODES, start=1)
    ]
    with nodes[0], nodes[1]:
        hosts = "".join(f"{node.address} {node.host}\n" for node in nodes)
        for node in nodes:
            node.run(f"printf '127.0.0.1 localhost\\n{hosts}' > /etc/hosts")
            node.run(f"mkdir -p /etc/slurm; cat > /etc/slurm/slurm.conf <<'END'\n{SLURM}END")
            node.run("install -d -o slurm /var/lib/slurm/slurmctld /var/lib/slurm/slurmd")
            node.run(f"chown {USER_ID} {shared}; chmod 755 /root")
        nodes[0].run("systemctl start munge slurmctld slurmd")
        nodes[1].run("systemctl start munge slurmd")
        found = Cluster(nodes, shared)
        up = wait_for(
            lambda: (nodes[0].run("sinfo -h -t idle -o %D || true").strip() == "2") or None, 30
        )
        assert up, nodes[0].run("sinfo; tail -n 20 /var/log/slurm/*.log")
        yield found


@dataclass
class Site:
    """A cluster as the page leaves it, watched by a Prometheus that pages a webhook."""

    cluster: Cluster
    prometheus: PrometheusProcess
    webhook: Webhook
    began: float

    def train(self, way: int, arguments: str) -> str:
        """Submit the page's job of torchrun or srun; return its number."""
        return self.cluster.submit(
            f"export TRAIN='{arguments}'\n{blocks(PAGE, '4. In the job')[way]}"
        )

    def ranks(self, job: str) -> set[tuple[str, str, str, str]]:
        """Return the rank, local rank, world size and attempt of each rank that is seen."""
        names = ("rank", "local_rank", "world_size", "attempt")
        found = self.prometheus.query(f'rankskew_rank_info{{job_id="{job}"}}')
        return {tuple(one.labels[name] for name in names) for one in found}  # type: ignore[misc]

    def wait_for_ranks(self, job: str, attempt: str = "0") -> None:
        """Wait until *job* has four ranks, two on each node, in *attempt* and no other."""
        wanted = {(str(rank), str(rank % 2), "4", attempt) for rank in range(4)}
        done = wait_for(lambda: self.ranks(job) == wanted or None, 90, every=1)
        assert done, f"{self.ranks(job)}; {self.cluster.log(job)}"

    def alerts(self, job: str) -> set[str]:
        """Return the names of the alerts on *job* that fire or are about to."""
        active = [alert["labels"] for alert in self.prometheus.active_alerts()]
        return {labels["alertname"] for labels in active if labels.get("job_id") == job}


@pytest.fixture(scope="module")
def site(
    installed: Path, system: Path, network: Network, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A site set up with the page's commands up to the job; exporters follow their own page."""
    directory = tmp_path_factory.mktemp("slurm")
    with ExitStack() as parts:
        webhook = parts.enter_context(Webhook())
        found = parts.enter_context(cluster([installed, system], network, directory))
        began = time.monotonic()
        each, once = blocks(PAGE, "2. On each node: prolog and epilog")
        for node in found.nodes:
            node.run(each)
        found.first.run(once)
        [nodes] = blocks(PAGE, "3. In Prometheus")
        listed = found.first.run(
            f"mkdir /etc/prometheus\n{nodes}cat /etc/prometheus/slurm-nodes.yaml"
        )
        assert listed.splitlines() == ['- targets: ["node1:9917"]', '- targets: ["node2:9917"]']
        (found.shared / "train.py").write_text(TRAIN)
        alertmanager = parts.enter_context(AlertmanagerProcess(directory, webhook.url))
        targets = [f"{node.address}:9917" for node in found.nodes]
        prometheus = PrometheusProcess(directory, targets, alertmanager.address)
        parts.enter_context(prometheus)
        yield Site(found, prometheus, webhook, began)


@pytest.fixture(scope="module")
def late(site: Site) -> str:
    """A job of torchrun with a late rank."""
    return site.train(TORCHRUN, LATE)


def test_late_rank_is_paged_within_ten_minutes(site: Site, late: str) -> None:
    """An alert names the late rank in ten minutes from the first command; the live view agrees."""
    page = site.webhook.wait_for_alert("RankskewStraggler", 180, job_id=late)
    said = site.cluster.first.run(blocks(PAGE, "5. Look")[0])

    assert page.received - site.began < TEN_MINUTES
    assert (page.labels["rank"], page.labels["stage"]) == ("2", "data")
    assert f"job {late}" in page.annotations["summary"]
    assert "Rank 2 (on node2) is slow loading data" in said
    site.wait_for_ranks(late)


def test_requeued_job_is_one_job_and_another_attempt(site: Site, late: str) -> None:
    """The previous run's ranks leave, and no alert reports missing ranks or a hang."""
    site.cluster.first.run(f"scontrol requeue {late}")
    site.cluster.wait_for_state(late, "PENDING")
    # Slurm waits for two minutes before it starts a requeued job.
    site.cluster.first.run(f"scontrol update JobId={late} StartTime=now")
    site.cluster.wait_for_state(late, "RUNNING")
    site.wait_for_ranks(late, attempt="1")

    silent = f'sum(rankskew_node_ranks{{job_id="{late}",state="silent"}})'
    assert wait_for(lambda: site.prometheus.value(silent) == 0 or None, 30, every=1)
    assert not {"RankskewRanksMissing", "RankskewJobHung"} & site.alerts(late)
    # The epilog reports the verdict, so wait until this attempt has one.
    look = blocks(PAGE, "5. Look")[0]
    again = wait_for(lambda: "Rank 2" in site.cluster.first.run(look) or None, 90, every=1)
    assert again, site.cluster.log(late)


def test_epilog_notes_what_was_wrong(site: Site, late: str) -> None:
    """The journal of each node has the verdict on the job at its end; no alert is left."""
    site.cluster.cancel(late)
    note = f"job {late} ended: Rank 2"
    for node in site.cluster.nodes:
        find = "journalctl -t rankskew-slurm --no-pager"
        assert wait_for(lambda: note in node.run(find) or None, 20, every=1), node.run(find)  # noqa: B023

    # A page outlives what is recorded of the rank by a minute.
    assert wait_for(lambda: not site.alerts(late) or None, 120, every=1), site.alerts(late)


def test_two_jobs_on_one_node_are_kept_apart(site: Site) -> None:
    """Of one user, on the same nodes, at the same time, started by srun: each has its own ranks."""
    jobs = [site.train(SRUN, HEALTHY) for _ in range(2)]
    for job in jobs:
        site.wait_for_ranks(job)
    for job in jobs:
        site.cluster.cancel(job)


def test_heterogeneous_job_is_one_job(site: Site) -> None:
    """Every task of both components is a rank of the job that squeue shows."""
    tasks = "-N 1 -n 2 : -N 1 -n 2 --wrap 'srun --het-group=0,1 rank-probe check'"
    job = site.cluster.submit(f"sbatch --wait {tasks}")
    said = site.cluster.log(job)

    assert said.count("ok: ranks can report") == 4, said
    assert said.count(f"job: '{job}', from SLURM_JOB_ID") == 4
    assert all(f"rank: {task} of 4" in said for task in range(4))


def test_node_without_an_exporter(site: Site) -> None:
    """Jobs start and the journal says why no rank reports; a required exporter holds them instead.

    The page's commands then release the node and the job.
    """
    node, cluster = site.cluster.nodes[1], site.cluster

    def submit() -> str:
        return cluster.submit("sbatch --nodelist node2 --wrap 'echo ran'")

    def assert_runs(job: str) -> None:
        ran = wait_for(lambda: cluster.log(job) == "ran\n" or None, 60, every=1)
        assert ran, f"{cluster.state(job)}; {cluster.log(job)}"

    node.run("systemctl stop rankskew-exporter")
    job = submit()
    assert_runs(job)
    said = node.run("journalctl -t rankskew-slurm --no-pager")
    assert f"job {job}: problem: there is no socket" in said
    assert "drain" not in node.run("sinfo --noheader --nodes node2 --format %T")

    node.run("printf 'RANKSKEW_REQUIRED=yes\\nRANKSKEW_WAIT=2\\n' > /etc/default/rankskew-slurm")
    job = submit()
    cluster.wait_for_state(job, "PENDING", 60)
    held = wait_for(lambda: "held" in cluster.state(job).lower() or None, 60, every=1)
    assert held, cluster.state(job)
    assert "Prolog error" in node.run("sinfo --noheader --list-reasons")
    node.run("systemctl start rankskew-exporter")
    assert wait_for(lambda: answers(f"http://{node.address}:9917/-/ready") or None, 30)
    [mend] = blocks(PAGE, "The gate")
    cluster.first.run(mend.replace("4242", job))
    cluster.first.run(f"scontrol update JobId={job} StartTime=now")
    assert_runs(job)
