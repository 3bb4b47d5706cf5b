"""What deploy/ offers is accepted by the programs it is for, and fits together."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter.settings import Settings
from exporter.vocabulary.thresholds import defaults
from generators.listed.alert_rules import rule_files
from rankskew.commands.files import write_files

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def check(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def services() -> dict[str, Any]:
    found: dict[str, Any] = load(COMPOSE / "compose.yaml")["services"]
    return found


def plain_yaml() -> list[Path]:
    """Return every YAML file that is not a template of Helm."""
    return sorted(path for path in DEPLOY.glob("**/*.yaml") if path.parent.name != "templates")


@pytest.mark.parametrize("path", plain_yaml(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_yaml_is_a_mapping(path: Path) -> None:
    """Every YAML file here parses, and each document in it holds something."""
    documents = list(yaml.load_all(path.read_text(), yaml.CSafeLoader))
    assert documents
    assert all(isinstance(document, dict) for document in documents)


def rules_found(said: str) -> int:
    """Return in how many files promtool has found rules."""
    return len(re.findall(r"SUCCESS: [1-9]\d* rules found", said))


@pytest.mark.parametrize("overrides", [0, 1])
def test_prometheus_takes_the_pasted_lines(tmp_path: Path, overrides: int) -> None:
    """The README's steps, optional ones or not, give what promtool accepts, with all rules."""
    write_files(tmp_path / "rankskew")
    shutil.copy(DEPLOY / "prometheus" / "prometheus.yaml", tmp_path / "prometheus.yml")
    if overrides:
        shutil.copy(DEPLOY / "prometheus" / "overrides.yaml", tmp_path / "rankskew-overrides.yaml")

    said = check("promtool", "check", "config", tmp_path / "prometheus.yml")
    assert rules_found(said) == len(rule_files()) + overrides


def test_compose_prometheus_is_valid(tmp_path: Path) -> None:
    """Compose's Prometheus configuration is accepted, with all rules at the mounted place."""
    config = (COMPOSE / "prometheus.yaml").read_text()
    (tmp_path / "prometheus.yml").write_text(config.replace("/etc/prometheus", str(tmp_path)))
    shutil.copytree(ROOT / "alerts" / "rules", tmp_path / "rankskew")

    said = check("promtool", "check", "config", tmp_path / "prometheus.yml")
    assert rules_found(said) == len(rule_files())


def test_overridden_thresholds_exist() -> None:
    """The example overrides a threshold that the shipped rules know."""
    [group] = load(DEPLOY / "prometheus" / "overrides.yaml")["groups"]

    assert {rule["labels"]["name"] for rule in group["rules"]} <= defaults().keys()
    assert {rule["record"] for rule in group["rules"]} == {"rankskew:threshold:override"}


def test_compose_mounts_what_exists() -> None:
    """Every file or folder mounted from the checkout is there; every named volume is declared."""
    declared = set(load(COMPOSE / "compose.yaml")["volumes"])
    for service in services().values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE / source).exists(), volume
            elif not source.startswith("/"):
                assert source in declared, volume


def test_compose_keeps_what_the_exporter_remembers() -> None:
    """The directories that the exporter writes by default are mounted, and made in the image."""
    written = {str(Path(Settings().ingest_socket).parent), Settings().path_state}
    not_shared = {str(Path(Settings().operator_socket).parent)}
    dockerfile = (ROOT / "Dockerfile").read_text()
    [made] = re.findall(r"install --directory --owner=rankskew (.+)", dockerfile)

    assert set(made.split()) == written | not_shared
    assert {volume.split(":")[1] for volume in services()["exporter"]["volumes"]} == written


@pytest.mark.parametrize("name", services())
def test_compose_service_is_pinned_and_closed(name: str) -> None:
    """Its image is built here or has a version and a digest, so an update is a decision.

    It has no writable root, no capability and no port that is open to the network; whatever it
    waits for says when it is healthy, as the exporter's image does.
    """
    service = services()[name]
    release = r"[\w/]+:v?\d+\.\d+\.\d+@sha256:[0-9a-f]{64}"

    assert "build" in service or re.fullmatch(release, service["image"])
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    for other, how in service.get("depends_on", {}).items():
        if how["condition"] == "service_healthy":
            assert "test" in services()[other].get("healthcheck", {}) or other == "exporter"


def test_compose_is_what_the_specification_allows() -> None:
    """Both files are valid by the published schema of compose files."""
    schema = ROOT / ".node/compose/package/lib/compose-spec/schema/compose-spec.json"
    if not schema.exists():
        pytest.skip("npm could not fetch the schema: see scripts/setup.sh")
    jsonschema = pytest.importorskip("jsonschema")
    for file in ("compose.yaml", "gpu.yaml"):
        validator = jsonschema.Draft201909Validator(json.loads(schema.read_text()))
        document = load(COMPOSE / file)
        document.pop("name", None)  # The package is older than this key.
        assert [error.message for error in validator.iter_errors(document)] == []


def test_compose_pages_are_the_shipped_ones() -> None:
    """Alertmanager there inhibits as the shipped configuration does, and pages the pager."""
    shipped, here = load(ROOT / "alerts" / "alertmanager.yaml"), load(COMPOSE / "alertmanager.yaml")
    [port] = re.findall(r"^PORT = (\d+)$", (COMPOSE / "pager.py").read_text(), re.MULTILINE)
    [receiver] = [each for each in here["receivers"] if each["name"] == here["route"]["receiver"]]

    assert here["inhibit_rules"] == shipped["inhibit_rules"]
    assert receiver["webhook_configs"] == [{"url": f"http://pager:{port}/page"}]
    check("amtool", "check-config", COMPOSE / "alertmanager.yaml")


def test_compose_addresses_are_its_services() -> None:
    """Prometheus, Alertmanager, Grafana and the exporter find each other by name and port."""
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
        for name, service in services().items()
        for port in service.get("ports", [])
    }

    assert set(asked) <= offered


def test_dashboards_are_where_grafana_looks() -> None:
    """The folder that Grafana's provisioning names is the one the dashboards are mounted at."""
    [provider] = load(COMPOSE / "grafana" / "dashboards" / "rankskew.yaml")["providers"]
    mounts = [volume.split(":") for volume in services()["grafana"]["volumes"]]

    assert ["../../dashboards/json", provider["options"]["path"], "ro"] in mounts


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """A copy of the unit whose command exists."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    program = shutil.which("true")
    text = (DEPLOY / "systemd" / "rankskew-exporter.service").read_text()
    command = "/opt/rankskew/bin/rankskew exporter"
    assert command in text
    copy = tmp_path / "rankskew-exporter.service"
    copy.write_text(text.replace(command, f"{program} exporter"))
    return copy


def test_systemd_unit_is_valid(unit: Path) -> None:
    """systemd knows every setting of the unit."""
    assert check("systemd-analyze", "verify", "--man=no", unit) == ""


def test_systemd_unit_is_as_closed_as_its_page_says(unit: Path) -> None:
    """systemd's own rating, with the drop-in and without it; 3.0 is the most that we allow."""

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


@pytest.mark.parametrize("script", sorted((DEPLOY / "slurm").glob("*.s*")), ids=lambda p: p.name)
def test_slurm_script_is_one(script: Path) -> None:
    """Its shell understands it; Slurm runs prologs and epilogs only if they may be executed."""
    if script.suffix in (".sh", ".sbatch"):
        check(script.read_text().split()[0].removeprefix("#!"), "-n", script)
        assert script.suffix == ".sbatch" or script.stat().st_mode & 0o111 == 0o111


def test_slurm_prolog_drains_no_node_unless_it_is_asked_to(tmp_path: Path) -> None:
    """Without the probe and in an empty environment it ends with 0; it asks nobody for a path."""
    prolog = (DEPLOY / "slurm" / "prolog.sh").read_text()
    settings = tmp_path / "settings"
    copy = tmp_path / "prolog.sh"
    copy.write_text(
        prolog.replace("/etc/default/rankskew-slurm", str(settings)).replace("logger ", "echo ")
    )
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_USER": "root"}
    for required, status in (("no", 0), ("yes", 1)):
        settings.write_text(f"RANKSKEW_BIN={tmp_path}\nRANKSKEW_REQUIRED={required}\n")
        done = subprocess.run(["/bin/sh", copy], env=job, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (status, "")
        assert "job 7: " in done.stdout
        assert "rank-probe" in done.stdout
