"""How the servers that a command asks are reached: what proves who we are, and whom we trust."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

import urllib3

from rankskew.client.headers import HttpConfig, checked_header


class Session(NamedTuple):
    """Connections to a server, and what was read for them."""

    config: HttpConfig
    pool: urllib3.PoolManager


@dataclass(frozen=True, slots=True)
class Access:
    """A *config_file* in the format of promtool's --http.config.file, and further *headers*.

    *sessions* are open, by server.
    """

    config_file: Path | None = None
    headers: Sequence[tuple[str, str]] = ()
    sessions: dict[str, "Session"] = field(default_factory=dict, init=False, compare=False)

    def read(self) -> HttpConfig:
        """Return what they say now; raises UsageError."""
        more = [checked_header(*each) for each in self.headers]
        if self.config_file is None:
            return HttpConfig(more)
        # Here: few need pydantic, which takes as long to import as the rest of a command.
        from rankskew.client.http_config import read_http_config

        config = read_http_config(self.config_file)
        return replace(config, headers=[*config.headers, *more])


ANYONE: Final = Access()
