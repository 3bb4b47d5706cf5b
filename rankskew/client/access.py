"""How the servers that a command asks are reached: what proves who we are, and whom we trust."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rankskew.client.headers import HttpConfig, checked_header


@dataclass(frozen=True, slots=True)
class Access:
    """A *config_file* in the format of promtool's --http.config.file, and further *headers*."""

    config_file: Path | None = None
    headers: Sequence[tuple[str, str]] = ()

    def read(self) -> HttpConfig:
        """Return what they say now, as tokens are renewed; raises UsageError."""
        more = [checked_header(*each) for each in self.headers]
        if self.config_file is None:
            return HttpConfig(more)
        # Here: few need pydantic, which takes as long to import as the rest of a command.
        from rankskew.client.http_config import read_http_config

        config = read_http_config(self.config_file)
        return replace(config, headers=[*config.headers, *more])


ANYONE: Final = Access()
