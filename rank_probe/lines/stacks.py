"""Samples which line a late or stuck rank is in, and what its thread does there.

Samples hold functions, files and line numbers of the training thread's stack, and never variables,
arguments or source. The training thread runs no code for them. A rank that is neither late nor
stuck has no sampling thread and no samples.
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

    *thread* returns the thread's ident and *stage* its current stage. *spent* returns its
    nanoseconds in each of STAGES so far (empty if unknown). *backward* returns the code objects on
    its stack when it called backward, innermost first (empty while unknown). The sampling thread
    calls *on_first* at the first answer about the late stage. *loader* returns the DataLoader that
    the loop iterates, *before_model* whether a batch waits for the model to be called with it.
    Samples in `sync` are dropped unless the rank is stuck there: waiting is not lateness. A rank
    that is no longer late loses its samples, which would outlive what they explain.

    Any thread may use `samples` and `stop`; the rest is for one thread. RANK_PROBE_STACKS=0 turns
    sampling off. A rank that ends calls `stop`.
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
        """Stop sampling for good: later calls of `watch` do nothing."""
        self._is_off = True
        if (sampling := self._sampling) is not None:
            sampling.stop()

    def snapshot_fields(self) -> dict[str, Any]:
        """Return this class's Snapshot fields, the late stage's rows first; empty if not late."""
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
        """Move the fetching samples of *stage* to stage *to*, where the batches are really read."""
        if (sampling := self._sampling) is not None:
            with sampling.lock:
                sampling.window.rename_fetches(stage, to)
