"""The parts of an exporter are joined as its settings say, from a wheel or a checkout."""

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exporter import bundle
from exporter.bundle import PLACES, bundled
from exporter.collectors.catalog import COLLECTORS
from exporter.errors import StartError
from exporter.settings import Settings
from exporter.web.protection import Protected
from exporter.web.reload import WatchedConfig
from exporter.wiring import ExporterParts, affordable
from tests.exporter.asgi import ask
from tests.exporter.installed import DIRECTORIES, installed
from tests.exporter.snapshots import snapshot


@pytest.mark.parametrize("kind", ["wheel", "checkout"])
def test_files_are_found_in_a_wheel_and_in_a_checkout(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name leads to the same content in either kind of installation; a damaged one is named."""
    monkeypatch.setattr(bundle, "PACKAGE", installed(kind, tmp_path))

    assert {name: bundled(name).is_dir() for name in PLACES} == {
        **dict.fromkeys(DIRECTORIES, True),
        "alerts/advice.yaml": False,
        "alerts/alertmanager.yaml": False,
        "alerts/notifications.tmpl": False,
        "alerts/playbook.md": False,
    }
    assert (bundled("dashboards") / "one.txt").read_text() == "dashboards"
    monkeypatch.setattr(bundle, "PACKAGE", tmp_path / "exporter")
    with pytest.raises(StartError, match="alerts/rules is not in this installation"):
        bundled("alerts/rules")


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


def test_thresholds_of_the_rules_are_those_of_the_page(tmp_path: Path) -> None:
    """The operator writes an override once, for Prometheus and for the exporter."""
    file = tmp_path / "overrides.yaml"
    labels = "{name: start_seconds}"
    file.write_text(
        "groups: [{name: mine, rules: [{record: 'rankskew:threshold:override', "
        f"labels: {labels}, expr: vector(5)}}]}}]"
    )
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
    names = "pynvml", "bcrypt", "rank_probe.judge.judge", "rankskew.replay"
    loaded = f"import sys, exporter.commands.exporter; print({names!r} & sys.modules.keys())"
    script = loaded.replace(repr(names), repr(set(names)))
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert ended.stdout == "set()\n"
