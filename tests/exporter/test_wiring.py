"""The parts of an exporter are joined as its settings say."""

from exporter.collectors.catalog import COLLECTORS
from exporter.settings import Settings
from exporter.web.auth import BasicAuth, WithHeaders
from exporter.web.config import WebConfig
from exporter.wiring import Exporter

ALL_OFF = frozenset(entry.name for entry in COLLECTORS)


def test_guards_are_put_around_the_web_app_only_when_asked_for() -> None:
    """Without a web config file nothing stands between Prometheus and the metrics."""
    settings = Settings(collectors_off=ALL_OFF)
    plain = Exporter(settings, WebConfig()).web_app()
    users = Exporter(settings, WebConfig(users={"a": b"hash"})).web_app()
    headers = Exporter(settings, WebConfig(headers={"X-Frame-Options": "deny"})).web_app()

    assert not isinstance(plain, BasicAuth | WithHeaders)
    assert isinstance(users, BasicAuth)
    assert isinstance(headers, WithHeaders)
