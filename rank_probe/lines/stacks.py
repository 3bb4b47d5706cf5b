"""The line of code, and what the thread does there: samples of a rank that is late or stuck.

It reads functions, files and line numbers of the training thread's stack; no variable, argument or
source. The training thread runs nothing for it. A rank that is neither has no sampling thread and
no sample.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import CodeType
from typing import Any, Final

from rank_probe.lines.loader_code import workers_line
from rank_probe.lines.sampling import Sampling
from rank_probe.lines.user_code import CodeLine, of_this_process
from rank_probe.wire.snapshot import MOST_LATE_LINES, MOST_THREAD_STATES

MOST_OF_IT: Final = 0.5


class Stacks:
    """Samples a thread, from `watch(stage)` until `watch(None)`.

    *thread* returns which one, *stage* its current stage, *spent* its nanoseconds in each of STAGES
    so far (empty if unknown), *backward* the codes on its stack when it called backward, innermost
    first (empty while unknown). *on_first* is called by the sampling thread once there is an answer
    about the late stage; *loader* returns the DataLoader that the loop iterates, *before_model*
    whether it has a batch and has not called the model with it. Samples in stage `sync` are not
    kept: a rank that waits for others is not late there. When the rank is no longer late, its
    samples are forgotten: they would outlive what they explain.

    `samples` and `stop` are for any thread, the rest for one. RANK_PROBE_STACKS=0 turns it off. A
    rank that ends calls `stop`.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        thread: Callable[[], int],
        stage: Callable[[], str],
        spent: Callable[[], Sequence[int]] = tuple,
        backward: Callable[[], Sequence[CodeType]] = tuple,
        on_first: Callable[[], None] = lambda: None,
        loader: Callable[[], object] = lambda: None,
        before_model: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_off = environment.get("RANK_PROBE_STACKS") == "0"
        self._environment = environment
        self._loader = loader
        self._begin = partial(
            Sampling,
            thread=thread,
            stage=stage,
            spent=spent,
            backward=backward,
            before_model=before_model,
            on_first=on_first,
        )
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
        elif sampling is not None:
            sampling.late_stage = late_stage
        elif not self._is_off:
            self._sampling = self._begin(late_stage, of_this_process(self._environment))

    def stop(self) -> None:
        """End for good: a later `watch` begins nothing."""
        self._is_off = True
        if (sampling := self._sampling) is not None:
            sampling.stop()

    def snapshot_fields(self) -> dict[str, Any]:
        """Return its fields of a Snapshot, those in the late stage first; empty if not late."""
        if (sampling := self._sampling) is None:
            return {}
        late_stage, place = sampling.late_stage, sampling.code.place
        with sampling.lock:
            lines = sampling.window.lines(late_stage, MOST_LATE_LINES)
            states = sampling.window.states(late_stage, MOST_THREAD_STATES)
        loader = workers_line(self._loader(), sampling.code.has)
        return {
            "late_lines": [
                {"stage": stage, "place": place(line), "share": round(share, 3)}
                for stage, line, share in lines
            ],
            "thread_states": [
                {"stage": stage, "state": state, "share": round(min(share, 1.0), 3)}
                | {"place": place(where) if isinstance(where, CodeLine) else where or ""}
                for stage, state, share, where in states
            ],
            "loader": "" if loader is None else place(loader),
        }

    def mostly_fetches(self, stage: str) -> bool:
        """Whether the loop was fetching its next item in most of the samples of *stage*."""
        if (sampling := self._sampling) is None:
            return False
        with sampling.lock:
            return (sampling.window.iterating_share(stage) or 0.0) > MOST_OF_IT

    def rename_fetches(self, stage: str, to: str) -> None:
        """Tell what was fetching in *stage* as *to*: its batches turned out to be read there."""
        if (sampling := self._sampling) is not None:
            with sampling.lock:
                sampling.window.rename_fetches(stage, to)
