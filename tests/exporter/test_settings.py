"""Flags parse what they document, all that is wrong is said at once, and the parts obey them.

So do thresholds; and words cover all that the exporter and the probe can say.
"""

import json
import re
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from exporter import durations
from exporter.causes.explain import ROWS
from exporter.causes.model import UNKNOWN
from exporter.collectors.catalog import COLLECTORS
from exporter.errors import UsageError
from exporter.operator.orders import GPUS_PATH
from exporter.settings import Settings, file_mode, flags, positive, web_address
from exporter.vocabulary.thresholds import Thresholds, defaults, read_overrides
from exporter.vocabulary.words import CAUSES, COLOURS, KINDS, LATE_KINDS, REASONS, STAGES, STATES
from exporter.web.protection import Protected
from exporter.web.reload import WatchedConfig
from exporter.wiring import ExporterParts, affordable, page_address
from generators import alert_rules
from rank_probe.judge import verdict
from rank_probe.wire import stages
from rankskew.__main__ import main
from tests.exporter.asgi import ask
from tests.exporter.running import make_certificate
from tests.exporter.snapshots import snapshot


def test_duration_is_read_as_prometheus_reads_it() -> None:
    """What is no duration is refused; a number without a unit is not guessed at."""
    for text, seconds in (("1h30m", 5_400), ("500ms", 0.5), ("1w", 604_800), ("0s", 0)):
        assert durations.parse(text) == seconds
    for text in ("", "5", "m", "-5m", "5m!", "1.5h"):
        with pytest.raises(ValueError, match="is not a duration such as 5m"):
            durations.parse(text)
    for shown in ("5m", "1h", "500ms", "90s", "1s"):
        assert durations.show(durations.parse(shown)) == shown


def test_every_flag_takes_its_default_and_has_a_sentence_of_help() -> None:
    """What the documentation shows as default gives the default when it is passed."""
    for setting, flag in flags():
        assert flag.parse(flag.show(setting.default)) == setting.default, flag.name
        assert flag.help.endswith("."), flag.name
    assert file_mode("0660") == file_mode("660") == 0o660
    for parse, text in ((positive, "²"), (file_mode, "0o660"), (web_address, 'http://a"b')):
        with pytest.raises(ValueError, match=" is not "):
            parse(text)


TLS = "tls_server_config: {cert_file: node.crt, key_file: node.key}"


@pytest.fixture
def sound(tmp_path: Path) -> dict[str, str]:
    """Flags with which nothing is wrong, in files below the test's directory."""
    certificate, key = make_certificate(tmp_path, "node", days=90)
    for file in (certificate, key):
        file.chmod(0o640)
    (tmp_path / "web.yaml").write_text(TLS)
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o640)
    return {
        "--web.listen-address": "127.0.0.1:9917",
        "--web.config.file": str(tmp_path / "web.yaml"),
        "--ingest.socket": str(tmp_path / "new" / "e.sock"),
        "--ingest.listen-address": "127.0.0.1:9918",
        "--ingest.token-file": str(tmp_path / "token"),
        "--operator.socket": str(tmp_path / "o.sock"),
        "--path.state": str(tmp_path),
    }


def run(flags: dict[str, str], *more: str) -> int:
    return main(["exporter", "--config.check", *more, *(f"{name}={flags[name]}" for name in flags)])


def test_sound_settings_are_ok_and_leave_nothing(
    sound: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is created, and a port that is in use by the running exporter does not matter."""
    before = sorted(tmp_path.rglob("*"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        sound["--web.listen-address"] = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run(sound) == 0

    assert capsys.readouterr() == ("ok: the exporter can start with these settings\n", "")
    assert sorted(tmp_path.rglob("*")) == before


def test_all_problems_are_said_at_once(
    sound: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong values and the files that they name, each in one line; the status is 1.

    A deployment's pipeline reads one document; who wants the log in JSON is told the flag.
    """
    (tmp_path / "web.yaml").write_text("basic_auth_users: {a: plain, b: text}")
    wrong = {
        "--ranks.max": "0",
        "--nvml.interval": "0s",
        "--ingest.token-file": f"{tmp_path}/absent",
        "--thresholds.file": f"{tmp_path}/absent.yaml",
        "--path.procfs": str(tmp_path),
    }

    assert run(sound | wrong) == 1
    lines = capsys.readouterr().out.splitlines()
    flags = ["--ranks.max", "--nvml.interval", "--web.config.file", "--web.config.file"]
    flags += ["--ingest.token-file", "--thresholds.file", "--path.procfs"]
    assert [line.split(": ")[:2] for line in lines] == [["problem", flag] for flag in flags]
    assert lines[0] == "problem: --ranks.max: '0' is not a whole number of at least 1"
    assert "'0s' is too short: at least 100ms" in lines[1]

    assert run(sound | wrong, "--json") == 1
    problems = [line.removeprefix("problem: ") for line in lines]
    document = {"schema": "exporter-check/1", "ok": False, "problems": problems, "warnings": []}
    assert json.loads(capsys.readouterr().out) == document
    assert main(["exporter", "--json"]) == 2
    assert "pass --log.format=json" in capsys.readouterr().err


def test_what_the_exporter_can_live_with_is_a_warning(
    sound: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status stays 0, so that a missing GPU does not keep the metrics of the others away."""
    (tmp_path / "token").chmod(0o644)
    driver = tmp_path / "proc" / "driver/nvidia/gpus"
    (driver / "0000:1b:00.0").mkdir(parents=True)
    (tmp_path / "proc/stat").touch()
    odd = {"--path.state": f"{tmp_path}/absent", "--path.procfs": f"{tmp_path}/proc"}

    assert run(sound | odd, "--gpus.expected=8") == 0
    *warnings, last = capsys.readouterr().out.splitlines()
    flags = ["--ingest.token-file", "--path.state", "--gpus.expected"]
    assert [line.split(": ")[1].split()[0] for line in warnings] == flags
    assert warnings[-1] == "warning: --gpus.expected is 8, and the driver lists 1 GPUs here"
    assert last == "ok: the exporter can start with these settings"


ALL_OFF = frozenset(entry.name for entry in COLLECTORS)


def test_parts_are_joined_as_the_settings_say(tmp_path: Path) -> None:
    """Without a web config file, nothing is between Prometheus and the metrics.

    A container's hostname is not its node's, neither on the live page nor in the metrics.
    """
    settings = Settings(node_name="gpu-12", collectors_off=ALL_OFF - {"exporter_self"})
    file = tmp_path / "web.yaml"
    file.write_text("")

    assert not isinstance(ExporterParts(settings).web_app(), Protected)
    assert isinstance(ExporterParts(settings, WatchedConfig(file)).web_app(), Protected)
    exporter = ExporterParts(settings)
    metrics = ask(exporter.web_app(), "GET", "/metrics")
    assert exporter.live.summary().host == "gpu-12"
    assert metrics is not None
    assert 'rankskew_exporter_build_info{nodename="gpu-12",' in metrics.text
    # Without a collector that reads GPUs there are none to release.
    orders: Any = exporter.operator_listener([]).config.app
    refused = ask(orders, "POST", GPUS_PATH)
    assert refused is not None
    assert refused.status == 404


def test_thresholds_of_the_rules_are_those_of_the_page(tmp_path: Path) -> None:
    """The operator writes an override once, for Prometheus and for the exporter."""
    file = tmp_path / "overrides.yaml"
    file.write_text(RULES.replace("gpus_lost_ratio", "start_seconds").replace("llama", "other"))
    exporter = ExporterParts(Settings(thresholds_file=str(file), collectors_off=ALL_OFF))
    exporter._store.put(snapshot(steps=0))
    exporter.live.sample(time.monotonic(), 0.0)
    [job] = exporter.live.summary().jobs

    assert (job.verdict.state, job.verdict.alert) == ("starting", "RankskewSlowStart")


def test_connections_leave_files_for_the_rest_of_the_exporter(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They take half of them at most; nobody is warned of a limit that is not in the way."""
    for soft, wanted in ((resource.RLIM_INFINITY, 8), (16, 8), (16, 1_000)):
        assert caplog.messages == []
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert affordable(wanted) == 8
    assert "only 8 of 1000 ingest connections" in caplog.text


def test_exporter_leaves_out_what_it_does_not_need() -> None:
    """Each takes memory on every node: pynvml is the worker's, bcrypt is for a file."""
    names = {"pynvml", "bcrypt", "rank_probe.judge.judge", "rankskew.replay"}
    script = f"import sys, exporter.commands.exporter; print({names!r} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "set()\n"


RULES = """
groups:
  - name: mine
    rules:
      - {record: "rankskew:threshold:override", labels: {name: gpus_lost_ratio}, expr: vector(0.02)}
      - record: rankskew:threshold:override
        labels: {name: gpus_lost_ratio, job_id: llama}
        expr: "0.5"
      - {record: "other:record", expr: "up"}
"""


def test_override_of_a_job_comes_before_that_of_all(tmp_path: Path) -> None:
    """Where none is given there are the defaults, each with its reason."""
    (tmp_path / "overrides.yaml").write_text(RULES)
    thresholds = read_overrides(tmp_path / "overrides.yaml")

    assert thresholds.value("gpus_lost_ratio", "llama") == 0.5
    assert thresholds.value("gpus_lost_ratio", "other") == 0.02
    assert thresholds.value("hang_seconds", "llama") == Thresholds().value("hang_seconds") == 120
    assert all(each.reason for each in defaults().values())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (RULES.replace("gpus_lost_ratio", "gpus_lost").encode(), "overrides 'gpus_lost'"),
        (RULES.replace("vector(0.02)", "up * 2").encode(), "cannot evaluate"),
        (b"[1, 2]", "not a rule file"),
        (b"{", "not YAML"),
        (None, "cannot read"),
        (b"\x1f\x8b\xff", "is not UTF-8 text"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    """A typo in a name, an expression, another file, none, or a compressed one."""
    path = tmp_path / "overrides.yaml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(UsageError, match=said):
        read_overrides(path)


def test_there_are_words_for_all_that_can_be_said() -> None:
    """Stages, each told by its colour; kinds of loss and lateness; reasons, of which the rules know
    more than the judge does; and causes, with the details that are found and no others.
    """
    colours = {stage.colour for stage in STAGES.values()}
    assert tuple(STAGES) == stages.STAGES
    assert all(re.fullmatch("#[0-9A-Fa-f]{6}", each) for each in colours)
    assert len(colours) == len(STAGES)
    assert set(KINDS) == {"hung", *verdict.LOST_KINDS}  # A hang is none of the judge's kinds.
    assert tuple(LATE_KINDS) == verdict.LATE_KINDS

    rules = "".join(path.read_text() for path in alert_rules.rule_files())
    recorded = re.findall(r'"reason", "(\w+)", ""|{reason: (\w+)}', rules)
    names = {one or other for one, other in recorded} - {"spread", "padding"}  # Of batches.
    assert len(names) > 5
    assert names | set(verdict.REASONS) == set(REASONS)

    found = {(row.cause, row.detail) for row in ROWS}
    detailed = {(cause, detail) for cause, said in CAUSES.items() for detail in said.details}
    assert {each for each in found if each[1]} == detailed
    assert set(CAUSES) == {cause for cause, _ in found} | {UNKNOWN}
    assert len({cause.short for cause in CAUSES.values()}) == len(CAUSES)

    # A state that raises an alert has the runbook of one that exists.
    assert {state.colour for state in STATES.values()} == set(COLOURS)
    runbooks = {name: state.runbook for name, state in STATES.items()}
    without = {name for name in runbooks if runbooks[name] is None}
    assert without == {"healthy", "finished", "pause", "shared"}
    assert set(runbooks.values()) - {None} <= set(alert_rules.alerts())


@pytest.mark.parametrize(
    ("listens", "page"),
    [
        (":9917", "http://gpu-12:9917/"),
        ("0.0.0.0:80", "http://gpu-12:80/"),
        ("10.0.0.5:9917", "http://10.0.0.5:9917/"),
        ("[fd00::5]:9917", "http://[fd00::5]:9917/"),
        # What nobody else reaches, or has a port that only the system knows.
        *((each, "") for each in ("127.0.0.1:9917", "localhost:9917", "[::1]:9917", ":0")),
    ],
)
def test_page_is_linked_where_others_reach_it(listens: str, page: str) -> None:
    """By the name of the node, unless it listens on one address."""
    assert page_address(listens, "gpu-12", None) == page
