"""The line of code, and what the thread does there: samples of a rank that is late or stuck.

It reads functions, files and line numbers of the training thread's stack; no variable, argument or
source. The training thread runs nothing for it. A rank that is neither has no sampling thread and
no sample.
"""

from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, Final

from rank_probe.lines.loader_code import workers_line
from rank_probe.lines.sampling import Sampling
from rank_probe.lines.user_code import UserCode, of_this_process

MOST_OF_IT: Final = 0.5


class Stacks:
    """Samples a thread, from `watch(stage)` until `watch(None)`.

    *thread* returns which one, *stage* its current stage, *backward* the codes on its stack when it
    called backward, innermost first (empty while unknown). *on_first* is called by the sampling
    thread once there is an answer about the late stage; *loader* returns the DataLoader that the
    loop iterates, *before_model* whether it has a batch and has not called the model with it.
    Samples in stage `sync` are not kept: a rank that waits for others is not late there. When the
    rank is no longer late, its samples are forgotten: they would outlive what they explain.

    `samples` and `stop` are for any thread, the rest for one. RANK_PROBE_STACKS=0 turns it off. A
    rank that ends calls `stop`.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        thread: Callable[[], int],
        stage: Callable[[], str],
        backward: Callable[[], Sequence[CodeType]] = tuple,
        on_first: Callable[[], None] = lambda: None,
        loader: Callable[[], object] = lambda: None,
        before_model: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_off = environment.get("RANK_PROBE_STACKS") == "0"
        self._environment = environment
        self._stage = stage
        self._backward = backward
        self._thread = thread
        self._late_stage = ""
        self._on_first = on_first
        self._loader = loader
        self._before_model = before_model
        self._code: UserCode | None = None
        self._sampling: Sampling | None = None
        self._samples_before = 0

    @property
    def samples(self) -> int:
        """How many samples were taken in this process."""
        sampling = self._sampling
        return self._samples_before + (0 if sampling is None else sampling.samples)

    def watch(self, late_stage: str | None) -> None:
        """Sample while this rank is late in *late_stage*; None ends it."""
        sampling = self._sampling
        if late_stage is None:
            if sampling is not None:
                sampling.stop()
                self._samples_before += sampling.samples
                self._sampling = None
            return
        self._late_stage = late_stage
        if sampling is None and not self._is_off:
            # Not the sampler's: each is for one thread.
            self._code = of_this_process(self._environment)
            self._sampling = Sampling(
                self._thread,
                self._stage,
                self._backward,
                of_this_process(self._environment),
                before_model=self._before_model,
                late_stage=lambda: self._late_stage,
                on_first=self._on_first,
            )

    def stop(self) -> None:
        """End for good: a later `watch` begins nothing."""
        self._is_off = True
        if (sampling := self._sampling) is not None:
            sampling.stop()

    def snapshot_fields(self) -> dict[str, Any]:
        """Return its fields of a Snapshot; empty while the rank is not late."""
        if (sampling := self._sampling) is None or self._code is None:
            return {}
        line = workers_line(self._loader(), self._code.has)
        return {
            "late_lines": sampling.lines(self._late_stage),
            "thread_states": sampling.states(self._late_stage),
            "loader": "" if line is None else self._code.place(line),
        }

    def mostly_fetches(self, stage: str) -> bool:
        """Whether the loop was fetching its next item in most of the samples of *stage*."""
        sampling = self._sampling
        return ((sampling and sampling.iterating_share(stage)) or 0.0) > MOST_OF_IT

    def rename_fetches(self, stage: str, to: str) -> None:
        """Tell what was fetching in *stage* as *to*: its batches turned out to be read there."""
        if (sampling := self._sampling) is not None:
            sampling.rename_fetches(stage, to)
