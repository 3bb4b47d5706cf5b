"""What a check has found, one sentence each."""

from collections.abc import Callable
from dataclasses import dataclass, field

from exporter.errors import StartError, UsageError


@dataclass(frozen=True, slots=True)
class Findings:
    """*problems* keep the exporter from starting or from its work, *warnings* do not."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def attempt(self, action: Callable[[], object]) -> None:
        """Note the error of *action* as a problem."""
        try:
            action()
        except (UsageError, StartError) as error:
            self.problems.append(str(error))
