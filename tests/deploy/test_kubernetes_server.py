"""A real API server takes the manifests and the chart, and says what Pod Security thinks of them.

The page is typed in as it stands. There is no kubelet, so no pod starts.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from devstack.process import StackProcess, free_port, wait_for
from tests.deploy import FENCE, ROOT
from tests.deploy.kubernetes import (
    EXAMPLES,
    HELM,
    KUBECTL,
    attempt,
    chart,
    kustomized,
    pod_spec,
    run,
)

pytestmark = pytest.mark.deploy

READY_SECONDS: Final = 120
TOKEN: Final = "of-this-test"
CRDS: Final = os.environ.get("KUBERNETES_CRDS")
# What the exporter's pod has that a level forbids, in the server's words.
BASELINE = (
    'non-default capabilities (container "exporter" must not include "DAC_READ_SEARCH", '
    '"SYS_PTRACE" in securityContext.capabilities.add), host namespaces (hostPID=true), '
    'hostPath volumes (volumes "run", "state", "sys")'
)
BASELINE_OF_RESTRICTED = 'hostPath volumes (volume "run")'


@contextmanager
def api_server(directory: Path) -> Iterator[Path]:
    """Run an API server and yield a kubeconfig for its administrator; skip without its programs."""
    program = os.environ.get("KUBE_APISERVER") or shutil.which("kube-apiserver")
    etcd = shutil.which("etcd")
    if program is None or etcd is None or CRDS is None or not KUBECTL.exists():
        pytest.skip("no kube-apiserver, etcd, CRDs or kubectl: docs/kubernetes.md says where from")
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    port = free_port()
    run("openssl", "genrsa", "-out", directory / "key", "2048")
    (directory / "tokens").write_text(f"{TOKEN},admin,1,system:masters\n")
    storing = [
        etcd,
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]
    serving = [
        program,
        f"--etcd-servers={client}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={directory / 'certificates'}",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={directory / 'key'}",
        f"--service-account-signing-key-file={directory / 'key'}",
        "--authorization-mode=RBAC",
        f"--token-auth-file={directory / 'tokens'}",
        "--disable-admission-plugins=ServiceAccount",  # No controller makes the accounts.
    ]
    server = StackProcess("the API server", serving, directory / "server.log")
    kubeconfig = configuration(directory, port)
    ready = ("--kubeconfig", kubeconfig, "get", "--raw", "/readyz")
    with StackProcess("etcd", storing, directory / "etcd.log"), server:
        is_ready = wait_for(lambda: attempt(KUBECTL, *ready).returncode == 0 or None, READY_SECONDS)
        assert is_ready, server.last_lines()
        yield kubeconfig


def configuration(directory: Path, port: int) -> Path:
    """Write a kubeconfig. The server signed its own certificate, so nothing verifies it."""
    cluster = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    said = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        "current-context": "test",
    }
    return write(directory / "kubeconfig", said)


def write(path: Path, document: dict[str, Any]) -> Path:
    """Write *document* for kubectl and return its path."""
    path.write_text(json.dumps(document))
    return path


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run a server with the CRDs for every kubectl and helm of this module."""
    directory = tmp_path_factory.mktemp("server")
    with api_server(directory) as kubeconfig, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(kubeconfig))
        run(KUBECTL, "apply", "--server-side", "--filename", str(CRDS))
        established = ("wait", "--for=condition=Established", "crd", "--all")
        # It is an error while a CRD has no condition yet.
        assert wait_for(lambda: attempt(KUBECTL, *established).returncode == 0 or None, 60)
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
    ("values", "forbidden"),
    [((), BASELINE), (("restricted=true",), BASELINE_OF_RESTRICTED)],
    ids=["default", "restricted"],
)
def test_pod_security(tmp_path: Path, values: tuple[str, ...], forbidden: str) -> None:
    """A namespace of the level *baseline* refuses exactly what docs/kubernetes.md explains."""
    spec = {**pod_spec(chart(*values)), "priorityClassName": ""}
    name = f"baseline-{len(values)}"
    meta = {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}
    own = {"name": "pod", "namespace": name}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": spec}
    run(KUBECTL, "apply", "--server-side", "-f", write(tmp_path / "namespace", space))
    asked = write(tmp_path / "pod", pod)
    done = attempt(KUBECTL, "apply", "--server-side", "--dry-run=server", "-f", asked)

    assert done.stderr.strip().endswith(f'violates PodSecurity "baseline:latest": {forbidden}')
