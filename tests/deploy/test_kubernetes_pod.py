"""The pods run as their manifests say, with a test in the place of the kubelet.

Mounts, user, capabilities and a read-only root are real; there are no cgroups and no pod network.
"""

import copy
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from devstack.parts import PrometheusProcess
from devstack.process import StackProcess, free_port, get, wait_for
from tests.deploy.kubernetes import Manifest, chart, examples, pod_spec
from tests.deploy.pod import container_process

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount what a pod mounts"),
]

USER = 1000  # Of the training image.
RESTRICTED = "restricted=true"
PAGE_SECONDS = 180
# What Kubernetes and the operator tell every pod of the job.
OF_JOB = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "bert-worker-0"}


@contextmanager
def exporter(node: Path, port: int, *values: str) -> Iterator[StackProcess]:
    """Run the DaemonSet's pod of the chart with *values*, until it is ready."""
    spec = copy.deepcopy(pod_spec(chart(*values)))
    [container] = spec["containers"]
    container["args"].append(f"--web.listen-address=127.0.0.1:{port}")
    process = container_process(spec, container, node, "exporter")
    process.ready_url = f"http://127.0.0.1:{port}{container['readinessProbe']['httpGet']['path']}"
    process.ready_seconds = 60
    with process:
        yield process


def worker() -> Manifest:
    """Return the pod of the example's worker."""
    replicas = examples()["pytorchjob"]["spec"]["pytorchReplicaSpecs"]
    spec: Manifest = replicas["Worker"]["template"]["spec"]
    return spec


def in_job(
    node: Path, name: str, command: list[str] | None = None, user: int = USER
) -> StackProcess:
    """Return the gate of the example job, or another *command* in its place."""
    spec = worker()
    [gate] = spec["initContainers"]
    container = {**gate, "command": command or gate["command"]}
    return container_process(spec, container, node, name, user, OF_JOB)


def finished(process: StackProcess) -> tuple[int | None, str]:
    """Run *process* to its end; return its status and what it said."""
    with process:
        wait_for(lambda: process.exit_code, seconds=90)
        return process.exit_code, process.log.read_text()


def test_job_reaches_the_socket_but_cannot_touch_it(tmp_path: Path) -> None:
    """Its gate waits for the exporter; its read-only mount lets it neither remove nor add."""
    with in_job(tmp_path, "early") as early:
        assert wait_for(lambda: "waiting" in early.log.read_text() or None, seconds=60)
        assert early.exit_code is None
        with exporter(tmp_path, free_port()):
            assert wait_for(lambda: early.exit_code, seconds=60) == 0, early.last_lines()
            status, said = finished(in_job(tmp_path, "root", user=0))
            assert status == 0, said
            assert "ok: ranks can report" in said
            assert "job: 'training/bert'" in said
            touch = "rm -f /run/rankskew/exporter.sock; touch /run/rankskew/mine; ls /run/rankskew"
            _, said = finished(in_job(tmp_path, "touch", ["sh", "-c", touch], user=0))

    assert said.count("Read-only file system") == 2, said
    assert said.split()[-1] == "exporter.sock"


def test_restricted_exporter(tmp_path: Path) -> None:
    """Without root it serves and takes in, where somebody gave it the directory beforehand."""
    directory = tmp_path / "run" / "rankskew"
    with (
        pytest.raises(AssertionError, match="is not a directory"),
        exporter(tmp_path, 0, RESTRICTED),
    ):
        pass
    directory.mkdir(parents=True)
    os.chown(directory, 9917, 9917)
    tmp_path.chmod(0o755)
    with exporter(tmp_path, free_port(), RESTRICTED):
        status, said = finished(in_job(tmp_path, "gate"))

    assert status == 0, said


def test_late_rank_is_paged(tmp_path: Path) -> None:
    """A straggler in the example's pod raises the alert of the ConfigMap's rules.

    The pod keeps the one mount that it has while the exporter's pod is replaced.
    """
    port = free_port()
    rules = tmp_path / "rules"
    rules.mkdir()
    config_map = chart("prometheusOperator=false")["ConfigMap", "rankskew-rules"]
    for name, text in config_map["data"].items():
        (rules / name).write_text(text)
    spec = worker()
    [container] = spec["containers"]
    environment = {
        **OF_JOB,
        "PET_NPROC_PER_NODE": "4",
        "PET_NNODES": "1",
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "STEPS": "1000000",
    }
    job = container_process(spec, container, tmp_path, "job", USER, environment)
    prometheus = PrometheusProcess(
        tmp_path / "prometheus", [f"127.0.0.1:{port}"], rules=rules, interval_seconds=15
    )
    detail = "extraArgs={--series.detail=all}"
    with ExitStack() as running:
        with exporter(tmp_path, port, detail):
            running.enter_context(job)
            steps = 'rankskew_steps_total{job_id="training/bert"'
            reported = wait_for(lambda: steps in metrics(port) or None, seconds=90, every=1)
            assert reported, job.last_lines()
        with exporter(tmp_path, port, detail), prometheus:
            alert = wait_for(lambda: firing(prometheus), PAGE_SECONDS, every=1)
            assert alert, f"{job.last_lines()}\n{prometheus.active_alerts()}"
            page = metrics(port)

    # What only a capability shows: the files of another user's processes.
    assert "rankskew_rank_read_bytes_total{" in page
    # The pod's own name would tell nobody where to go.
    assert 'nodename="gpu-5"' in page
    assert alert["labels"]["job_id"] == "training/bert"
    assert alert["labels"]["rank"] == "2"
    assert alert["annotations"]["summary"].startswith("Rank 2")


def metrics(port: int) -> str:
    return get(f"http://127.0.0.1:{port}/metrics").decode()


def firing(prometheus: PrometheusProcess) -> dict[str, Any] | None:
    """Return the alert of a straggler once it fires."""
    return next(
        (
            alert
            for alert in prometheus.active_alerts()
            if alert["labels"]["alertname"] == "RankskewStraggler" and alert["state"] == "firing"
        ),
        None,
    )
