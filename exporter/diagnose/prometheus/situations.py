"""What is wrong besides late ranks: a job stands still, is not seen, or cannot be judged."""

from collections.abc import Iterator, Sequence
from typing import Final

from exporter.advice import situations
from exporter.client.prometheus import Sample
from exporter.diagnose.advise import host
from exporter.diagnose.losses import loss_findings
from exporter.diagnose.model import Finding, Place
from exporter.diagnose.prometheus.moment import Moment
from exporter.live import states
from exporter.live.sentences import MOST_NAMES, duration, listed
from exporter.live.summary import START_SECONDS

MOST_NODES: Final = 3
# States that say nothing of the ranks' pace.
SILENT_STATES: Final = (states.FINISHED, states.NO_PROBE)


def situation_findings(moment: Moment) -> Iterator[Finding]:
    """Yield what the state of the job says, and its losses without a late rank; raises Trouble."""
    state = moment.job.state
    if state == states.HUNG:
        yield _hung(moment)
        return
    if state == states.EXPORTER_DOWN:
        yield from _down(moment)
    elif state == states.RANKS_MISSING:
        yield from _missing(moment)
    elif state == states.STARTING:
        yield _starting(moment)
    elif state in SILENT_STATES:
        yield Finding(what=state, sentence=moment.job.sentence)
    elif state == states.NOT_JUDGEABLE:
        yield from _reasons(moment)
    if state not in (*SILENT_STATES, states.STARTING):
        kinds = {s["kind"]: s.value for s in moment.all("job_kind:rankskew_gpus_lost:sum")}
        stages = {s["stage"]: s.value for s in moment.all("job_stage:rankskew_gpus_lost:sum")}
        yield from loss_findings(kinds, stages, moment.ranks, moment.threshold)


def unjudged(moment: Moment) -> list[str]:
    """Say what of the job could not be judged, and why."""
    told = []
    reasons = [s["reason"] for s in moment.all("job_reason:rankskew_not_judgeable:bool")]
    for reason in sorted(set(reasons)):
        entry = situations().get(reason)
        text = entry.text if entry is not None else reason.replace("_", " ")
        told.append(f"Not judgeable ({reason.replace('_', ' ')}): {text}.")
    coverage = moment.value("job:rankskew_coverage:ratio")
    if coverage is not None and coverage < 0.995 and not told:
        told.append(f"Only {coverage:.0%} of the job's ranks and steps are judged.")
    if any(s["source"] == "block" for s in moment.all("job_source:rankskew_gpus_lost:info")):
        told.append(
            "No judge covers the job: only ranks that have been late by a tenth or more for two "
            "minutes are named."
        )
    return told


def _hung(moment: Moment) -> Finding:
    found = moment.all("rank_stage:rankskew_hang_suspect:group")
    since = moment.value("job:rankskew_hung:seconds")
    lost = float(moment.job.world_size or 0)
    if not found:
        return Finding(
            "hung_together",
            moment.job.sentence,
            gpus_lost=lost,
            since_seconds=since,
            place=Place(),
        )
    suspect = found[0]
    who = suspect["rank"], suspect["instance"]
    return Finding(
        "hung_finished" if suspect["stage"] == "finished" else "hung",
        moment.job.sentence,
        rank=int(who[0]) if who[0].isdecimal() else None,
        ranks=(int(who[0]),) if who[0].isdecimal() else (),
        peer_group=suspect["peer_group"] or None,
        place=moment.places([who])[who],
        stage=suspect["stage"],
        gpus_lost=lost,
        since_seconds=since,
    )


def _down(moment: Moment) -> Iterator[Finding]:
    nodes = sorted({s["instance"] for s in moment.all("node:rankskew_exporter_down:group")})
    for instance in nodes[:MOST_NODES]:
        yield Finding(
            "exporter_down",
            f"The exporter at {moment.shown(instance)} does not answer: "
            "nothing is known of its node now.",
            place=Place(node=moment.host(instance), instance=instance),
        )


def _missing(moment: Moment) -> Iterator[Finding]:
    silent = sorted(
        (s for s in _silent(moment) if s["rank"].isdecimal()),
        key=lambda sample: (sample["instance"], int(sample["rank"])),
    )
    firsts = {sample["instance"]: sample for sample in reversed(silent)}
    places = moment.places((s["rank"], s["instance"]) for s in firsts.values())
    for instance, sample in list(firsts.items())[:MOST_NODES]:
        ranks = tuple(int(s["rank"]) for s in silent if s["instance"] == instance)
        more = f", nor have {len(ranks) - 1} more there" if len(ranks) > 1 else ""
        yield Finding(
            "ranks_silent",
            f"Rank {sample['rank']} on {moment.shown(instance)} has not reported for "
            f"{duration(sample.value)}{more}: dead, stopped, or unable to reach its exporter.",
            rank=int(sample["rank"]),
            ranks=ranks,
            place=places[sample["rank"], instance],
            since_seconds=sample.value,
        )
    unprobed = moment.prometheus.query(f'rankskew_gpu_rank_info{{source="environ",{moment.where}}}')
    if unprobed:
        yield _unprobed(moment, unprobed)
    elif moment.value("job:rankskew_ranks_missing:sum") or not silent:
        yield Finding("ranks_missing", moment.job.sentence)


def _silent(moment: Moment) -> Sequence[Sample]:
    """Return the ranks that have gone silent; the rules leave out those of a job that is dead."""
    return moment.all("rank:rankskew_silent_seconds:max") or moment.prometheus.query(
        f"rankskew_rank_silent_seconds{{{moment.where}}}"
    )


def _unprobed(moment: Moment, found: Sequence[Sample]) -> Finding:
    ranks = sorted(int(sample["rank"]) for sample in found if sample["rank"].isdecimal())
    instance = found[0]["instance"]
    names = listed([str(rank) for rank in ranks[:MOST_NAMES]])
    more = f" and {len(ranks) - MOST_NAMES} more" if len(ranks) > MOST_NAMES else ""
    return Finding(
        "ranks_without_probe",
        f"Ranks {names}{more} run without the probe, on {moment.shown(instance)} for one.",
        ranks=tuple(ranks),
        place=Place(node=moment.host(instance), instance=instance),
    )


def _starting(moment: Moment) -> Finding:
    since = moment.value("job:rankskew_starting:timestamp")
    age = moment.value("job:rankskew_run_seconds:max")
    elapsed = age if since is None else moment.prometheus.now - since
    limit = moment.threshold("start_seconds", START_SECONDS)
    is_slow = since is not None and elapsed is not None and elapsed > limit
    rank = moment.job.ranks[0] if moment.job.ranks else None
    place = Place()
    if rank is not None:
        place = Place(node=host(rank.node), instance=rank.node, gpu=rank.gpu, pid=rank.pid)
    age_text = "" if elapsed is None else f" for {duration(elapsed)}"
    return Finding(
        "slow_start" if is_slow else "starting",
        f"The job has been starting{age_text}: no steps of its ranks can be compared yet.",
        place=place,
        since_seconds=elapsed,
    )


def _reasons(moment: Moment) -> Iterator[Finding]:
    said = {s["reason"] for s in moment.all("job_reason:rankskew_not_judgeable:bool")}
    for reason in sorted(said):
        if reason in situations():
            text = situations()[reason].text
            yield Finding(reason, f"The job cannot be judged: {text}.")
