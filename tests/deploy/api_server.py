"""A real API server with an etcd of its own, on loopback."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from devstack.process import StackProcess, free_port, wait_for
from tests.deploy.kubernetes import KUBECTL, attempt, run

READY_SECONDS: Final = 120
TOKEN: Final = "of-this-test"


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[None]:
    """Run an API server with the CRDs, for every kubectl and helm that is started meanwhile."""
    with api_server(directory) as kubeconfig, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(kubeconfig))
        for crd in _crds():
            run(KUBECTL, "apply", "--server-side", "--filename", write(directory / "crd", crd))
        established = ("wait", "--for=condition=Established", "crd", "--all")
        # It is an error while a CRD has no condition yet.
        assert wait_for(lambda: attempt(KUBECTL, *established).returncode == 0 or None, 60)
        yield


@contextlib.contextmanager
def api_server(directory: Path) -> Iterator[Path]:
    """Run an API server and yield a kubeconfig for its administrator; skip without its program."""
    program = os.environ.get("KUBE_APISERVER") or shutil.which("kube-apiserver")
    etcd = shutil.which("etcd")
    if program is None or etcd is None or not KUBECTL.exists():
        pytest.skip("no kube-apiserver, etcd or kubectl: docs/kubernetes.md says where from")
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
    kubeconfig = _kubeconfig(directory, port)
    ready = ("--kubeconfig", kubeconfig, "get", "--raw", "/readyz")
    with StackProcess("etcd", storing, directory / "etcd.log"), server:
        is_ready = wait_for(lambda: attempt(KUBECTL, *ready).returncode == 0 or None, READY_SECONDS)
        assert is_ready, server.last_lines()
        yield kubeconfig


def _kubeconfig(directory: Path, port: int) -> Path:
    """Write the kubeconfig. The server signed its own certificate, so nothing verifies it."""
    cluster = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    path = directory / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": "admin", "user": {"token": TOKEN}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
                "current-context": "test",
            }
        )
    )
    return path


def _crds() -> Iterator[dict[str, Any]]:
    """Yield those in the directory KUBERNETES_CRDS; without it, ones that take every field."""
    if directory := os.environ.get("KUBERNETES_CRDS"):
        for path in Path(directory).glob("*.yaml"):
            yield yaml.load(path.read_text(), yaml.CSafeLoader)
        return
    for group, version, kind in (
        ("monitoring.coreos.com", "v1", "PodMonitor"),
        ("monitoring.coreos.com", "v1", "PrometheusRule"),
        ("kubeflow.org", "v1", "PyTorchJob"),
        ("jobset.x-k8s.io", "v1alpha2", "JobSet"),
        ("ray.io", "v1", "RayJob"),
    ):
        plural = f"{kind.lower()}s"
        anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{plural}.{group}",
                "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
            },
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural},
                "versions": [
                    {
                        "name": version,
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": anything},
                    }
                ],
            },
        }


def write(path: Path, document: dict[str, Any]) -> Path:
    """Write *document* for kubectl and return its path."""
    path.write_text(json.dumps(document))
    return path
