"""The page, typed in as it stands, at a real API server."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.api_server import cluster
from tests.deploy.kubernetes import HELM, KUBECTL, ROOT, run
from tests.deploy.pages import FENCE

pytestmark = pytest.mark.deploy


def blocks() -> list[list[str]]:
    """Return the commands of each shell block of the page."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    return [block.splitlines() for block in FENCE.findall(page)]


def test_page_is_typed(tmp_path: Path) -> None:
    """Each command of docs/kubernetes.md works, but for waiting for pods, which nobody starts."""
    with_kubectl, with_helm, example, [remove] = blocks()
    assert with_kubectl.pop() == "kubectl -n rankskew rollout status daemonset/rankskew"
    remove, _, uninstall = remove.partition("# or: ")
    path = f"{KUBECTL.parent}:{HELM.parent}:{os.environ['PATH']}"
    training = "kubectl create namespace training"
    deploy = shutil.copytree(ROOT / "deploy", tmp_path / "clone" / "deploy")
    run(ROOT / "scripts" / "kubernetes.sh", deploy / "kubernetes")
    with cluster(tmp_path):
        for line in (*with_helm, uninstall, *with_kubectl, training, *example, remove):
            # Namespaces are emptied by a controller, which does not run.
            typed = line.replace("kubectl delete", "kubectl delete --wait=false")
            done = subprocess.run(
                ["bash", "-c", typed],
                cwd=deploy.parent,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{line}\n{done.stderr}"
