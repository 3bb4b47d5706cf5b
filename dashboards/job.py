"""The job dashboard: which ranks are late, in which stage, since when, at what cost."""

from typing import Any, Final

from dashboards import links
from dashboards.board import JOB, JOB_VARIABLE, annotations, board, changes, firing
from dashboards.panels import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    POINTS_OF_ALL,
    RED,
    STAGE_COLOURS,
    STATES,
    WRAP,
    Line,
    Look,
    Panel,
    coloured_from,
    column,
    fixed,
    line,
    mapped,
    sentence,
    shades,
    stat,
    table,
    timeline,
    timeseries,
)
from dashboards.shared_panels import (
    WHY_IN_WORDS,
    alerts_panel,
    coded,
    explained,
    faults_of,
    in_short,
    labelled,
    per_step,
)
from exporter.vocabulary.words import KINDS, LATE_KINDS, REASONS

AT_END: Final = " @ end()"
# Two clusters behind one data source may have jobs of one name; it is empty without clusters.
ON_JOB: Final = "on (cluster, job_id)"
ON_RANK: Final = "on (cluster, job_id, rank)"
RANK: Final = "on (cluster, peer_group, rank)"

# How much slower than its peers each late rank is, with the kind and the stage of its lateness.
LATE: Final = f"rank:rankskew_late:ratio{{{JOB}}}"
LATE_SINCE: Final = f"(rankskew_late_since_timestamp_seconds{{{JOB}}} * 1000)"
LOST: Final = f"rank:rankskew_gpus_lost:sum{{{JOB}}}"
LOST_BY_STAGE: Final = f"rank_stage:rankskew_gpus_lost:sum{{{JOB}}}"
# The loss while a different rank is late in each step, by the stage in which that rank is late.
ROTATING_BY_STAGE: Final = f"job_stage:rankskew_gpus_lost:sum{{{JOB}}}"
LOST_BY_KIND: Final = f'job_kind:rankskew_gpus_lost:sum{{kind=~"%s",{JOB}}}'
# Who judges: the job's own join, or each node its own ranks. Where the join speaks, it is right.
_JUDGE: Final = "group by (cluster, job_id, judge) (rankskew_job_judge_info{%s})"
_JOIN: Final = _JUDGE % f'judge="join",{JOB}'
JUDGE: Final = f"({_JOIN} or {ON_JOB} {_JUDGE % JOB})"
CAUSE: Final = f"rankskew_late_cause_info{{{JOB}}}"
# Each rank with the index of the GPU on its node, as people call it.
GPU_INDEX: Final = f"rankskew_gpu_rank_info{{{JOB}}}"
# One series, labelled with the state of the job.
STATE: Final = f"job:rankskew_state:info{{{JOB}}}"
# The late ranks (and, without a rank, nodes) that are worth an alert, with stage and cause.
TOLD: Final = f"page:rankskew_gpus_lost:last1m{{%s,{JOB}}}"
HUNG: Final = f"job:rankskew_hung:seconds{{{JOB}}}"
# The rank for which a job that hangs waits.
SUSPECT: Final = f"rank_stage:rankskew_hang_suspect:group{{{JOB}}}"
SUSPECT_FAULT: Final = faults_of(SUSPECT, JOB)
SILENT: Final = f"rank:rankskew_silent_seconds:max{{{JOB}}}"
FIRING: Final = firing(JOB)
SINCE_LAST_STEP: Final = f"min by (cluster) (rankskew_node_last_step_age_seconds{{{JOB}}})"
# Ranks that have been in one stage for ten seconds. A silent rank's last report is outdated.
STUCK: Final = f"rankskew_stage_elapsed_seconds{{%s{JOB}}} >= 10 unless {RANK} {SILENT}"
OUTSIDE: Final = 'stage!="sync",'
ALL_LOST: Final = f"job:rankskew_gpus_lost:sum{{{JOB}}}"
WORLD: Final = f"job:rankskew_world_size:max{{{JOB}}}"
BEATING: Final = f"job:rankskew_ranks_beating:sum{{{JOB}}}"
MISSING: Final = f"job:rankskew_ranks_missing:sum{{{JOB}}}"
# The number of ranks of a job that has stopped reporting altogether.
ALL_SILENT: Final = (
    f'(job_state:rankskew_ranks:sum{{state="silent",{JOB}}} > 0 unless {ON_JOB} {BEATING} > 0)'
)
DOWN: Final = f"node:rankskew_exporter_down:group{{{JOB}}}"
STEP: Final = f"job:rankskew_step_seconds:max{{{JOB}}} unless {HUNG}"
SLOWDOWN: Final = f"job:rankskew_slowdown:max{{{JOB}}} unless {HUNG}"
NOT_JUDGEABLE: Final = f"job_reason:rankskew_not_judgeable:bool{{{JOB}}}"
RUNTIMES: Final = f"job_runtime:rankskew_ranks:count{{{JOB}}}"

# A job may have 16,384 ranks: a panel shows the costliest late ones and a few others, never all.
# They are chosen at the end of the range, so that a line is one rank from end to end.
LATE_LATELY: Final = f"topk(10, max_over_time({LOST}[1h]{AT_END}))"
OTHERS_SHOWN: Final = 3
STANDING_SHOWN: Final = 20
# There is room for this many names.
NAMED: Final = 2

NO_STEP: Final = "No step was finished"
UNKNOWN_JOB: Final = "Unknown job"

TIMES: Final[Look] = {"unit": "suffix:×"}
RIGHT: Final[Look] = {"custom.axisPlacement": "right"}
TO_RANK: Final = links.to_rank(links.LABEL % "rank")
WORD_OF_KIND: Final = mapped({name: {"text": kind.word} for name, kind in LATE_KINDS.items()})


def job_dashboard() -> dict[str, Any]:
    """Return the dashboard of one training job."""
    return board(
        "job",
        "Which rank a training job waits for, in which stage, since when, and at what cost.",
        JOB,
        [JOB_VARIABLE],
        # No panel of these is empty, whatever the state of the job.
        [_figures(), [_state_over_time()], [_waited_for()], [_lost_over_time(), _ranks()]],
        {
            "How the late rank differs from its peers": [_differences()],
            "The run so far": [_run(), [_runtimes()]],
        },
        # Rank 0 usually saves and evaluates, and all ranks start alike.
        annotations=[*annotations(f'rank="0",{JOB}'), changes(JOB)],
    )


# --- Expressions


def _words(series: str, label: str) -> str:
    """Return *series* with spaces for the first two underscores in a *label*."""
    for _ in range(2):
        series = f'label_replace({series}, "{label}", "$1 $2", "{label}", "([^_]+)_(.+)")'
    return series


def _figure_as(label: str, series: str) -> str:
    """Return the value of *series* as a *label*, to write it into a sentence."""
    return f'count_values by (cluster, job_id) ("{label}", {series})'


def _in(states: str, series: str, name: str = "", *looks: Look | str) -> Line:
    """Return *series* with its *name* while the job is in one of *states*, a regular expression."""
    chosen = STATE.replace("{", f'{{state=~"{states}",', 1)
    return f"({series}) and {ON_JOB} {chosen}", name, *looks


def _ago(seconds: str) -> str:
    return f"(time() - {seconds}) * 1000"


# --- The figures


def _figures() -> list[Panel]:
    share = f"({ALL_LOST} / {WORLD})"
    to_blame, *_ = _in("hung|slow_node|straggler|rotating", share)
    cost = f"round(job:rankskew_lost_cost_per_hour:sum{{{JOB}}}, 0.01)"
    late = f"{LATE_SINCE} and {RANK} rank:rankskew_told_gpus_lost:sum{{{JOB}}}"
    silent = f"max by (cluster, job_id) ({SILENT})"
    starting, running = (
        _ago(f"job:rankskew_{name}_seconds:max{{{JOB}}}") for name in ("starting", "run")
    )
    judged = f"job:rankskew_coverage:ratio{{{JOB}}}"
    # The first of several explains the others.
    reason = f"bottomk(1, {coded(NOT_JUDGEABLE, 'reason', REASONS)})"
    sourced = f"{judged} * {ON_JOB} group_left (judge) {JUDGE} or {ON_JOB} {judged}"
    valid = f"({sourced}) unless {ON_JOB} ({HUNG} or {NOT_JUDGEABLE})"
    return [
        sentence(
            "State",
            "The most urgent state that applies; the panel below shows it over time. Paused: one "
            "long stop. Rotating: a different rank in each step. All wait: all ranks stop or wait "
            "together.",
            (STATE, "{{state}}"),
            (f"absent({STATE})", UNKNOWN_JOB, GREY),
            span=3,
            size=24,
            by_name={
                state: {"displayName": word} | fixed(colour)
                for state, (word, colour) in STATES.items()
            },
        ),
        sentence(
            "GPUs lost",
            "GPUs of the job that do nothing but wait for any reason, communication included, mean "
            "of the last minute; in a hang all of them. Coloured if ranks are to blame, from 5 % "
            "of the job on in red. And what they cost, if you record the price of a GPU hour.",
            (
                f"({to_blame} or 0 * {share})"
                f" * {ON_JOB} group_left (lost) {_figure_as('lost', f'round({ALL_LOST}, 0.1)')}"
                f" * {ON_JOB} group_left (all) {_figure_as('all', WORLD)}",
                "{{lost}} of {{all}}",
            ),
            (f"0 * {STATE} unless {ON_JOB} {share}", "–"),
            (f"0 * {_figure_as('cost', cost)}", "{{cost}} US$/h"),
            span=3,
            size=22,
            limits=[("text", None), (ORANGE, 0.001), (RED, 0.05)],
        ),
        sentence(
            "Who",
            "Whom the job waits for: the two costliest late ranks, or a slow node, with the stage "
            "in which they fell behind and the cause; in a hang, the rank that is not in the "
            "collective, its stage, and a fault of its GPU. Grey: nobody can know. Click for more.",
            *_who(),
            span=7,
            size=20,
            limits=[(RED, None)],
        ),
        stat(
            "Since",
            "When the ranks became late, by their nodes' clocks, when the hang or the silence "
            "began, or else when the job started.",
            "dateTimeFromNow",
            _in("straggler|slow_node", f"min by (cluster, job_id) ({late})", "late", RED),
            _in("hung", _ago(HUNG), "hung", RED),
            _in("ranks_missing", _ago(silent), "silent", ORANGE),
            _in("starting", starting, "began"),
            _in("healthy|rotating|pause|shared|not_judgeable|exporter_down", running, "started"),
            span=3,
            size=16,
            empty="–",
        ),
        stat(
            "Step",
            "Mean length of a step, that length divided by the length without the late ranks, and "
            "the time since any rank finished a step. All ranks take equally long: they wait for "
            "each other.",
            "s",
            (STEP, "takes"),
            (SLOWDOWN, "slowdown", TIMES, {"decimals": 2}, coloured_from(1.01, RED)),
            (f"{SINCE_LAST_STEP} > 10", "since the last", coloured_from(60, RED)),
            span=3,
            size=16,
            empty="–",
        ),
        stat(
            "Judged",
            "Share of the ranks that are judged, 0 if the job hangs or cannot be judged, and the "
            "reason. By join: the ranks compare their steps. By node: each exporter compares means "
            "of the ranks on its node, and finds little except a rank that is late all the time. "
            "Without either, the absence of alerts says nothing.",
            "percentunit",
            (f'label_replace({valid}, "by", "by $1", "judge", "(.+)")', "{{by}}"),
            (f"0 * {_words(reason, 'reason')}", "{{reason}}", ORANGE),
            (f"0 * {HUNG} unless {ON_JOB} {NOT_JUDGEABLE}", "it hangs"),
            span=2,
            limits=[("text", None), (ORANGE, 0.0), ("text", 0.995)],
            size=18,
            empty="–",
        ),
        alerts_panel("of this job", FIRING, f"{STATE} unless {ON_JOB} {FIRING}"),
    ]


# --- Whom the job waits for, whatever its state


def _besides_ranks(nobody: str) -> list[Line]:
    """Return what a job waits for besides single ranks; *nobody* is the series for "Nobody"."""
    down = f"topk by (cluster, job_id) ({NAMED}, {DOWN})"
    to_node = links.to_node(links.LABEL % "instance")
    missing = f"{_figure_as('ranks', MISSING)} unless {ON_JOB} {MISSING} == 1"
    all_silent = _figure_as("ranks", ALL_SILENT)
    return [
        _in("hung", f"{HUNG} unless {ON_JOB} {SUSPECT}", "all wait in a collective"),
        _in("exporter_down", down, "exporter of {{instance}}", ORANGE, to_node),
        _in("ranks_missing", f"{MISSING} == 1", "1 rank not seen", ORANGE),
        _in("ranks_missing", missing, "{{ranks}} ranks not seen", ORANGE),
        _in("ranks_missing", all_silent, "all {{ranks}} ranks are silent", ORANGE),
        _in("healthy", nobody, "Nobody", GREEN),
        _in("rotating", STATE, "a different rank in each step", ORANGE),
        _in("pause", STATE, "a single long stop", ORANGE),
        _in("shared", STATE, "all wait together", ORANGE),
        _in("starting", STATE, "not known yet", GREY),
        _in("not_judgeable|no_probe|stands_still|unused_gpus", STATE, "cannot be known", GREY),
        _in("finished", STATE, "–", GREY),
    ]


def _who() -> list[Line]:
    late, of_rank, of_node = "straggler|slow_node", TOLD % 'rank!=""', TOLD % 'rank=""'
    ranks, nodes, silent = (
        f"topk by (cluster, job_id) ({NAMED}, {series})"
        for series in (in_short(of_rank), in_short(of_node), SILENT)
    )
    duty = f'rank:rankskew_told_gpus_lost:sum{{kind="duty",{JOB}}}'
    on_duty = f"topk by (cluster, job_id) ({NAMED}, last_over_time({duty}[1m]))"
    more = _figure_as("more", f"count by (cluster, job_id) ({of_rank}) - {NAMED} > 0")
    fault = _words(labelled(SUSPECT_FAULT, "cause", " · GPU {{fault}}"), "cause")
    suspect = f"{SUSPECT} * {ON_RANK} group_left (cause) {fault} or {ON_RANK} {SUSPECT}"
    to_node = links.to_node(links.LABEL % "instance")
    return [
        _in(late, ranks, "rank {{rank}} · {{stage}} · {{cause}}", TO_RANK),
        _in(late, nodes, "node {{nodename}} · {{stage}} · {{cause}}", to_node),
        _in(late, more, "and {{more}} more"),
        _in(late, on_duty, "rank {{rank}} · {{stage}}", TO_RANK),
        _in("hung", suspect, "rank {{rank}} · {{stage}}{{cause}}", TO_RANK),
        _in("ranks_missing", silent, "rank {{rank}} is silent", ORANGE, TO_RANK),
        *_besides_ranks(STATE),
    ]


def _waited_for() -> Panel:
    """Return a row for each rank that is late, stuck or silent, and for what else is waited for."""
    lost = f"(0 * {LATE} + {RANK} group_left () {LOST})"
    stuck, silent = labelled(STUCK % OUTSIDE, "kind", "stuck"), labelled(SILENT, "kind", "silent")
    # In this order: suspects of a hang, late ranks by their cost, ranks that merely stand still.
    ranks = (
        f"1e9 * {labelled(SUSPECT, 'kind', 'job hangs')}"
        f" or {RANK} 1e6 * (1 + {lost}) or {RANK} 1e6 * {LATE}"
        f" or {RANK} topk({STANDING_SHOWN}, {stuck} or {silent})"
    )
    rows = [
        labelled(ranks, "who", "rank {{rank}}"),
        *(
            labelled(series, "who", words)
            for series, words, *_ in _besides_ranks(f"{STATE} unless {ON_JOB} ({ranks})")
        ),
    ]
    hung = f"0 * {SUSPECT} + {ON_JOB} group_left () "
    since = f" or {RANK} ".join(
        [
            _ago(f"({hung}{HUNG})"),
            f"({LATE_SINCE} and {RANK} {LATE})",
            _ago(SILENT),
            _ago(f"({STUCK % ''})"),
        ]
    )
    why = f"{_hang_causes()} or {explained(CAUSE)} and {RANK} {LATE}"
    gpu = f"{GPU_INDEX} and on (cluster, job_id, rank, instance) ({ranks})"
    return table(
        "Who the job waits for",
        "Every rank that is late, for which the job hangs, that has been in a stage other than "
        "sync for ten seconds or more (stuck), or is silent: where, since when, how much longer it "
        "takes than its peers, the GPUs that wait for it, the cause, and what to do first.",
        [
            f"max by (who, rank, instance, stage, kind) ({' or '.join(rows)})",
            _by_who(f"{LOST} or {RANK} ({hung}{WORLD})", "sum"),
            _by_who(LATE),
            _by_who(f"({since}) and {RANK} ({ranks})"),
            _by_who(gpu, "max", "gpu"),
            _by_who(why, "max", "why", "sentence", "first_action"),
        ],
        {
            "who": column("Who", width=130) | links.to_rank(links.FIELD % "rank"),
            "instance": column("Node", width=125) | links.to_node(links.CELL),
            "gpu": column("GPU", width=50),
            "kind": column("Kind", width=100) | WORD_OF_KIND,
            "stage": column("Stage", width=85),
            "Value #B": column("GPUs lost", "none", 2, RED, width=85),
            "Value #C": column("Slower by", "percentunit", 0, width=85),
            "Value #D": column("Since", "dateTimeFromNow", width=120),
            "why": column("Cause", width=150) | WHY_IN_WORDS | WRAP,
            "sentence": column("Because") | WRAP,
            "first_action": column("Do first") | WRAP,
        },
        order="Value #A",
        hidden=("rank",),
        key="who",
        height=7,
        empty="Nobody is known",
    )


def _by_who(series: str, how: str = "max", *labels: str) -> str:
    return f"{how} by ({', '.join(('who', *labels))}) ({labelled(series, 'who', 'rank {{rank}}')})"


def _hang_causes() -> str:
    """Return the rank for which a job hangs with the fault of its GPU, or how to see its stack."""
    of_rank = "cluster, job_id, rank, instance"
    process = f"topk by ({of_rank}) (1, rankskew_rank_info{{{JOB}}})"
    alive = SUSPECT.replace("{", '{stage!~"frozen|finished",', 1)
    with_pid = f"{alive} * on ({of_rank}) group_left (pid) {process}"
    fault = _words(labelled(SUSPECT_FAULT, "why", "GPU {{fault}}"), "why")
    stack = labelled(with_pid, "first_action", "`py-spy dump --pid {{pid}}`")
    return f"{fault} or {ON_RANK} {stack}"


# --- The loss, and where the ranks are


def _lost_over_time() -> Panel:
    stage_of_rank = "on (cluster, peer_group, rank, stage)"
    lately = f"max_over_time(%s[1h]{AT_END}) > 0.02"
    costliest = f"topk(10, {lately % LOST_BY_STAGE})"
    kinds = {name: kind for name, kind in KINDS.items() if name not in ("persistent", "rotating")}
    return timeseries(
        "GPUs lost over time",
        "GPUs that wait for each late rank, in the colour of the stage in which it falls behind; "
        "in a hang, all. Known only if ranks compare their steps: rotating (pale) and noise, a "
        "different rank in each step; stops of one rank or of all; unequal peer groups, a heavier "
        "stage; communication, the wait of even the rank that waits least.",
        "none",
        (
            f"sum by (cluster, rank, stage) ({LOST_BY_STAGE} and {stage_of_rank} {costliest})",
            "rank {{rank}} {{stage}}",
            TO_RANK,
        ),
        (
            f"sum by (cluster) ({LOST_BY_STAGE} unless {stage_of_rank} {costliest}) > 0.05",
            "other late ranks",
            RED,
        ),
        (
            f"{ROTATING_BY_STAGE} and on (cluster, stage) {lately % ROTATING_BY_STAGE}",
            "rotating {{stage}}",
            {"custom.fillOpacity": 25},
        ),
        *((LOST_BY_KIND % name, kind.name) for name, kind in kinds.items()),
        (f"0 * {STATE} unless {ON_JOB} {LOST_BY_KIND % 'common|hung'}", "rest not known", GREY),
        stack={f" {stage}$": colour for stage, colour in STAGE_COLOURS.items()}
        | {kind.name: kind.colour for kind in kinds.values()},
        empty=UNKNOWN_JOB,
    )


def _ranks() -> Panel:
    still = f"count by (cluster, job_id) ({LATE} or {RANK} {STUCK % ''})"
    unprobed = f"count by (cluster, job_id) ({GPU_INDEX}) unless {ON_JOB} ({WORLD})"
    finished = f'job_state:rankskew_ranks:sum{{state="finished",{JOB}}}'
    return timeseries(
        "Ranks over time",
        "Number of ranks that step and are not late (moving), that are late, that have been in one "
        "stage for ten seconds or more, that are silent, have finished or are not seen. In a hang, "
        "all ranks except the culprit are in sync.",
        "none",
        (f"{BEATING} - ({still} or 0 * {BEATING}) > 0", "moving", GREEN),
        (f"count by (cluster, job_id) ({LATE})", "late", RED),
        (f"count by (cluster, stage) ({STUCK % ''} unless {RANK} {LATE})", "in {{stage}}"),
        (f"count by (cluster, job_id) ({SILENT}) or {ALL_SILENT}", "silent", GREY),
        (f"{finished} > 0", "finished", shades(GREY)),
        (MISSING, "not seen", ORANGE),
        (unprobed, "without the probe", shades(GREY)),
        stack={f"^in {stage}$": colour for stage, colour in STAGE_COLOURS.items()},
        points=POINTS_OF_ALL,
        decimals=0,
        empty=UNKNOWN_JOB,
    )


def _state_over_time() -> Panel:
    return timeline(
        "State over time",
        "The state of the job at each time, in the words and colours of the figure above. It "
        "shows how long an incident lasted, and what came before it.",
        tuple(STATES.values()),
        (f"max by (cluster, job_id) ({coded(STATE, 'state', STATES)})", "state"),
        empty=UNKNOWN_JOB,
    )


# --- How the late rank differs from its peers


def _differences() -> list[Panel]:
    return [
        _against_peers(
            "Own work per step",
            "Time per step without the wait in collectives: ranks that were late in the last hour, "
            "the slowest of the others, and the median. The late rank works longest.",
            ("rankskew_busy_seconds_total", JOB),
            "topk",
            NO_STEP,
        ),
        _against_peers(
            "Wait per step",
            "Time per step that a rank waits in collectives: ranks that were late in the last "
            "hour, the others that wait least, and the median. The culprit waits least.",
            ("rankskew_stage_seconds_total", f'stage="sync",{JOB}'),
            "bottomk",
            "No wait is measured, or no step was finished",
        ),
    ]


def _against_peers(title: str, text: str, counter: tuple[str, str], end: str, empty: str) -> Panel:
    """Draw late ranks red, the next ones to become late in blue and the median dashed.

    *end* is where late ranks are: topk or bottomk.
    """
    seconds = per_step(*counter, JOB)
    others = f"{end}({OTHERS_SHOWN}, {per_step(*counter, JOB, AT_END)} unless {RANK} {LATE_LATELY})"
    median = f"quantile by (cluster, peer_group) (0.5, {seconds} unless {RANK} {LATE})"
    return timeseries(
        title,
        text,
        "s",
        (f"{seconds} and {RANK} {LATE_LATELY}", "rank {{rank}} (late)", RED, line(3) | TO_RANK),
        (f"{seconds} and {RANK} {others}", "rank {{rank}}", shades(BLUE) | TO_RANK),
        (median, "median of peer group {{peer_group}}", GREY, line(2, dashed=True)),
        points=POINTS_OF_ALL,
        empty=empty,
    )


# --- The run so far, and what its ranks run


def _run() -> list[Panel]:
    def rate(counter: str) -> str:
        return f"sum by (cluster) (rate({counter}{{{JOB}}}[$__rate_interval]))"

    grown = f"max by (cluster, scope, stage, in_common) (rankskew_job_change_ratio{{{JOB}}})"
    return [
        timeseries(
            "Step time and slowdown",
            "The mean length of a step, and (on the right) that length divided by the length "
            "without the late ranks. While all ranks take longer than they did, the stage that "
            "grew is a line of its own: how many times as long as before it takes.",
            "s",
            (STEP, "step", GREY, line(2)),
            (SLOWDOWN, "slowdown", coloured_from(1.01, RED) | line(2) | RIGHT | TIMES | {"min": 1}),
            (grown, "{{stage}} ({{scope}} {{in_common}})", ORANGE, line(2) | RIGHT | TIMES),
            empty=NO_STEP,
        ),
        timeseries(
            "Throughput",
            "Samples and (on the right) tokens that all ranks together train on per second, "
            "padding included. Only known if the training loop reports them.",
            "short",
            (rate("rankskew_samples_total"), "samples/s", GREEN, line(2)),
            (rate("rankskew_tokens_total"), "tokens/s", BLUE, line(2) | RIGHT),
            empty="The training loop reports neither samples nor tokens",
        ),
    ]


def _runtimes() -> Panel:
    # Grafana calls the value of a single query either of these.
    count = column("Ranks", "none", 0, width=70)
    named = {"torch": "torch", "cuda": "CUDA", "nccl": "NCCL", "python": "Python"}
    named |= {"driver": "Driver", "env_hash": "Environment", "device_count": "GPUs"}
    return table(
        "Runtimes",
        "Every kind of rank now: its versions, the hash of its environment variables of NCCL and "
        "torch, the GPUs that its process sees, and how many ranks are like that. Two rows after a "
        "restart: a node was left out of an upgrade.",
        [RUNTIMES],
        {"Value": count, "Value #A": count}
        | {label: column(title, "string") for label, title in named.items()},
        order="Value #A",
        key="env_hash",
        empty="No rank reports its versions",
    )
