"""The demo's planted fault, how long it waits for the alert, and what it prints meanwhile."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from demo.verdict import Conclusion
from devstack.parts import ExporterProcess, TrainingProcess
from devstack.process import StackProcess

FAULTS: Final = ("data", "forward", "backward", "optimizer", "none")
JOB_ID: Final = "demo"
RANK: Final = "2"
RANKS: Final = 4
STEP_SECONDS: Final = 0.2
DELAY_SECONDS: Final = 0.1
WAIT_SECONDS: Final = 300.0
# A straggler pages within seconds once the job can be judged, so a quiet minute is an answer.
HEALTHY_SECONDS: Final = 60.0
# Its usual port, if it is free.
EXPORTER_PORT: Final = 9917


@dataclass
class Scenario:
    """One run of the demo: *fault* is planted in one rank; *once* ends it with the verdict."""

    fault: str
    once: bool
    concluded: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed_seconds(self) -> float:
        """Return the time since the training was started."""
        return time.monotonic() - self.started

    def start_exporter(self, stack: ExitStack, directory: Path) -> ExporterProcess:
        """Start the exporter until *stack* closes."""
        exporter = stack.enter_context(ExporterProcess(directory, EXPORTER_PORT))
        say_started("exporter", f"{exporter.url}/  (built-in page, /metrics)")
        return exporter

    def start_training(
        self, stack: ExitStack, directory: Path, exporter: ExporterProcess
    ) -> TrainingProcess:
        """Start the training with its fault until *stack* closes; time counts from here."""
        arguments = [f"--fault={self.fault}", f"--fault-rank={RANK}", f"--delay={DELAY_SECONDS}"]
        arguments += [f"--step-seconds={STEP_SECONDS}", "--steps=10000000"]
        training = TrainingProcess(
            directory, arguments, exporter=exporter.target, job_id=JOB_ID, ranks=RANKS
        )
        self.started = time.monotonic()
        stack.enter_context(training)
        planted = f"rank {RANK} is {DELAY_SECONDS:g} s a step slower in {self.fault}"
        say_started(
            "training",
            f"torchrun --nproc-per-node {RANKS} -m rank_probe demo/train.py; "
            + ("no rank is slow" if self.fault == "none" else planted),
        )
        return training

    def watch(
        self,
        parts: Sequence[StackProcess],
        ask: Callable[[], Conclusion | None],
        live: Callable[[], dict[str, Any] | None],
    ) -> Conclusion | None:
        """Return the first answer of *ask*, or None when none came in time.

        Meanwhile print the built-in page's sentence about the *live* job whenever it changes.
        Raises StackError when one of *parts* ends.
        """
        said = what_it_says(None)
        while self.elapsed_seconds < WAIT_SECONDS:
            for part in parts:
                part.check_alive()
            job = live()
            if (now := what_it_says(job)) != said:
                print(f"  {self.elapsed_seconds:4.0f} s  {sentence(job)}", flush=True)
            said = now
            if (answer := ask()) is not None:
                return answer
            time.sleep(0.2)
        return None

    def conclude(self, verdict: Conclusion, look_at: Sequence[str]) -> None:
        """Print the verdict and where to *look_at*."""
        self.concluded = True
        print(f"\n{verdict.line()}\n", flush=True)
        print(
            "Where to look, on a terminal and without DEMO_ONCE, as it then goes on:"
            if self.once
            else "Where to look; Ctrl-C ends it:"
        )
        for place in look_at:
            print(f"  {place}", flush=True)

    def hold(self, parts: Sequence[StackProcess], meanwhile: Callable[[], None]) -> None:
        """Continue until interrupted, unless the demo ends with the verdict."""
        while not self.once:
            for part in parts:
                part.check_alive()
            meanwhile()
            time.sleep(0.5)


def what_it_says(job: dict[str, Any] | None) -> tuple[object, ...]:
    """Return the lasting part of the page's verdict on *job*; its figures change all the time."""
    if job is None:
        return ()
    verdict = job["verdict"]
    late = {(each["rank"], each["stage"], each["kind"]) for each in verdict["late"]}
    return verdict["state"], verdict["reason"], late, bool(_causes(job))


def sentence(job: dict[str, Any] | None) -> str:
    """Return the page's own words for its verdict on *job*, and for the first cause if known."""
    if job is None:
        return "The job is not known yet."
    causes = [f"Cause: {each}." for each in _causes(job)[:1]]
    return " ".join([job["verdict"]["sentence"], *causes])


def _causes(job: dict[str, Any]) -> list[str]:
    return [each["cause"]["sentence"] for each in job["verdict"]["late"] if each["cause"]]


def say_started(part: str, what: str) -> None:
    """Print that *part* is running now."""
    print(f"  {part:<13} {what}", flush=True)
