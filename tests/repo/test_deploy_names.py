"""The examples of relabelling call each node by its name, as Prometheus itself applies them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

NAMES = Path(__file__).parents[2] / "deploy" / "prometheus" / "names.yaml"
# What discovery finds: an address and its labels; then the instance that comes of it.
FOUND: dict[str, list[tuple[str, dict[str, str], str]]] = {
    "rankskew-static": [("gpu-1.cluster.local:9917", {}, "gpu-1"), ("gpu-2:9917", {}, "gpu-2")],
    "rankskew-addresses": [("10.0.0.5:9917", {"instance": "gpu-1"}, "gpu-1")],
    "rankskew-dns": [
        ("gpu-1.x.:9917", {"__meta_dns_srv_record_target": "gpu-1.cluster.local."}, "gpu-1")
    ],
    "rankskew-consul": [("10.0.0.5:9917", {"__meta_consul_node": "gpu-1"}, "gpu-1")],
    "rankskew-ec2": [
        (
            "10.0.0.5:9917",
            {"__meta_ec2_instance_id": "i-1", "__meta_ec2_tag_Name": "gpu-1"},
            "gpu-1",
        ),
        ("10.0.0.6:9917", {"__meta_ec2_instance_id": "i-2"}, "i-2"),
    ],
    "rankskew-kubernetes": [
        (
            "10.0.0.5:9917",
            {
                "__meta_kubernetes_pod_container_port_name": "metrics",
                "__meta_kubernetes_pod_label_app_kubernetes_io_name": "rankskew",
                "__meta_kubernetes_pod_node_name": "gpu-1",
            },
            "gpu-1",
        )
    ],
}


def test_instance_is_the_name_of_the_node(tmp_path: Path) -> None:
    """Each job of the file, with targets as its discovery labels them."""
    jobs = {job["job_name"]: job for job in yaml.safe_load(NAMES.read_text())["scrape_configs"]}
    assert jobs.keys() == FOUND.keys()
    config = tmp_path / "prometheus.yml"
    config.write_text(json.dumps({"scrape_configs": [with_targets(job) for job in jobs.values()]}))
    begun = {
        name: subprocess.Popen(
            ["promtool", "check", "service-discovery", "--timeout=2s", str(config), name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in jobs
    }
    said = {name: process.communicate()[0] for name, process in begun.items()}

    for name, found in FOUND.items():
        instances = {
            each["labels"]["__address__"]: each["labels"]["instance"]
            for each in json.loads(said[name])
        }
        assert instances == {address: instance for address, _, instance in found}, name


def with_targets(job: dict[str, Any]) -> dict[str, Any]:
    """Return *job* with what its discovery would find; not every promtool has each of them."""
    return {
        "job_name": job["job_name"],
        "relabel_configs": job.get("relabel_configs", []),
        "static_configs": [
            {"targets": [address], "labels": labels}
            for address, labels, _ in FOUND[job["job_name"]]
        ],
    }
