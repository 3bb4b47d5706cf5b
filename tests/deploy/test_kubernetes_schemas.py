"""Manifests and examples fit the schemas of Kubernetes and of the operators.

Kubernetes' own come with kubernetes-validate, JobSet's with kubeflow-trainer-api, the Prometheus
operator's with an npm package. No registry has PyTorchJob's and RayJob's: of these only the pods
are checked here, and the rest by the server in test_kubernetes_server.py, if it is given the CRDs.
"""

import json
import shutil
import subprocess
from typing import Any

import pytest
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from kubernetes_validate import latest_version, validate

from devstack.parts import RULES
from tests.deploy.kubernetes import NODE, VARIANTS, chart, examples, kustomized, pod_templates

OLDEST = "1.25"  # kubeVersion of the chart.
MODELS = NODE / "node_modules" / "@kubernetes-models" / "prometheus-operator"
GROUP = "monitoring.coreos.com"
# Prints what the models of the package say of the documents on stdin.
VALIDATE = f"""
import {{PodMonitor}} from "{MODELS}/{GROUP}/v1/PodMonitor.js";
import {{PrometheusRule}} from "{MODELS}/{GROUP}/v1/PrometheusRule.js";
import fs from "node:fs";
const kinds = {{PodMonitor, PrometheusRule}};
for (const document of JSON.parse(fs.readFileSync(0))) {{
  try {{ new kinds[document.kind](document).validate(); }}
  catch (error) {{ console.log(document.metadata.name + ": " + error.message); }}
}}
"""


@pytest.mark.parametrize("version", [OLDEST, "latest"])
@pytest.mark.parametrize("components", VARIANTS, ids="+".join)
def test_kubernetes_own_kinds(components: tuple[str, ...], version: str) -> None:
    """Every field is one that the API has, in the oldest and the newest version."""
    wanted = latest_version() if version == "latest" else version
    for document in kustomized(*components).values():
        if GROUP not in document["apiVersion"] and "dashboard" not in document["metadata"]["name"]:
            validate(document, wanted, strict=True)


@pytest.mark.parametrize("name", ["pytorchjob", "jobset", "rayjob"])
def test_pods_of_the_examples(name: str) -> None:
    """Each pod that a job would make is one that the API takes."""
    pods = pod_templates(examples()[name])
    assert pods
    for spec in pods:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
        validate(pod, latest_version(), strict=True)


def test_jobset() -> None:
    """What JobSet's models read is all that the example says: no field is unknown to them."""
    document = examples()["jobset"]
    read = JobsetV1alpha2JobSet.from_dict(json.loads(json.dumps(document)))

    assert read is not None
    assert read.to_dict() == document


def complaints(documents: list[dict[str, Any]]) -> list[str]:
    """Return what the Prometheus operator's schemas refuse in *documents*."""
    node = shutil.which("node")
    if node is None or not MODELS.exists():
        pytest.skip("no node or no @kubernetes-models: scripts/setup.sh could not fetch it")
    done = subprocess.run(
        [node, "--input-type=module", "--eval", VALIDATE],
        input=json.dumps(documents),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_kinds_of_the_prometheus_operator() -> None:
    """The PodMonitor and each PrometheusRule are valid; a wrong interval is not."""
    ours = [d for d in chart("monitorLabels.a=b").values() if GROUP in d["apiVersion"]]
    wrong = json.loads(json.dumps(next(d for d in ours if d["kind"] == "PodMonitor")))
    wrong["spec"]["podMetricsEndpoints"][0]["interval"] = "often"

    assert len(ours) == 1 + len(list(RULES.glob("*.yaml")))
    assert complaints(ours) == []
    assert "interval must match pattern" in complaints([wrong])[0]


def test_fields_of_the_prometheus_operator() -> None:
    """Every field has a name that the operator knows; its schemas ignore others."""
    complaints([])
    known = "".join(path.read_text() for path in (MODELS / GROUP / "v1").glob("*.d.ts"))
    for document in chart().values():
        if GROUP in document["apiVersion"]:
            for name in fields(document["spec"]):
                assert f'"{name}"' in known, name


def fields(part: Any) -> set[str]:
    """Return every name of a field in *part*; labels and annotations have names of their own."""
    if isinstance(part, list):
        return {name for each in part for name in fields(each)}
    if not isinstance(part, dict):
        return set()
    open_ones = {"labels", "annotations", "matchLabels"}
    below = {name for key, each in part.items() if key not in open_ones for name in fields(each)}
    return {*part, *below} - {"matchLabels"}  # Of Kubernetes itself.
