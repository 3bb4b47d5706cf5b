"""How Prometheus finds the exporters, with the operator and without it."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.kubernetes import EXAMPLES, chart, kustomized, of_kind, pod_spec, run

# What Prometheus' service discovery says of an exporter's pod.
POD = {
    "__address__": "10.1.2.3:9917",
    "__meta_kubernetes_namespace": "rankskew",
    "__meta_kubernetes_pod_name": "rankskew-x7k2p",
    "__meta_kubernetes_pod_ip": "10.1.2.3",
    "__meta_kubernetes_pod_node_name": "gpu-17",
    "__meta_kubernetes_pod_container_name": "exporter",
    "__meta_kubernetes_pod_label_app_kubernetes_io_name": "rankskew",
}
# What the operator puts before the relabelings of a PodMonitor.
OPERATOR = [
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


def target(relabelings: list[Any], meta: dict[str, str], path: Path) -> dict[str, str]:
    """Return the labels that promtool gives a pod with the labels *meta*; none if it is dropped.

    The pod comes from a file, because Debian builds Prometheus without Kubernetes.
    """
    labels = {name: value for name, value in meta.items() if name != "__address__"}
    pods = [{"targets": [meta["__address__"]], "labels": labels}]
    (path / "pods.json").write_text(json.dumps(pods))
    job = {
        "job_name": "rankskew",
        "file_sd_configs": [{"files": ["pods.json"]}],
        "relabel_configs": relabelings,
    }
    (path / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": [job]}))
    said = run(
        *("promtool", "check", "service-discovery", "--timeout=1s"),
        *(path / "prometheus.yml", "rankskew"),
    )
    [found] = json.loads(said)
    labels_of_target: dict[str, str] = found["labels"]
    return labels_of_target


def snake(relabeling: dict[str, Any]) -> dict[str, Any]:
    """Return a relabeling of a PodMonitor as Prometheus spells it."""
    return {re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", k): v for k, v in relabeling.items()}


def test_pod_monitor_names_the_node(tmp_path: Path) -> None:
    """The target has the node's name, and nothing that changes when its pod is replaced."""
    [monitor] = of_kind(chart(), "PodMonitor")
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    [container] = pod_spec(chart())["containers"]

    assert monitor["spec"]["jobLabel"] == "app.kubernetes.io/name"
    assert [endpoint["port"]] == [port["name"] for port in container["ports"]]
    assert endpoint["interval"] == "15s"
    relabelings = [*OPERATOR, *map(snake, endpoint["relabelings"])]
    labels = target(relabelings, POD, tmp_path)
    assert {name: labels[name] for name in labels if not name.startswith("__")} == {
        "instance": "gpu-17",
        "job": "rankskew",
    }


def test_monitor_selects_the_pods() -> None:
    """Its selector, the DaemonSet's and the network policy's are the labels of the pods."""
    for rendered in (chart(), kustomized()):
        [daemonset] = of_kind(rendered, "DaemonSet")
        [monitor] = of_kind(rendered, "PodMonitor")
        [policy] = of_kind(rendered, "NetworkPolicy")
        selector = daemonset["spec"]["selector"]["matchLabels"]
        assert selector.items() <= daemonset["spec"]["template"]["metadata"]["labels"].items()
        assert monitor["spec"]["selector"]["matchLabels"] == selector
        assert policy["spec"]["podSelector"]["matchLabels"] == selector


def test_plain_prometheus_finds_annotated_pods(tmp_path: Path) -> None:
    """The example's relabelings keep a pod with our annotations, and its node's name."""
    example = yaml.safe_load((EXAMPLES / "prometheus.yaml").read_text())
    [job] = example["scrape_configs"]
    [daemonset] = of_kind(kustomized("no-operator"), "DaemonSet")
    annotations = {
        "__meta_kubernetes_pod_annotation_" + re.sub(r"\W", "_", name): value
        for name, value in daemonset["spec"]["template"]["metadata"]["annotations"].items()
    }
    assert job["kubernetes_sd_configs"] == [{"role": "pod", "namespaces": {"names": ["rankskew"]}}]

    labels = target(job["relabel_configs"], {**POD, **annotations}, tmp_path)
    assert labels["__address__"] == "10.1.2.3:9917"
    assert labels["__metrics_path__"] == "/metrics"
    assert labels["instance"] == "gpu-17"
    assert target(job["relabel_configs"], POD, tmp_path) == {}
    # With the default of a minute, pages would be late.
    assert example["global"] == {"scrape_interval": "15s", "evaluation_interval": "15s"}
