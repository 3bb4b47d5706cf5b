"""How Prometheus finds the exporters, and calls each by the name of its node.

promtool applies the relabelings to what a discovery says; not every promtool has each discovery.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy import ROOT
from tests.deploy.kubernetes import EXAMPLES, chart, kustomized, of_kind, pod_spec

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
OTHER: Final = POD | {"__meta_kubernetes_pod_name": "other"}
# What the operator puts before the relabelings of a PodMonitor.
OPERATOR: Final = [
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


def example(path: Path) -> dict[str, Any]:
    """Return an example of a Prometheus configuration."""
    read: dict[str, Any] = yaml.safe_load(path.read_text())
    return read


NAMES: Final = example(ROOT / "deploy" / "prometheus" / "names.yaml")["scrape_configs"]
PLAIN: Final = example(EXAMPLES / "prometheus.yaml")


def annotated() -> Labels:
    """Return the exporter's pod with the annotations that it has without the operator."""
    [daemonset] = of_kind(kustomized("no-operator"), "DaemonSet")
    annotations = daemonset["spec"]["template"]["metadata"]["annotations"]
    prefix = "__meta_kubernetes_pod_annotation_"
    return POD | {prefix + re.sub(r"\W", "_", name): said for name, said in annotations.items()}


def snake(relabeling: dict[str, Any]) -> dict[str, Any]:
    """Return a relabeling of a PodMonitor as Prometheus spells it."""
    return {re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", k): v for k, v in relabeling.items()}


def static(meta: Labels) -> dict[str, Any]:
    """Return a target with the labels that a discovery gives it."""
    labels = {name: value for name, value in meta.items() if name != "__address__"}
    return {"targets": [meta["__address__"]], "labels": labels}


@pytest.fixture(scope="module")
def relabelled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Labels]]:
    """The labels of each target that is found, by the job: its relabelings were applied.

    promtool waits for a time of its own, so all are asked at once.
    """
    [monitor] = of_kind(chart(), "PodMonitor")
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    [plain] = PLAIN["scrape_configs"]
    relabelings = {job["job_name"]: job.get("relabel_configs", []) for job in NAMES}
    relabelings["monitor"] = [*OPERATOR, *map(snake, endpoint["relabelings"])]
    relabelings["plain"] = plain["relabel_configs"]
    found = {job: [meta for meta, _ in those] for job, those in FOUND.items()}
    found |= {"monitor": [POD], "plain": [OTHER, annotated()]}
    assert relabelings.keys() == found.keys()
    configs = [
        {"job_name": job, "relabel_configs": those, "static_configs": [*map(static, found[job])]}
        for job, those in relabelings.items()
    ]
    config = tmp_path_factory.mktemp("discovery") / "prometheus.yml"
    config.write_text(json.dumps({"scrape_configs": configs}))
    ask = ["promtool", "check", "service-discovery", "--timeout=2s", str(config)]
    asked = {job: subprocess.Popen([*ask, job], stdout=subprocess.PIPE) for job in relabelings}
    said: dict[str, list[dict[str, Labels]]] = {
        job: json.loads(process.communicate()[0]) for job, process in asked.items()
    }

    # promtool tells the targets in any order.
    def labels_of(job: str, meta: Labels) -> Labels:
        known = [t for t in said[job] if meta.items() <= t["discoveredLabels"].items()]
        [labels] = [target["labels"] for target in known]
        return labels

    return {job: [labels_of(job, meta) for meta in found[job]] for job in relabelings}


def test_instance_is_the_name_of_the_node(relabelled: dict[str, list[Labels]]) -> None:
    """Each job of the examples, with targets as its discovery labels them."""
    for job, those in FOUND.items():
        assert [labels["instance"] for labels in relabelled[job]] == [name for _, name in those]


def test_pod_monitor_names_the_node(relabelled: dict[str, list[Labels]]) -> None:
    """The target has the node's name, and nothing that changes when its pod is replaced."""
    [monitor] = of_kind(chart(), "PodMonitor")
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    [container] = pod_spec(chart())["containers"]
    [labels] = relabelled["monitor"]

    assert monitor["spec"]["jobLabel"] == "app.kubernetes.io/name"
    assert [endpoint["port"]] == [port["name"] for port in container["ports"]]
    assert endpoint["interval"] == "15s"
    assert {name: labels[name] for name in labels if not name.startswith("__")} == {
        "instance": "gpu-17",
        "job": "rankskew",
    }


def test_monitor_selects_the_pods() -> None:
    """Its selector, the DaemonSet's and the network policy's are the labels of the pods."""
    [daemonset] = of_kind(chart(), "DaemonSet")
    [monitor] = of_kind(chart(), "PodMonitor")
    [policy] = of_kind(chart(), "NetworkPolicy")
    selector = daemonset["spec"]["selector"]["matchLabels"]

    assert selector.items() <= daemonset["spec"]["template"]["metadata"]["labels"].items()
    assert monitor["spec"]["selector"]["matchLabels"] == selector
    assert policy["spec"]["podSelector"]["matchLabels"] == selector


def test_plain_prometheus_finds_annotated_pods(relabelled: dict[str, list[Labels]]) -> None:
    """The example's relabelings keep a pod with our annotations, its node's name, and no other."""
    other, labels = relabelled["plain"]
    [job] = PLAIN["scrape_configs"]

    assert other == {}
    assert labels["__address__"] == "10.1.2.3:9917"
    assert labels["__metrics_path__"] == "/metrics"
    assert labels["instance"] == "gpu-17"
    assert job["kubernetes_sd_configs"] == [{"role": "pod", "namespaces": {"names": ["rankskew"]}}]
    # With the default of a minute, pages would be late.
    assert PLAIN["global"] == {"scrape_interval": "15s", "evaluation_interval": "15s"}
