"""The chart and the plain manifests are one thing, and hold all that they should."""

import json
import re
from pathlib import Path

import pytest
import yaml

from exporter.settings import Settings
from rank_probe.version import __version__
from rankskew.commands.table import load
from tests.deploy.kubernetes import (
    CHART,
    HELM,
    MANIFESTS,
    ROOT,
    VARIANTS,
    attempt,
    chart,
    chart_text,
    examples,
    kustomized,
    of_kind,
    pod_spec,
    pod_templates,
    run,
)

OF_THE_CLUSTER = ("ClusterRole", "ClusterRoleBinding", "PriorityClass")
ANNOTATION_LIMIT = 256 << 10  # Bytes. What `kubectl apply` without --server-side adds a copy of.


@pytest.mark.parametrize("components", VARIANTS, ids="+".join)
def test_components_are_values_of_the_chart(components: tuple[str, ...]) -> None:
    """Each way to install gives the same with kubectl and with Helm, but for the namespace."""
    plain = kustomized(*components)
    del plain["Namespace", "rankskew"]
    for document in plain.values():
        namespace = document["metadata"].pop("namespace", None)
        assert namespace == (None if document["kind"] in OF_THE_CLUSTER else "rankskew")

    assert plain == chart(*VARIANTS[components])


def test_chart_has_the_version_of_the_code() -> None:
    """The version is written in rank_probe/version.py; these copies follow."""
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    [image] = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())["images"]

    assert about["version"] == about["appVersion"] == image["newTag"] == __version__
    assert pod_spec(chart())["containers"][0]["image"] == f"rankskew:{__version__}"


def test_chart_is_linted() -> None:
    """Helm itself has nothing to complain about."""
    run(HELM, "lint", "--strict", "--quiet", CHART)


def test_packaged_chart_is_complete(tmp_path: Path) -> None:
    """The archive has the rules and dashboards, though the chart has only links to them."""
    run(HELM, "package", CHART, "--destination", tmp_path)
    [archive] = tmp_path.glob("rankskew-*.tgz")

    assert run(HELM, "template", "rankskew", archive, "--namespace", "rankskew") == chart_text()


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
        shipped = yaml.safe_load(path.read_text())
        assert rendered["PrometheusRule", f"rankskew-{path.stem}"]["spec"] == shipped
        assert yaml.safe_load(config_map["data"][path.name]) == shipped
    for path in (ROOT / "dashboards" / "json").glob("*.json"):
        document = rendered["ConfigMap", f"rankskew-dashboard-{path.stem}"]
        said = json.loads(document["data"][f"rankskew-{path.name}"])
        assert said == json.loads(path.read_text())
        assert document["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(json.dumps(document)) < ANNOTATION_LIMIT


def test_exporter_is_told_where_things_are() -> None:
    """Its command line is valid, and each directory that it writes is a volume.

    No order can come from a job: the operator's socket is in a directory that no job can mount.
    """
    [container] = pod_spec(chart())["containers"]
    load("exporter").parser().parse_args(container["args"][1:])
    written = {
        str(Path(Settings().ingest_socket).parent),
        str(Path(Settings().operator_socket).parent),
        Settings().path_state,
    }

    for components in VARIANTS:
        spec = pod_spec(kustomized(*components))
        [container] = spec["containers"]
        mounted = {m["mountPath"]: m for m in container["volumeMounts"]}
        assert {path for path, m in mounted.items() if not m.get("readOnly")} == written
        volumes = {each["name"]: each for each in spec["volumes"]}
        assert volumes["operator"] == {"name": "operator", "emptyDir": {}}
        assert volumes["run"]["hostPath"]["path"] == "/run/rankskew"


@pytest.mark.parametrize("name", examples())
def test_example_mounts_the_socket_read_only(name: str) -> None:
    """In each pod with ranks: the directory, read-only, and a gate with the job's variables."""
    training = [spec for spec in pod_templates(examples()[name]) if "initContainers" in spec]
    assert training
    for spec in training:
        [gate] = spec["initContainers"]
        [container] = spec["containers"]
        assert gate["command"] == ["rank-probe", "check", "--wait", "60s"]
        for each in (gate, container):
            [mount] = each["volumeMounts"]
            assert mount["mountPath"] == str(Path(Settings().ingest_socket).parent)
            assert mount["readOnly"] is True
            assert {e["name"] for e in each["env"]} >= {"POD_NAMESPACE", "RANK_PROBE"}
        assert gate["env"] == container["env"]


def test_page_explains_every_privilege() -> None:
    """Each security setting and each volume of the pod has a line in the table of the page."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    table = page.partition("## Pod Security")[2].partition("### Restricted")[0]
    explained = set(re.findall(r"^\| `([^`]+)`", table, re.MULTILINE))
    spec = pod_spec(chart())
    [container] = spec["containers"]
    pod, own = spec["securityContext"], container["securityContext"]
    capabilities = own.pop("capabilities")
    settings = {"hostPID": spec["hostPID"], **pod, **own}
    settings["seccompProfile"] = pod["seccompProfile"]["type"]
    for name in ("automountServiceAccountToken", "enableServiceLinks"):
        settings[name] = spec[name]
    wanted = {f"{name}: {json.dumps(value).strip(chr(34))}" for name, value in settings.items()}
    wanted |= {"capabilities.drop: [ALL]"} if capabilities["drop"] == ["ALL"] else set()
    wanted |= {f"capabilities.add: {name}" for name in capabilities["add"]}
    for volume in spec["volumes"]:
        path = volume.get("hostPath", {}).get("path")
        wanted.add(f"hostPath: {path}" if path else f"emptyDir: {volume['name']}")

    assert explained == wanted
