"""A Slurm cluster of two booted machines, as a site has it before it hears of Rankskew."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from devstack.process import wait_for
from tests.deploy.debian import ROOT, USER, USER_ID
from tests.deploy.machine import Machine, Network

NODES: Final = ("node1", "node2")
CONF: Final = "/etc/slurm/slurm.conf"
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


class Cluster:
    """Two nodes; the first is the controller. Jobs run in *shared*, which all nodes see."""

    def __init__(self, nodes: Sequence[Machine], shared: Path) -> None:
        self.nodes, self.shared = nodes, shared
        self.first = nodes[0]

    def on_each(self, script: str) -> list[str]:
        """Type *script* as root on each node; return what each prints."""
        return [node.run(script) for node in self.nodes]

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
            node.run(f"mkdir -p /etc/slurm; cat > {CONF} <<'END'\n{SLURM}END")
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
