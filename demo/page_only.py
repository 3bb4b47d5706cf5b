"""Without Prometheus: only the exporter's built-in page names the late rank."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from demo.scenario import HEALTHY_SECONDS, JOB_ID, RANK, WAIT_SECONDS, Scenario, sentence
from demo.verdict import Conclusion, Health, NamedRank
from devstack.process import StackError

ALERT: Final = "none(page)"
# The judge has already waited for enough steps: this only checks that its verdict lasts.
LATE_SECONDS: Final = 5.0


def demonstrate(scenario: Scenario, directory: Path) -> str | None:
    """Run *scenario*; return what is wrong with its verdict, None if nothing."""
    with ExitStack() as stack:
        exporter = scenario.start_exporter(stack, directory)
        parts = [exporter, scenario.start_training(stack, directory, exporter)]
        live = partial(exporter.live_job, JOB_ID)
        watch = PageWatch(scenario, live)
        verdict = scenario.watch(parts, watch.verdict, live)
        if verdict is None:
            raise StackError(
                f"the built-in page has no verdict after {WAIT_SECONDS:.0f} s: {sentence(live())}"
            )
        print(f"\nThe page says: {sentence(live())}", flush=True)
        scenario.conclude(verdict, [f"{exporter.url}/  the built-in page, live"])
        wrong = what_is_wrong(scenario, verdict)
        if wrong is None:
            scenario.hold(parts, meanwhile=lambda: None)
        return wrong


def what_is_wrong(scenario: Scenario, verdict: Conclusion) -> str | None:
    """Return how *verdict* differs from what *scenario* planted, None if it does not."""
    if isinstance(verdict, Health):
        return None if scenario.fault == "none" else "the page names nobody"
    if (verdict.rank, verdict.stage) == (RANK, scenario.fault):
        return None
    planted = "no rank" if scenario.fault == "none" else f"rank {RANK} in {scenario.fault}"
    return f"the page names rank {verdict.rank} in {verdict.stage}, but {planted} was slow"


class PageWatch:
    """Reads the page's data until it has stayed the same for long enough."""

    def __init__(self, scenario: Scenario, live: Callable[[], dict[str, Any] | None]) -> None:
        self._scenario, self._live = scenario, live
        self._said: tuple[str, str, str] | None = None
        self._since = 0.0

    def verdict(self) -> Conclusion | None:
        """Return the page's verdict once it has lasted a while."""
        job = self._live()
        if job is None:
            return None
        state, late = job["verdict"]["state"], job["verdict"]["late"]
        first = late[0] if state in ("straggler", "slow_node") else None
        said = (state, str(first["rank"]), first["stage"]) if first else (state, "", "")
        same_seconds = self._same_for(said)
        elapsed = self._scenario.elapsed_seconds
        if first and same_seconds >= LATE_SECONDS:
            return NamedRank(JOB_ID, said[1], said[2], first["gpus_lost"], ALERT, elapsed)
        if state == "healthy" and same_seconds >= HEALTHY_SECONDS:
            gpus_lost = sum(each["gpus_lost"] for each in late)
            return Health(JOB_ID, gpus_lost, same_seconds, ALERT, elapsed)
        return None

    def _same_for(self, said: tuple[str, str, str]) -> float:
        """Return how long state and late ranks have been the same on the page."""
        now = time.monotonic()
        if said != self._said:
            self._said, self._since = said, now
        return now - self._since
