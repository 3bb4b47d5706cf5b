"""The job dashboard: which ranks are late, in which stage, since when, at what cost."""

from collections.abc import Callable
from typing import Any, Final

from dashboards.board import (
    JOB,
    JOB_VARIABLE,
    board,
    changes,
    events,
    firing,
    lifecycle,
    restarts,
)
from dashboards.panels import (
    CELL,
    FIELD,
    GREEN,
    LABEL,
    LATE_COLOUR,
    ORANGE,
    PEERS_COLOUR,
    POINTS_OF_ALL,
    STAGE_COLOURS,
    STATES,
    WAIT_COLOUR,
    Line,
    Look,
    Panel,
    coloured_from,
    column,
    fixed,
    heatmap,
    line,
    sentence,
    shades,
    stat,
    table,
    timeline,
    timeseries,
    to_node,
    to_rank,
)
from dashboards.shared_panels import (
    WHY_IN_WORDS,
    alerts_panel,
    coded,
    explained,
    faults_of,
    in_short,
    why_late,
)
from exporter.vocabulary.words import KINDS, REASONS

# A selector or an expression at the time of each sample (""), or at the range's end (AT_END).
Series = Callable[[str], str]

AT_END: Final = " @ end()"

# Two clusters behind one data source may have jobs of one name; it is empty without clusters.
ON_JOB: Final = "on (cluster, job_id)"
RANK: Final = "on (cluster, peer_group, rank)"

# How much slower than its peers each late rank is, with the kind and the stage of its lateness.
LATE: Final = f"rank:rankskew_late:ratio{{{JOB}}}"
LATE_SINCE: Final = f"(rankskew_late_since_timestamp_seconds{{{JOB}}} * 1000)"
LOST: Final = f"rank:rankskew_gpus_lost:sum{{{JOB}}}"
LOST_BY_STAGE: Final = f"rank_stage:rankskew_gpus_lost:sum{{{JOB}}}"
# The loss while a different rank is late in each step, by the stage in which that rank is late.
ROTATING_BY_STAGE: Final = f"job_stage:rankskew_gpus_lost:sum{{{JOB}}}"
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
SILENT: Final = f"rank:rankskew_silent_seconds:max{{{JOB}}}"
FIRING: Final = firing(JOB)
SINCE_LAST_STEP: Final = f"min by (cluster) (rankskew_node_last_step_age_seconds{{{JOB}}})"
ALL_LOST: Final = f"job:rankskew_gpus_lost:sum{{{JOB}}}"
WORLD: Final = f"job:rankskew_world_size:max{{{JOB}}}"
MISSING: Final = f"job:rankskew_ranks_missing:sum{{{JOB}}}"
STEP: Final = f"job:rankskew_step_seconds:max{{{JOB}}} unless {HUNG}"
SLOWDOWN: Final = f"job:rankskew_slowdown:max{{{JOB}}} unless {HUNG}"
NOT_JUDGEABLE: Final = f"job_reason:rankskew_not_judgeable:bool{{{JOB}}}"
RUNTIMES: Final = f"job_runtime:rankskew_ranks:count{{{JOB}}}"

# A job may have 16,384 ranks: a panel shows the costliest late ones and a few others, never all.
# They are chosen at the end of the range, so that a line is one rank from end to end.
LATE_LATELY: Final = f"topk(10, max_over_time({LOST}[1h]{AT_END}))"
OTHERS_SHOWN: Final = 3
LANES: Final = 20
# Half of them at each end, so that the panel shows every rank of a job that has no more.
RANKS_OF_HEATMAP: Final = 64
# There is room for this many names.
NAMED: Final = 2

# What stands where late ranks would, and the like.
NOBODY: Final = "No late rank is known"
NO_STEP: Final = "No step was finished"
NO_WAIT: Final = "No wait is measured, or no step was finished"
NOT_STUCK: Final = "No rank is known to be stuck"
NO_VERDICT: Final = "No rank of this job can be judged"
NO_VERSIONS: Final = "No rank reports its versions"

TIMES: Final[Look] = {"unit": "suffix:×"}
RIGHT: Final[Look] = {"custom.axisPlacement": "right"}
TO_RANK: Final = to_rank(LABEL % "rank")
MEDIAN: Final = fixed(PEERS_COLOUR) | line(2, dashed=True)


def job_dashboard() -> dict[str, Any]:
    """Return the dashboard of one training job."""
    return board(
        "job",
        "Which rank a training job waits for, in which stage, since when, and at what cost.",
        JOB,
        [JOB_VARIABLE],
        [*_figures(), _state_over_time(), *_losses(), _late_ranks(), why_late(JOB, NOBODY)],
        {
            "How the late rank differs from its peers": _differences(),
            "Is the job hanging?": _hang(),
            "The run so far": [*_ranks_over_time(), *_run()],
        },
        folded={
            "Input and work": _input(),
            "Configuration drift": _drift(),
        },
        annotations=[
            lifecycle(JOB),
            restarts(JOB),
            changes(JOB),
            events(f'rank="0",{JOB}'),  # It usually saves and evaluates; all start alike.
        ],
    )


# --- Expressions


def _per_second(counter: str, at: str, only: str = "") -> str:
    """Return the rate of a *counter* of every rank; *only* is a further selector."""
    return f"rate({counter}{{{only}{JOB}}}[$__rate_interval]{at})"


def _per_step(seconds: str, at: str = "") -> str:
    """Return the increase of a counter of every rank, per step."""
    window = f"[$__rate_interval]{at}"
    return (
        f"(rate({seconds}{window}) / ignoring (phase, stage) group_left ()"
        f" (rate(rankskew_steps_total{{{JOB}}}{window}) > 0))"
    )


def _busy(at: str = "") -> str:
    """Return the own work per step of every rank."""
    return _per_step(f"rankskew_busy_seconds_total{{{JOB}}}", at)


def _wait(at: str = "") -> str:
    """Return the wait per step of every rank."""
    return _per_step(f'rankskew_stage_seconds_total{{stage="sync",{JOB}}}', at)


# The time per step of every rank in each stage of its own work.
STAGES: Final = _per_step(f'rankskew_stage_seconds_total{{stage!="sync",{JOB}}}')


def _late_now(series: str) -> str:
    """Return *series* of the ranks that are late now."""
    return f"{series} and {RANK} {LATE}"


def _peers(series: str, each: str = "") -> str:
    """Return the median of *series* over the ranks of a peer group that are not late.

    *each* is a further label to keep, with a comma before it.
    """
    return f"quantile by (cluster, peer_group{each}) (0.5, {series} unless {RANK} {LATE})"


def _beside_late(series: str) -> str:
    """Return *series* of a peer group once for each of its late ranks, labelled with the rank."""
    return f"sum by (cluster, rank) (0 * {LATE} + on (cluster, peer_group) group_left () {series})"


def _words(series: str, label: str) -> str:
    """Return *series* with spaces for the first two underscores in a *label*."""
    for _ in range(2):
        series = f'label_replace({series}, "{label}", "$1 $2", "{label}", "([^_]+)_(.+)")'
    return series


def _figure_as(label: str, series: str) -> str:
    """Return the value of *series* as a *label*, to write it into a sentence."""
    return f'count_values by (cluster, job_id) ("{label}", {series})'


def _in_state(series: str, states: str) -> str:
    """Return *series* while the job is in one of *states*, a regular expression."""
    chosen = STATE.replace("{", f'{{state=~"{states}",', 1)
    return f"({series}) and {ON_JOB} {chosen}"


def _ago(seconds: str) -> str:
    return f"(time() - {seconds}) * 1000"


# --- The figures


def _figures() -> list[Panel]:
    share = f"({ALL_LOST} / {WORLD})"
    to_blame = _in_state(share, "hung|slow_node|straggler|rotating")
    late = f"{LATE_SINCE} and {RANK} rank:rankskew_told_gpus_lost:sum{{{JOB}}}"
    since: list[tuple[str, str, str, Look]] = [
        (f"min by (cluster, job_id) ({late})", "straggler|slow_node", "late", fixed(LATE_COLOUR)),
        (_ago(HUNG), "hung", "hung", fixed(LATE_COLOUR)),
        (
            _ago(f"max by (cluster, job_id) ({SILENT})"),
            "ranks_missing",
            "silent",
            fixed(ORANGE),
        ),
        (_ago(f"job:rankskew_starting_seconds:max{{{JOB}}}"), "starting", "began", {}),
        (
            _ago(f"job:rankskew_run_seconds:max{{{JOB}}}"),
            "healthy|rotating|not_judgeable",
            "started",
            {},
        ),
    ]
    judged = f"job:rankskew_coverage:ratio{{{JOB}}}"
    # The first of several explains the others.
    reason = f"bottomk(1, {coded(NOT_JUDGEABLE, 'reason', REASONS)})"
    sourced = f"{judged} * {ON_JOB} group_left (judge) {JUDGE} or {ON_JOB} {judged}"
    valid = f"({sourced}) unless {ON_JOB} ({HUNG} or {NOT_JUDGEABLE})"
    return [
        sentence(
            "State",
            "What the job is doing, the most urgent first: hung, exporter down, ranks missing, "
            "starting, not judgeable, slow node, straggler, rotating (a different rank is late "
            "in each step), healthy, finished, or without the probe.",
            3,
            24,
            (STATE, "{{state}}"),
            (f"absent({STATE})", "Unknown job", fixed(PEERS_COLOUR)),
            by_name={
                state: {"displayName": word} | fixed(colour)
                for state, (word, colour) in STATES.items()
            },
        ),
        sentence(
            "GPUs lost",
            "GPUs that do nothing but wait for any reason, communication included, out of all "
            "GPUs of the job; mean of the last minute. In a hang all of them. Coloured if ranks "
            "are to blame, from 5 % of the job on in red.",
            3,
            24,
            (
                f"({to_blame} or 0 * {share})"
                f" * {ON_JOB} group_left (lost) {_figure_as('lost', f'round({ALL_LOST}, 0.1)')}"
                f" * {ON_JOB} group_left (all) {_figure_as('all', WORLD)}",
                "{{lost}} of {{all}}",
            ),
            (f"0 * {STATE} unless {ON_JOB} {share}", "–"),
            limits=[("text", None), (ORANGE, 0.001), (LATE_COLOUR, 0.05)],
        ),
        stat(
            "Cost / h",
            "US$ per hour for GPUs that do nothing but wait, for any reason: GPUs lost times the "
            "price of a GPU hour; nothing until you record one.",
            "currencyUSD",
            2,
            (f"job:rankskew_lost_cost_per_hour:sum{{{JOB}}}", "lost per hour"),
            decimals=2,
            size=20,
            mode="value",
            empty="–",
        ),
        sentence(
            "Who",
            "Whom the job waits for. Late ranks: the two costliest with the stage in which they "
            "fell behind and the cause, as their exporters found it. A slow node: its name "
            "instead. In a hang: the rank that is not in the collective, where it is, and a fault "
            "of its GPU. Grey: nobody can know. Click for more.",
            6,
            20,
            *_who(),
            limits=[(LATE_COLOUR, None)],
        ),
        stat(
            "Since",
            "When the ranks became late, by their nodes' clocks, when the hang or the silence "
            "began, or else when the job started.",
            "dateTimeFromNow",
            2,
            *((_in_state(series, states), legend, look) for series, states, legend, look in since),
            size=12,
            empty="–",
        ),
        stat(
            "Step",
            "Mean time from one release to the next, that time divided by the time without the "
            "late ranks, and the time since any rank finished a step. A step takes equally long "
            "on every rank, so the step time shows that a job is slow, but never which rank "
            "causes it.",
            "s",
            3,
            (STEP, "takes"),
            (SLOWDOWN, "slowdown", TIMES, {"decimals": 2}, coloured_from(1.01, LATE_COLOUR)),
            (f"{SINCE_LAST_STEP} > 10", "since the last", coloured_from(60, LATE_COLOUR)),
            size=16,
            empty="–",
        ),
        stat(
            "Judged",
            "Share of the job's ranks that are judged, 0 if it hangs or cannot be judged, and "
            "the reason. By join: the ranks compare their steps one by one. By node: each exporter "
            "compares means over half a minute of the ranks on its own node, which shows little "
            "except a rank that is late all the time. Without either, the absence of alerts says "
            "nothing.",
            "percentunit",
            2,
            (f'label_replace({valid}, "by", "by $1", "judge", "(.+)")', "{{by}}"),
            (f"0 * {_words(reason, 'reason')}", "{{reason}}", fixed(ORANGE)),
            (f"0 * {HUNG} unless {ON_JOB} {NOT_JUDGEABLE}", "it hangs"),
            limits=[("text", None), (ORANGE, 0.0), ("text", 0.995)],
            size=18,
            empty="–",
        ),
        alerts_panel("of this job", FIRING, f"{STATE} unless {ON_JOB} {FIRING}"),
    ]


def _who() -> list[Line]:
    """Return whom the job waits for, whatever its state."""
    ranks, nodes = (
        f"topk by (cluster, job_id) ({NAMED}, {in_short(TOLD % each)})"
        for each in ('rank!=""', 'rank=""')
    )
    told = TOLD % 'rank!=""'
    more = _figure_as("more", f"count by (cluster, job_id) ({told}) - {NAMED} > 0")
    down = f"topk by (cluster, job_id) ({NAMED}, node:rankskew_exporter_down:group{{{JOB}}})"
    on_rank = "on (cluster, job_id, rank)"
    gpu = faults_of(SUSPECT, JOB)
    broken = f'label_replace({gpu}, "cause", " · GPU $1", "fault", "(.+)")'
    with_gpu = f"{SUSPECT} * {on_rank} group_left (cause) {_words(broken, 'cause')}"
    # The number in words: 1 rank, 4 ranks.
    many = f'label_replace({_figure_as("ranks", MISSING)}, "ranks", "$1 ranks", "ranks", "(.+)")'
    missing = f'label_replace({many}, "ranks", "1 rank", "ranks", "1 ranks")'
    # How many ranks a job had of which none reports any more.
    counted = f'sum by (cluster, job_id) (rankskew_node_ranks{{state="%s",{JOB}}})'
    silent, beating = counted % "silent", counted % "beating"
    all_silent = _figure_as("ranks", f"({silent} > 0 unless {ON_JOB} {beating} > 0)")
    to_its_node = to_node(LABEL % "instance")
    late = "straggler|slow_node"
    named: list[tuple[str, str, str, Look]] = [
        (ranks, late, "rank {{rank}} · {{stage}} · {{cause}}", TO_RANK),
        (nodes, late, "node {{nodename}} · {{stage}} · {{cause}}", to_its_node),
        (more, late, "and {{more}} more", {}),
        (
            f"({with_gpu}) or {on_rank} {SUSPECT}",
            "hung",
            "rank {{rank}} · {{stage}}{{cause}}",
            TO_RANK,
        ),
        (f"{HUNG} unless {ON_JOB} {SUSPECT}", "hung", "all wait in a collective", {}),
        (down, "exporter_down", "exporter of {{instance}}", fixed(ORANGE) | to_its_node),
        (
            f"topk by (cluster, job_id) ({NAMED}, {SILENT})",
            "ranks_missing",
            "rank {{rank}} is silent",
            fixed(ORANGE) | TO_RANK,
        ),
        (missing, "ranks_missing", "{{ranks}} not seen", fixed(ORANGE)),
        (all_silent, "ranks_missing", "all {{ranks}} ranks are silent", fixed(ORANGE)),
        (STATE, "healthy", "Nobody", fixed(GREEN)),
        (STATE, "rotating", "a different rank in each step", fixed(ORANGE)),
        (STATE, "starting", "not known yet", fixed(PEERS_COLOUR)),
        (STATE, "not_judgeable|no_probe", "cannot be known", fixed(PEERS_COLOUR)),
        (STATE, "finished", "–", fixed(PEERS_COLOUR)),
    ]
    return [(_in_state(series, states), legend, look) for series, states, legend, look in named]


def _state_over_time() -> Panel:
    return timeline(
        "State over time",
        "The state of the job at each time, in the words and colours of the figure above. It "
        "shows how long an incident lasted, and what came before it.",
        24,
        3,
        tuple(STATES.values()),
        (f"max by (cluster, job_id) ({coded(STATE, 'state', STATES)})", "state"),
    )


# --- The loss: by kind of waiting, by rank and stage, and for each late rank


def _losses() -> list[Panel]:
    stage_of_rank = "on (cluster, peer_group, rank, stage)"
    lately = f"max_over_time(%s[1h]{AT_END}) > 0.02"
    return [
        timeseries(
            "GPUs lost, by kind",
            "Late ranks: the same ranks most of the time. No stable leader: a different rank in "
            "each step, as with uneven sequence lengths. Unequal peer groups: a heavier pipeline "
            "stage. Communication: the wait that even the rank with the least wait has. While a "
            "job hangs, all its GPUs are lost. The kinds are only known if the ranks compare "
            "their steps.",
            "none",
            12,
            *(
                (f'job_kind:rankskew_gpus_lost:sum{{kind="{name}",{JOB}}}', kind.name)
                for name, kind in KINDS.items()
            ),
            stack={kind.name: kind.colour for kind in KINDS.values()},
            empty=NO_VERDICT,
        ),
        timeseries(
            "GPUs lost, by rank and stage",
            "The cost of each late rank, in the stage in which it falls behind; the colour shows "
            "the stage, as in the other panels. Pale: the loss to a different rank in each step; "
            "only known if the ranks compare their steps.",
            "none",
            12,
            (
                f"sum by (cluster, rank, stage) ({LOST_BY_STAGE} and {stage_of_rank}"
                f" topk(10, {lately % LOST_BY_STAGE}))",
                "rank {{rank}} {{stage}}",
                TO_RANK,
            ),
            (
                f"{ROTATING_BY_STAGE} and on (cluster, stage) {lately % ROTATING_BY_STAGE}",
                "no stable leader {{stage}}",
                {"custom.fillOpacity": 25},
            ),
            stack={f" {stage}$": colour for stage, colour in STAGE_COLOURS.items()},
            empty=NOBODY,
        ),
    ]


def _late_ranks() -> Panel:
    return table(
        "Late ranks",
        "Every late rank: where it runs, in which stage it fell behind, the kind of lateness "
        "and its size as a share of its peers' time, the cause, the cost, and its own work "
        "and wait per step compared with the median of its peers. The late rank works "
        "longest and waits least.",
        24,
        [
            LATE,
            f"sum by (cluster, rank) ({LOST})",
            f"sum by (cluster, rank) ({_late_now(_busy())})",
            _beside_late(_peers(_busy())),
            f"sum by (cluster, rank) ({_late_now(_wait())})",
            _beside_late(_peers(_wait())),
            f"min by (cluster, rank) ({_late_now(LATE_SINCE)})",
            f"max by (cluster, rank, gpu) ({_late_now(GPU_INDEX)})",
            f"max by (cluster, rank, why) ({explained(CAUSE)})",
        ],
        {
            "rank": column("Rank", width=60) | to_rank(CELL),
            "nodename": column("Node", width=150) | to_node(FIELD % "instance"),
            "stage": column("Late in", width=90),
            "kind": column("How", width=90),
            "Value #A": column("Slower by", "percentunit", 0, width=85),
            "Value #B": column("GPUs lost", "none", 2, LATE_COLOUR, width=85),
            "Value #G": column("Late since", "dateTimeFromNow", width=125),
            "why": column("Cause") | WHY_IN_WORDS,
            "Value #C": column("Own work", "s", 1, width=85),
            "Value #D": column("Peers' work", "s", 1, width=95),
            "Value #E": column("Wait", "s", 1, width=85),
            "Value #F": column("Peers' wait", "s", 1, width=95),
            "gpu": column("GPU", width=55),
        },
        order="Value #B",
        hidden=("instance",),
        key="rank",
        height=5,
        empty=NOBODY,
    )


# --- How the late rank differs from its peers


def _against_peers(
    title: str,
    text: str,
    unit: str,
    series: Series,
    choose: str,
    empty: str,
) -> Panel:
    """Draw late ranks red, the next ones to become late in blue and the median dashed.

    *choose* is the end at which late ranks are: topk or bottomk.
    """
    others = f"{choose}({OTHERS_SHOWN}, {series(AT_END)} unless {RANK} {LATE_LATELY})"
    return timeseries(
        title,
        text,
        unit,
        12,
        (
            f"{series('')} and {RANK} {LATE_LATELY}",
            "rank {{rank}} (late)",
            fixed(LATE_COLOUR) | line(3) | TO_RANK,
        ),
        (f"{series('')} and {RANK} {others}", "rank {{rank}}", shades(WAIT_COLOUR) | TO_RANK),
        (_peers(series("")), "median of peer group {{peer_group}}", MEDIAN),
        points=POINTS_OF_ALL,
        empty=empty,
    )


def _differences() -> list[Panel]:
    stage = "on (cluster, peer_group, stage)"
    costliest = f"topk(1, {LOST})"
    its_group = f"({STAGES} and on (cluster, peer_group) {costliest})"
    return [
        timeseries(
            "Late stage: late rank and its peers",
            "Seconds per step in the stage in which each late rank fell behind, and the median of "
            "the ranks in its peer group that are not late. Drawn only while a rank is late.",
            "s",
            12,
            (
                f"{STAGES} and on (cluster, peer_group, rank, stage) {LATE}",
                "rank {{rank}} {{stage}}",
                fixed(LATE_COLOUR) | line(3),
            ),
            (
                _peers(f"({STAGES} and {stage} {LATE})", ", stage"),
                "median of its peers, {{stage}}",
                MEDIAN,
            ),
            empty=NOBODY,
        ),
        table(
            "The costliest late rank, by stage",
            "Every stage of a step of the rank that costs most, and the median of its peers that "
            "are not late. Start with the stage that exceeds the median most.",
            12,
            [
                f"sum by (cluster, stage) ({STAGES} and {RANK} {costliest})",
                f"sum by (cluster, stage) ({_peers(its_group, ', stage')})",
                f"sum by (cluster, stage) ({LOST_BY_STAGE} and {RANK} {costliest})",
            ],
            {
                "stage": column("Stage", width=110),
                "Value #A": column("Late rank", "s", 1, width=110),
                "Value #B": column("Its peers", "s", 1, width=110),
                "Value #C": column("GPUs lost", "none", 2, LATE_COLOUR),
            },
            order="Value #C",
            key="stage",
            height=8,
            empty=NOBODY,
        ),
        _against_peers(
            "Own work per step",
            "Time per step without the wait in collectives: ranks that were late in the last hour, "
            "the slowest of the others, and the median. The late rank works longest.",
            "s",
            _busy,
            "topk",
            NO_STEP,
        ),
        _against_peers(
            "Wait per step",
            "Time per step that a rank waits in collectives: ranks that were late in the last "
            "hour, the others that wait least, and the median. The culprit waits least.",
            "s",
            _wait,
            "bottomk",
            NO_WAIT,
        ),
    ]


def _hang() -> list[Panel]:
    """Return where every rank is when nothing moves."""
    # Only exposed after ten seconds in one stage. A silent rank's last report is outdated.
    stuck = f"rankskew_stage_elapsed_seconds{{%s{JOB}}} unless {RANK} {SILENT}"
    outside = stuck % 'stage!="sync",'
    silent = f'label_replace({SILENT}, "stage", "silent", "", "")'
    hung = f"{SUSPECT} * on (cluster) group_left () {HUNG}"
    return [
        timeseries(
            "Where the ranks are stuck",
            "Number of ranks that have been in one stage for ten seconds or more, or are silent. "
            "In a hang, all ranks except the culprit are in sync.",
            "none",
            7,
            (f"count by (cluster, stage) ({stuck % ''})", "{{stage}}"),
            (f"count by (cluster) ({SILENT})", "silent", fixed(PEERS_COLOUR)),
            stack={f"^{stage}$": colour for stage, colour in STAGE_COLOURS.items()},
            decimals=0,
            empty=NOT_STUCK,
        ),
        table(
            "Stuck outside sync",
            "Ranks that have been in a stage other than sync for ten seconds or more, or are "
            "silent, and how long the job has hung because of them. A stopped process is only "
            "silent.",
            10,
            [f"topk(20, {outside} or {silent})", f"max by (cluster, rank) ({hung})"],
            {
                "rank": column("Rank", width=60) | to_rank(CELL),
                "instance": column("Node", width=170) | to_node(CELL),
                "stage": column("Stage", width=90),
                "Value #A": column("For", "s", 0, width=80),
                "Value #B": column("Job hangs for", "s", 0),
            },
            order="Value #A",
            key="rank",
            height=8,
            empty=NOT_STUCK,
        ),
        timeseries(
            "Time since the last activity",
            "Time since any rank finished a step, and since the last report of the rank that has "
            "been silent longest, each measured on its own node.",
            "s",
            7,
            (
                SINCE_LAST_STEP,
                "last step of any rank",
                coloured_from(60, LATE_COLOUR) | line(2),
            ),
            (
                f"max by (cluster) ({SILENT})",
                "longest silent rank",
                fixed(WAIT_COLOUR) | line(2),
            ),
        ),
    ]


# --- The run so far


def _ranks_over_time() -> list[Panel]:
    stage = f"max by (cluster, peer_group, rank) ({coded(LATE, 'stage', STAGE_COLOURS)})"
    half = RANKS_OF_HEATMAP // 2
    ends = f"(topk({half}, {_wait(AT_END)}) or bottomk({half}, {_wait(AT_END)}))"
    return [
        timeline(
            "Late ranks over time, by stage",
            f"The {LANES} ranks that cost most in the last hour of the range, each in the colour "
            "of the stage in which it was late; empty while it kept up. One long bar is a fault "
            "of a rank, many short ones are a different rank each time.",
            12,
            10,
            tuple(STAGE_COLOURS.items()),
            (
                f"{stage} and {RANK} topk({LANES}, max_over_time({LOST}[1h]{AT_END}))",
                "rank {{rank}}",
                TO_RANK,
            ),
            empty="No late rank was seen",
        ),
        heatmap(
            "Wait per step, by rank",
            f"Time per step that each rank waits in collectives; in a job of more than "
            f"{RANKS_OF_HEATMAP} ranks, the {half} that wait most and the {half} that wait least. "
            "A pale row among dark ones is the rank that the others wait for.",
            "s",
            12,
            "Blues",
            (f"{_wait()} and {RANK} {ends}", "rank {{rank}}"),
            empty=NO_WAIT,
        ),
    ]


def _run() -> list[Panel]:
    def rate(counter: str) -> str:
        return f"sum by (cluster) (rate({counter}{{{JOB}}}[$__rate_interval]))"

    grown = f"max by (cluster, scope, stage, in_common) (rankskew_job_change_ratio{{{JOB}}})"
    judged = "healthy|rotating|straggler|slow_node"
    nobody = _in_state(f"0 * job:rankskew_ranks:sum{{{JOB}}}", judged)
    resets = f"resets(job:rankskew_run_seconds:max{{{JOB}}}[$__rate_interval])"
    return [
        timeseries(
            "Efficiency",
            "Share of the job's GPUs that did not merely wait, over the run: 1 minus GPUs lost "
            "divided by all GPUs. Communication counts as lost; a hang is 0.",
            "percentunit",
            6,
            (f"1 - {ALL_LOST} / {WORLD}", "efficiency", fixed(GREEN) | line(2)),
            max=1,
            empty=NO_VERDICT,
        ),
        timeseries(
            "Step time and slowdown",
            "The mean length of a step, and (on the right) that length divided by the length "
            "without the late ranks. While all ranks take longer than they did, the stage that "
            "grew is a line of its own: how many times as long as before it takes.",
            "s",
            6,
            (STEP, "step", fixed(PEERS_COLOUR) | line(2)),
            (
                SLOWDOWN,
                "slowdown",
                coloured_from(1.01, LATE_COLOUR) | line(2) | RIGHT | TIMES | {"min": 1},
            ),
            (
                grown,
                "{{stage}} ({{scope}} {{in_common}})",
                fixed(ORANGE) | line(2) | RIGHT | TIMES,
            ),
            empty=NO_STEP,
        ),
        timeseries(
            "Throughput",
            "Samples and (on the right) tokens that all ranks together train on per second, "
            "padding included. Only known if the training loop reports them.",
            "short",
            6,
            (rate("rankskew_samples_total"), "samples/s", fixed(GREEN) | line(2)),
            (rate("rankskew_tokens_total"), "tokens/s", fixed(WAIT_COLOUR) | line(2) | RIGHT),
            empty="The training loop reports neither samples nor tokens",
        ),
        timeseries(
            "What changed",
            "Steps in these lines are changes: how many ranks are late or not seen, how many "
            "kinds of ranks there are besides the first (other versions or settings), and "
            "restarts of the job.",
            "none",
            6,
            (
                f"count by (cluster) ({LATE}) or sum by (cluster) ({nobody})",
                "late ranks",
                fixed(LATE_COLOUR) | line(2),
            ),
            (MISSING, "ranks not seen", fixed(ORANGE) | line(2)),
            (
                f"count by (cluster) ({RUNTIMES}) - 1",
                "other runtimes",
                fixed("#B877D9") | line(2),
            ),
            (f"{resets} > 0", "restarts", fixed(PEERS_COLOUR) | line(3)),
            decimals=0,
            custom={"axisSoftMax": 4},
            empty="Nothing is known",
        ),
    ]


# --- What the ranks are given to do, and what they run


def _input() -> list[Panel]:
    def padding(at: str) -> str:
        tokens = _per_second("rankskew_tokens_total", at)
        return f"({_per_second('rankskew_padding_tokens_total', at)} / ({tokens} > 0))"

    data = f'rankskew_stage_seconds_total{{stage="data",{JOB}}}'
    return [
        _against_peers(
            "Time in data per step",
            "Time per step that a rank waits for its next batch. All ranks high: storage or "
            "preprocessing is too slow for the job. One high: that rank's input.",
            "s",
            lambda at: _per_step(data, at),
            "topk",
            NO_STEP,
        ),
        _against_peers(
            "Padding",
            "Share of each rank's tokens that is padding: computed, but useless. Sorting by "
            "length or packing brings it under a tenth.",
            "percentunit",
            padding,
            "topk",
            "The training loop reports no tokens",
        ),
    ]


def _drift() -> list[Panel]:
    # Grafana calls the value of a single query either of these.
    count = column("Ranks", "none", 0, width=70)
    runtime = "torch {{torch}} · driver {{driver}} · env {{env_hash}} · {{device_count}} GPUs"
    return [
        timeseries(
            "Ranks by runtime",
            "Ranks with the same versions, environment variables of NCCL and torch (as a hash) "
            "and number of GPUs. One colour: all are alike. Two after a restart: a node was left "
            "out of an upgrade.",
            "none",
            10,
            (f"topk(10, {RUNTIMES})", runtime),
            stack={},
            decimals=0,
            empty=NO_VERSIONS,
        ),
        table(
            "Runtimes",
            "Every kind of rank now: its versions, the hash of its environment, the GPUs that "
            "its process sees, and how many ranks are like that.",
            14,
            [RUNTIMES],
            {
                "Value": count,
                "Value #A": count,
                "torch": column("torch", "string", width=90),
                "cuda": column("CUDA", "string", width=80),
                "nccl": column("NCCL", "string", width=90),
                "python": column("Python", "string", width=90),
                "driver": column("Driver", "string", width=90),
                "env_hash": column("Environment", "string", width=110),
                "device_count": column("GPUs"),
            },
            order="Value #A",
            key="env_hash",
            height=8,
            empty=NO_VERSIONS,
        ),
    ]
