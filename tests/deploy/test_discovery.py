"""How Prometheus finds the exporters, and calls each by the name of its node.

promtool applies the relabelings to what a discovery says; not every promtool has each discovery.
"""

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.kubernetes import EXAMPLES, ROOT, chart, kustomized, of_kind, pod_spec

Labels = dict[str, str]

# What Prometheus' service discovery says of an exporter's pod.
POD = {
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


def relabelled(
    jobs: Mapping[str, Sequence[Any]], found: Mapping[str, Sequence[Labels]], path: Path
) -> dict[str, list[Labels]]:
    """Return the labels of each target, by the job: its relabelings, applied to what is *found*."""
    configs = [
        {
            "job_name": name,
            "relabel_configs": list(relabelings),
            "static_configs": [
                {
                    "targets": [meta["__address__"]],
                    "labels": {k: meta[k] for k in meta if k != "__address__"},
                }
                for meta in found[name]
            ],
        }
        for name, relabelings in jobs.items()
    ]
    config = path / "prometheus.yml"
    config.write_text(json.dumps({"scrape_configs": configs}))
    begun = {
        name: subprocess.Popen(
            ["promtool", "check", "service-discovery", "--timeout=2s", str(config), name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in jobs
    }
    said: dict[str, list[dict[str, Labels]]] = {
        name: json.loads(process.communicate()[0]) for name, process in begun.items()
    }

    # promtool tells the targets in any order.
    def labels_of(name: str, meta: Labels) -> Labels:
        known = [t for t in said[name] if meta.items() <= t["discoveredLabels"].items()]
        [labels] = [target["labels"] for target in known]
        return labels

    return {name: [labels_of(name, meta) for meta in found[name]] for name in jobs}


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
    [[labels]] = relabelled({"rankskew": relabelings}, {"rankskew": [POD]}, tmp_path).values()
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
    """The example's relabelings keep a pod with our annotations, its node's name, and no other."""
    example = yaml.safe_load((EXAMPLES / "prometheus.yaml").read_text())
    [job] = example["scrape_configs"]
    [daemonset] = of_kind(kustomized("no-operator"), "DaemonSet")
    annotations = {
        "__meta_kubernetes_pod_annotation_" + re.sub(r"\W", "_", name): value
        for name, value in daemonset["spec"]["template"]["metadata"]["annotations"].items()
    }
    assert job["kubernetes_sd_configs"] == [{"role": "pod", "namespaces": {"names": ["rankskew"]}}]

    relabelings = {"rankskew": job["relabel_configs"]}
    pods = {"rankskew": [POD | {"__meta_kubernetes_pod_name": "other"}, POD | annotations]}
    other, labels = relabelled(relabelings, pods, tmp_path)["rankskew"]
    assert other == {}
    assert labels["__address__"] == "10.1.2.3:9917"
    assert labels["__metrics_path__"] == "/metrics"
    assert labels["instance"] == "gpu-17"
    # With the default of a minute, pages would be late.
    assert example["global"] == {"scrape_interval": "15s", "evaluation_interval": "15s"}


# By the example of deploy/prometheus/names.yaml: what is found, with the instance that comes of it.
FOUND: dict[str, list[tuple[Labels, str]]] = {
    "rankskew-static": [
        ({"__address__": "gpu-1.cluster.local:9917"}, "gpu-1"),
        ({"__address__": "gpu-2:9917"}, "gpu-2"),
    ],
    "rankskew-addresses": [({"__address__": "10.0.0.5:9917", "instance": "gpu-1"}, "gpu-1")],
    "rankskew-dns": [
        (
            {
                "__address__": "gpu-1.x.:9917",
                "__meta_dns_srv_record_target": "gpu-1.cluster.local.",
            },
            "gpu-1",
        )
    ],
    "rankskew-consul": [({"__address__": "10.0.0.5:9917", "__meta_consul_node": "gpu-1"}, "gpu-1")],
    "rankskew-ec2": [
        (
            {
                "__address__": "10.0.0.5:9917",
                "__meta_ec2_instance_id": "i-1",
                "__meta_ec2_tag_Name": "gpu-1",
            },
            "gpu-1",
        ),
        ({"__address__": "10.0.0.6:9917", "__meta_ec2_instance_id": "i-2"}, "i-2"),
    ],
    "rankskew-kubernetes": [(POD, "gpu-17")],
}


def test_instance_is_the_name_of_the_node(tmp_path: Path) -> None:
    """Each job of the file, with targets as its discovery labels them."""
    names = yaml.safe_load((ROOT / "deploy" / "prometheus" / "names.yaml").read_text())
    jobs = {job["job_name"]: job.get("relabel_configs", []) for job in names["scrape_configs"]}
    found = {name: [meta for meta, _ in those] for name, those in FOUND.items()}

    assert jobs.keys() == FOUND.keys()
    for name, targets in relabelled(jobs, found, tmp_path).items():
        instances = {each["__address__"]: each["instance"] for each in targets}
        assert instances == {meta["__address__"]: instance for meta, instance in FOUND[name]}, name
