"""A real API server takes the manifests and the chart, and says what Pod Security thinks of them.

The page is typed in as it stands. There is no kubelet, so no pod starts.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.api_server import cluster, write
from tests.deploy.kubernetes import (
    EXAMPLES,
    HELM,
    KUBECTL,
    ROOT,
    attempt,
    chart,
    kustomized,
    pod_spec,
    run,
)
from tests.deploy.pages import FENCE

pytestmark = pytest.mark.deploy

# What the exporter's pod has that a level forbids, in the server's words.
BASELINE = (
    'non-default capabilities (container "exporter" must not include "DAC_READ_SEARCH", '
    '"SYS_PTRACE" in securityContext.capabilities.add), host namespaces (hostPID=true), '
    'hostPath volumes (volumes "run", "state", "sys")'
)
BASELINE_OF_RESTRICTED = 'hostPath volumes (volume "run")'


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run a server for every kubectl and helm of this module."""
    with cluster(tmp_path_factory.mktemp("server")):
        yield


def versions() -> list[str]:
    """Return each of our objects with the version that changes whenever it does."""
    kinds = "daemonset,podmonitor,prometheusrule,configmap,networkpolicy,priorityclass"
    said = json.loads(run(KUBECTL, "get", kinds, "--namespace=rankskew", "--output=json"))
    return sorted(
        f"{each['kind']}/{each['metadata']['name']} {each['metadata']['resourceVersion']}"
        for each in said["items"]
        if each["metadata"]["name"].startswith("rankskew")
    )


def typed(line: str, clone: Path) -> str:
    """Type *line* of the page in a checkout; return what it prints."""
    # Namespaces are emptied by a controller, which does not run.
    done = subprocess.run(
        ["bash", "-c", line.replace("kubectl delete", "kubectl delete --wait=false")],
        cwd=clone,
        env={**os.environ, "PATH": f"{KUBECTL.parent}:{HELM.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


def test_page_is_typed(tmp_path: Path) -> None:
    """Each command of docs/kubernetes.md works, but for waiting for pods, which nobody starts.

    Helm upgrades too, and leaves nothing; kubectl creates each object once, and again none.
    """
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    with_kubectl, with_helm, example, [remove] = (b.splitlines() for b in FENCE.findall(page))
    apply, wait = with_kubectl
    assert wait == "kubectl -n rankskew rollout status daemonset/rankskew"
    remove, _, uninstall = remove.partition("# or: ")
    deploy = shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    run(ROOT / "scripts" / "kubernetes.sh", deploy / "kubernetes")

    upgrade = "helm upgrade rankskew deploy/helm/rankskew -n rankskew --set restricted=true"
    for line in (*with_helm, upgrade, uninstall):
        typed(line, tmp_path)
    assert versions() == []
    assert len(typed(apply, tmp_path).splitlines()) == len(kustomized())
    applied = versions()
    typed(apply, tmp_path)
    assert versions() == applied
    assert len(applied) == len(kustomized()) - 1  # The namespace.
    for line in ("kubectl create namespace training", *example, remove):
        typed(line, tmp_path)


@pytest.mark.parametrize("example", ["pytorchjob", "jobset", "rayjob", "socket-volume"])
def test_examples_are_accepted(example: str) -> None:
    """Each job is one that the server would store, without an unknown field."""
    if attempt(KUBECTL, "get", "namespace", "training").returncode:
        run(KUBECTL, "create", "namespace", "training")

    path = EXAMPLES / f"{example}.yaml"
    run(KUBECTL, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", path)


@pytest.mark.parametrize(
    ("values", "level", "forbidden"),
    [
        ((), "privileged", None),
        ((), "baseline", BASELINE),
        (("restricted=true",), "privileged", None),
        (("restricted=true",), "baseline", BASELINE_OF_RESTRICTED),
    ],
)
def test_pod_security(
    tmp_path: Path, values: tuple[str, ...], level: str, forbidden: str | None
) -> None:
    """The namespace's level refuses exactly what docs/kubernetes.md explains."""
    spec = {**pod_spec(chart(*values)), "priorityClassName": ""}
    namespace = f"{level}-{len(values)}"
    admitted(tmp_path / "pod", level, namespace, spec, forbidden)


def test_jobs_of_a_restricted_namespace_use_a_claim(tmp_path: Path) -> None:
    """A pod that mounts the socket's directory by a claim passes every level."""
    container = {
        "name": "rank",
        "image": "rank",
        "volumeMounts": [{"name": "rankskew", "mountPath": "/run/rankskew", "readOnly": True}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    claim = {"claimName": "rankskew", "readOnly": True}
    spec = {
        "containers": [container],
        "volumes": [{"name": "rankskew", "persistentVolumeClaim": claim}],
    }
    admitted(tmp_path / "pod", "restricted", "claims", spec, None)


def admitted(
    path: Path, level: str, namespace: str, spec: dict[str, Any], forbidden: str | None
) -> None:
    """Assert that a pod is admitted under *level*, or refused for *forbidden* alone."""
    labels = {"pod-security.kubernetes.io/enforce": level}
    space = {"metadata": {"name": namespace, "labels": labels}, "kind": "Namespace"}
    pod = {"metadata": {"name": "pod", "namespace": namespace}, "kind": "Pod", "spec": spec}
    run(KUBECTL, "apply", "--server-side", "-f", write(path, {"apiVersion": "v1", **space}))
    asked = write(path, {"apiVersion": "v1", **pod})
    done = attempt(KUBECTL, "apply", "--server-side", "--dry-run=server", "-f", asked)

    if forbidden is None:
        assert done.returncode == 0, done.stderr
    else:
        assert done.stderr.strip().endswith(f'violates PodSecurity "{level}:latest": {forbidden}')
