"""A real API server takes the manifests and the chart, and says what Pod Security thinks of them.

There is no kubelet: that a pod starts is test_kubernetes_pod.py's subject.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.api_server import cluster, write
from tests.deploy.kubernetes import (
    CHART,
    EXAMPLES,
    HELM,
    KUBECTL,
    attempt,
    chart,
    kustomized,
    made,
    pod_spec,
    run,
)

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


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that is applied with -k."""
    return made(tmp_path_factory.mktemp("manifests"))


def versions() -> list[str]:
    """Return each of our objects with the version that changes whenever it does."""
    kinds = "daemonset,podmonitor,prometheusrule,configmap,networkpolicy,priorityclass"
    said = json.loads(run(KUBECTL, "get", kinds, "--namespace=rankskew", "--output=json"))
    return sorted(
        f"{each['kind']}/{each['metadata']['name']} {each['metadata']['resourceVersion']}"
        for each in said["items"]
        if each["metadata"]["name"].startswith("rankskew")
    )


def test_applying_twice_changes_nothing(manifests: Path) -> None:
    """`kubectl apply --server-side -k` creates everything once; again, no object changes."""
    command = ("apply", "--server-side", "-k", manifests)
    said = run(KUBECTL, *command)
    assert len(said.splitlines()) == len(kustomized())
    before = versions()

    run(KUBECTL, *command)

    assert len(before) == len(kustomized()) - 1  # The namespace.
    assert versions() == before


def test_apply_on_the_client_works_too(manifests: Path) -> None:
    """No object is too long for the annotation that `kubectl apply` alone writes."""
    said = run(KUBECTL, "apply", "--dry-run=server", "-k", manifests)

    assert len(said.splitlines()) == len(kustomized())


def test_helm_installs_and_removes() -> None:
    """Helm's release is accepted, an upgrade too, and removal leaves nothing."""
    place = ("--namespace", "second", "--create-namespace")
    run(HELM, "install", "second", CHART, *place)
    run(HELM, "upgrade", "second", CHART, *place, "--set", "restricted=true")
    run(HELM, "uninstall", "second", "--namespace", "second", "--wait")

    left = run(KUBECTL, "get", "daemonset,podmonitor,configmap", "-n", "second", "--output=name")
    assert set(left.split()) <= {"configmap/kube-root-ca.crt"}


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
