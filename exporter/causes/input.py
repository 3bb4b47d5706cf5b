"""Causes: a loader or a storage that is slow; `input` for data, `storage` in other stages."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from exporter.causes.case import Case
from exporter.causes.model import BLOCKED, CPU_QUEUE, GPU, LOCK, PIPE, RUNNING, SLEEP, SOCKET
from exporter.causes.row import LOADING, OWN_STAGES, CauseRow, Certainty
from exporter.causes.shares import Share, has_more, is_in_state, waits, work
from exporter.causes.tokens import (
    LOCAL,
    LUSTRE,
    NFS,
    NOT_KNOWN,
    ON_STORAGE,
    OTHER_MOUNT,
    STORAGES,
    on,
    storage_of,
    worker,
)

INPUT: Final = "input"
STORAGE: Final = "storage"
# If its thread was not seen waiting for a disk, only these stages are suspected of using one.
ON_FILES: Final = ("other", "checkpoint", "eval")
NOT_LOADING: Final = tuple(stage for stage in OWN_STAGES if stage not in LOADING)
# Logs and checkpoints stay below a fifth of a slow disk's rate.
READ_BYTES: Final = 20e6
# A fault takes 0.1 to 1 ms: a hundred take a hundredth to a tenth of the time.
MAJOR_FAULTS: Final = 100.0
# Busy loaders wait for I/O for under a quarter of the time.
PRESSURE: Final = 0.25
# Beyond nine tenths, frames wait for the decoder.
DECODER_BUSY: Final = 0.9
# The decoder must also be busier than its peers' by this much.
DECODER_BUSIER: Final = 0.1
# Batches are taken from all workers in turn, so one slow worker delays them all. A mean over time.
SATURATED: Final = 0.5
# If a disk is less busy, those that read from it also wait for something else.
DISK_BUSY: Final = 0.9
# The disk must also be busier than its peers' by this much.
DISK_BUSIER: Final = 0.25
# Flash and file servers need less than 5 ms.
OPERATION_SECONDS: Final = 0.02
_WORKS: Final = frozenset({worker(RUNNING), worker(CPU_QUEUE)})
# Waits for something unknown.
_NOT_SEEN: Final = frozenset({BLOCKED, worker(BLOCKED), PIPE})
_ON_DISK: Final = frozenset(map(on, STORAGES))
# A rank that reads more than its peers, and was seen waiting for that, is late because of it.
_READS: Final = _ON_DISK | frozenset(map(worker, _ON_DISK))


def _for_storage(storage: str, share: Share) -> Share:
    """*share*, if the mount that the figure describes is on this kind of *storage*."""

    def on_it(row: CauseRow, case: Case) -> float:
        found = storage_of(case.facts.get(row.figure, ""))
        found = OTHER_MOUNT if found == NOT_KNOWN else found
        return share(row, case) if found == storage else 0.0

    return on_it


def _worked(row: CauseRow, case: Case) -> float:
    """Return the share of the excess in which it waits for workers that are busy."""
    waits = min(max(case.lower("workers_run_queue_ratio") or 0.0, 0.0), 0.99)
    part = work(case, row, worker(RUNNING), worker(CPU_QUEUE), waits / (1 - waits))
    return part * is_in_state(row, case)


_of_loader = partial(CauseRow, cause=INPUT, certainty=Certainty.FACT, stages=LOADING)
LOADER: Final = (
    _of_loader(
        detail="decoder",
        figure="gpu_decoder_ratio",
        states=frozenset({RUNNING, GPU, BLOCKED, LOCK}),
        share=has_more(DECODER_BUSIER, at_least=DECODER_BUSY),
        says="its GPU's decoder is busy {own} of the time[, its peers' {peers}]",
        first_action="`nvidia-smi dmon -i UUID -s u -c 5` on NODE: are `dec` and `jpg` near 100?",
    ),
    _of_loader(
        detail="reads",
        figure="read_bytes_per_second",
        states=ON_STORAGE,
        proof=_READS,
        share=has_more(READ_BYTES),
        says="it reads {own} from storage[, its peers {peers}]",
        first_action="`iostat -x 1` on NODE; are its files in the page cache of its peers only?",
    ),
    _of_loader(
        detail="reads",
        figure="major_faults_per_second",
        states=ON_STORAGE,
        proof=_READS,
        share=has_more(MAJOR_FAULTS),
        says="its major page fault rate is {own}[, its peers' {peers}]",
        first_action="`iostat -x 1` on NODE; has its cgroup too little memory for its files?",
    ),
    _of_loader(
        detail="reads",
        certainty=Certainty.AMOUNT,
        figure="io_waiting_ratio",
        states=ON_STORAGE,
        share=waits(PRESSURE),
        says="its processes wait for storage {own} of the time[, its peers' {peers}]",
        first_action="`iostat -x 1` on NODE shows a slow disk, `iotop` what uses it",
    ),
    _of_loader(
        detail="workers",
        figure="saturated_workers",
        states=frozenset({PIPE, BLOCKED, *_WORKS}),
        share=has_more(SATURATED),
        says="{own} of its loader's workers cannot keep up[ (running `{fact}`)]"
        "[, {peers} of its peers']",
        first_action="`py-spy dump --pid WORKER_PID` of a worker; `pgrep -P PID` lists them",
    ),
)


def _worker(
    detail: str,
    states: frozenset[str],
    does: str,
    certainty: Certainty = Certainty.AMOUNT,
    share: Share = is_in_state,
) -> CauseRow:
    return _of_loader(
        detail=detail,
        certainty=certainty,
        states=states,
        share=share,
        says=f"it waits {{time}} for its loader's workers, which {does}[ in `{{place}}`]",
        first_action="`py-spy dump --pid WORKER_PID` of a worker; `pgrep -P PID` lists them",
    )


WORKERS: Final = (
    _worker("worker_sleep", frozenset({worker(SLEEP)}), "sleep"),
    _worker("worker_lock", frozenset({worker(LOCK)}), "wait for a lock"),
    _worker("worker_socket", frozenset({worker(SOCKET)}), "wait for a socket"),
    _worker("worker_pipe", frozenset({worker(PIPE)}), "wait for a pipe"),
    _worker("worker_disk", frozenset({worker(on(NOT_KNOWN))}), "wait for storage"),
    _worker("worker_blocked", frozenset({worker(BLOCKED)}), "are blocked"),
    _worker("workers", _WORKS, "are busy", Certainty.GUESS, _worked),
    # What they do is not known.
    replace(
        _worker("workers", frozenset({PIPE}), "", Certainty.GUESS),
        says="it waits {time} for its loader's workers",
    ),
)


def _storages(
    cause: str, stages: tuple[str, ...], suspected: tuple[str, ...]
) -> Iterator[CauseRow]:
    """Yield rows for waits seen in *stages*, and for slow storage of the node in *suspected*."""
    look = {
        NFS: "`nfsiostat 1` on NODE and on a node that is not late; `nfsstat -m` for its options",
        LUSTRE: "`lctl get_param osc.*.stats mdc.*.stats` on NODE: which target is slow?",
        OTHER_MOUNT: "`py-spy dump --pid PID` on NODE; look at what serves that mount",
        LOCAL: "`iostat -x 1` on NODE: is a disk at 100 %util, its r_await above the others'?",
        NOT_KNOWN: "`iostat -x 1` on NODE shows a slow disk, `iotop` what uses it",
    }
    of_node = partial(CauseRow, cause=cause, certainty=Certainty.NODE, stages=suspected)
    for storage in (NFS, LUSTRE, OTHER_MOUNT):
        yield of_node(
            detail=storage,
            figure="node_mount_operation_seconds",
            states=_seen(storage) | _NOT_SEEN,
            proof=_seen(storage),
            share=_for_storage(storage, has_more(OPERATION_SECONDS)),
            says="an operation on a file system[, `{fact}`,] takes {own}"
            "[, on its peers' nodes {peers}]",
            before="an operation on a file system[, `{fact}`,] takes {own}, before {peers}",
            first_action=look[storage],
        )
    of_disk = partial(of_node, detail=LOCAL, first_action=look[LOCAL], proof=_seen(LOCAL))
    yield of_disk(
        figure="node_disk_busy_ratio",
        states=_seen(LOCAL) | _NOT_SEEN,
        share=has_more(DISK_BUSIER, at_least=DISK_BUSY),
        says="a disk of its node[, {fact},] is busy {own} of the time[, its peers' {peers}]",
        before="a disk[, {fact},] is busy {own} of the time, before {peers}",
    )
    yield of_disk(
        figure="node_disk_read_seconds",
        states=_seen(LOCAL) | _NOT_SEEN,
        share=has_more(OPERATION_SECONDS),
        says="a read from a disk of its node[, {fact},] takes {own}[, on its peers' nodes {peers}]",
        before="a read from a disk[, {fact},] takes {own}, before {peers}",
    )
    yield of_node(
        detail=NOT_KNOWN,
        figure="node_io_waiting_ratio",
        states=ON_STORAGE,
        share=has_more(PRESSURE),
        says="tasks on its node wait for storage {own} of the time[, its peers' {peers}]",
        before="tasks on the node wait for storage {own} of the time, before {peers}",
        first_action=look[NOT_KNOWN],
    )
    for storage in STORAGES:
        known = storage != NOT_KNOWN
        tokens = {on(storage)}
        # For a worker whose disk is unknown, the rows of WORKERS say more.
        tokens |= {worker(on(storage))} if known else set()
        yield CauseRow(
            cause=cause,
            detail=storage,
            certainty=Certainty.AMOUNT,
            stages=stages,
            states=frozenset(tokens),
            share=is_in_state,
            says="it waits {time} for `{place}`"
            if known
            else "it waits {time} for storage[ in `{place}`]",
            first_action=look[storage],
        )


def _seen(storage: str) -> frozenset[str]:
    """Return a wait for this *storage*, or for one that is not known."""
    tokens = (on(storage), on(NOT_KNOWN))
    return frozenset({*tokens, *map(worker, tokens)})


ROWS: Final = (
    *LOADER,
    *WORKERS,
    *_storages(INPUT, LOADING, LOADING),
    *_storages(STORAGE, NOT_LOADING, ON_FILES),
)
