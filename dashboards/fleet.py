"""The fleet dashboard: which jobs and nodes need somebody, most urgent first."""

from typing import Any, Final

from dashboards import links
from dashboards.board import CLUSTER, board, firing
from dashboards.panels import (
    AS_TEXT,
    RED,
    SEVERITIES,
    STATES,
    WRAP,
    Panel,
    column,
    mapped,
    marked,
    shades,
    stat,
    table,
    timeseries,
)
from dashboards.shared_panels import EXPORTERS, coded, faults_of, in_short, labelled
from exporter.vocabulary.words import REASONS

JOB: Final = "on (cluster, job_id)"
RANK: Final = "on (cluster, job_id, rank)"
EACH: Final = "by (cluster, job_id)"
NODE: Final = "by (cluster, instance)"

# One series per job or node, never per rank.
STATE: Final = f'job:rankskew_state:info{{state="%s",{CLUSTER}}}'
ANY_STATE: Final = f"job:rankskew_state:info{{{CLUSTER}}}"
LOST: Final = f"job:rankskew_gpus_lost:sum{{{CLUSTER}}}"
POWER: Final = f"job:rankskew_lost_power_watts:sum{{{CLUSTER}}}"
COST: Final = f"job:rankskew_lost_cost_per_hour:sum{{{CLUSTER}}}"
WORLD: Final = f"job:rankskew_world_size:max{{{CLUSTER}}}"
HUNG: Final = f"job:rankskew_hung:seconds{{{CLUSTER}}}"
SUSPECT: Final = f"rank_stage:rankskew_hang_suspect:group{{{CLUSTER}}}"
# GPUs of jobs without the probe. This reads a series per rank, so only instant queries may use it.
UNPROBED: Final = (
    f"count {EACH} (rank:rankskew_gpu:group{{{CLUSTER}}} and {JOB} "
    f'job:rankskew_state:info{{state=~"no_probe|stands_still|unused_gpus",{CLUSTER}}})'
)
# Only late ranks have these: a few per job.
LATE: Final = f"rank:rankskew_late:ratio{{{CLUSTER}}}"
RANK_LOST: Final = f"rank:rankskew_gpus_lost:sum{{{CLUSTER}}}"
CAUSE: Final = f"rankskew_late_cause_info{{{CLUSTER}}}"
# The costliest jobs at the end of the range, so that an area is one job from end to end.
COSTLIEST: Final = f"topk(10, max_over_time({LOST}[$__range] @ end()) > 0.05)"


def fleet_dashboard() -> dict[str, Any]:
    """Return the dashboard of all jobs and nodes."""
    return board(
        "fleet",
        "Every job and node: which of them lose GPUs, how much that costs, and where to look.",
        CLUSTER,
        [],
        [_figures(), [_states()], [_jobs()], [_nodes(), _alerts()], [_lost_over_time()], [_past()]],
        {},
    )


def _figures() -> list[Panel]:
    judged = f"sum({WORLD} and {JOB} {LOST})"
    # A subquery: if the rules are evaluated more often than once a minute, more samples add up.
    minutes = f"sum_over_time(sum({COST})[$__range:1m])"
    energy = f"sum_over_time(sum({POWER})[$__range:1m])"
    return [
        stat(
            "GPUs",
            "GPUs that jobs train on, and GPUs that all nodes have. A job with the probe counts "
            "with all its ranks; one without it with the GPUs on which its ranks were seen.",
            "none",
            (f"sum({WORLD} or {UNPROBED})", "in jobs"),
            (f"sum(rankskew_gpus_visible{{{CLUSTER}}})", "on all nodes"),
            decimals=0,
            empty="–",
        ),
        stat(
            "GPUs lost now",
            "GPUs that do nothing but wait, for any reason, mean of the last minute, and their "
            "share of the GPUs in jobs that can be judged or hang.",
            "none",
            (f"sum({LOST})", "lost"),
            (f"sum({LOST}) / {judged}", "of the GPUs", {"unit": "percentunit"}),
            decimals=1,
            empty="No job judged",
        ),
        stat(
            "Money and energy lost",
            "US$ for GPUs that do nothing but wait: per hour now, and over the time range above. "
            "GPUs lost times the price of a GPU hour; nothing until you record one. And the energy "
            "that these GPUs took in this range, by the mean power of their job's GPUs.",
            "currencyUSD",
            (f"sum({COST})", "per hour"),
            (f"{minutes} / 60", "in this range"),
            (f"{energy} / 60", "in this range", {"unit": "watth"}),
            empty="–",
        ),
    ]


def _states() -> Panel:
    return stat(
        "Jobs by state",
        "Number of jobs in each state, most urgent first; a job is in exactly one. A state "
        "without a job is left out.",
        "none",
        *((f"count({STATE % state})", words, colour) for state, (words, colour) in STATES.items()),
        height=3,
        # Otherwise each is as large as its own place allows.
        size=30,
        empty="No job",
    )


def _lost_over_time() -> Panel:
    return timeseries(
        "GPUs lost, by job",
        "GPUs that do nothing but wait, of the ten jobs that lost most at their worst, and "
        "of all other jobs together.",
        "none",
        (f"{LOST} and {JOB} {COSTLIEST}", "{{job_id}}", shades(RED)),
        (f"sum({LOST} unless {JOB} {COSTLIEST}) > 0.05", "others", "#8E99A8"),
        stack={},
        empty="No job is judged",
    )


# --- The table of jobs: hung ones first, then what cannot be judged, then by GPUs lost

UNKNOWN: Final = "exporter_down|ranks_missing|not_judgeable"
# A late rank of a healthy job is not worth anybody's time; the job's own dashboard shows it.
LATE_UNWELL: Final = f"({LATE} unless {JOB} {STATE % 'healthy'})"
# Of each job the rank that costs most, or any late one if no wait was measured.
WORST: Final = f"topk {EACH} (1, {RANK_LOST} or {RANK} 0 * {LATE})"
WORST_LATE: Final = f"topk {EACH} (1, {LATE_UNWELL} and {RANK} {WORST})"


def _jobs() -> Panel:
    reasons_in_words = mapped({name: {"text": reason.short} for name, reason in REASONS.items()})
    # A job that hangs finishes no step.
    slowdown = f"(job:rankskew_slowdown:max{{{CLUSTER}}} unless {JOB} {HUNG})"
    unjudged = _in("hung|starting|not_judgeable")
    judged = f"(job:rankskew_coverage:ratio{{{CLUSTER}}} unless {JOB} {unjudged})"
    return table(
        "Jobs",
        "Every job: those that hang first, then those that cannot be judged, then by GPUs lost. "
        "The rank or the node is the costliest that the job waits for. A click on a job or a rank "
        "opens its dashboard.",
        [
            links.linked(_urgency(), links.JOB_KEY),
            links.keyed(LOST, links.JOB_KEY),
            links.keyed(f"({WORLD} or {UNPROBED})", links.JOB_KEY),
            links.keyed(COST, links.JOB_KEY),
            links.keyed(_who(), links.JOB_KEY, "rank", "who"),
            links.keyed(_cause(), links.JOB_KEY, "cause"),
            links.keyed(_since(), links.JOB_KEY),
            links.keyed(slowdown, links.JOB_KEY),
            links.keyed(judged, links.JOB_KEY),
        ],
        {
            "state": column("State", width=115) | marked(STATES) | AS_TEXT,
            "job_id": column("Job") | links.JOB,
            "Value #B": column("GPUs lost", "none", 1, width=90),
            "Value #C": column("Of", "none", 0, width=70),
            "Value #D": column("Cost/h", "currencyUSD", 0, width=85),
            "who": column("Waits for", width=200) | links.RANK,
            "cause": column("Cause or reason", width=330) | reasons_in_words | WRAP,
            "Value #G": column("Since", "dateTimeFromNow", width=130),
            "Value #H": column("Slowdown", "suffix:×", 2, width=90),
            "Value #I": column("Judged", "percentunit", 0, width=80),
        },
        order="Value #A",
        hidden=("rank", "to_cluster"),
        height=12,
        empty="No job",
    )


def _urgency() -> str:
    urgency = (
        f"1e9 * {STATE % 'hung'} or 1e6 * {_in(UNKNOWN)} or -1 * {_in('starting|no_probe')}"
        f" or -2 * {STATE % 'finished'} or 0 * {ANY_STATE}"
    )
    return f"({urgency}) + {JOB} group_left () {LOST} or ({urgency})"


def _who() -> str:
    suspect = labelled(SUSPECT, "who", "rank {{rank}}")
    rotating = f"job_stage:rankskew_gpus_lost:sum{{{CLUSTER}}} and {JOB} {STATE % 'rotating'}"
    turns = labelled(f"topk {EACH} (1, {rotating})", "who", "different ranks")
    rank = labelled(WORST_LATE, "who", "rank {{rank}}")
    kind = f'label_join({rank}, "where", "/", "kind", "nodename")'
    late = f'label_replace({kind}, "who", "node $1", "where", "node/(.+)")'
    either = f"{suspect} or {JOB} {turns} or {JOB} {late}"
    return f'label_join(({either}), "who", " · ", "who", "stage")'


def _cause() -> str:
    down = f"topk {EACH} (1, node:rankskew_exporter_down:group{{{CLUSTER}}})"
    no_exporter = labelled(down, "cause", "no exporter on {{instance}}")
    missing = _counted(f"job:rankskew_ranks_missing:sum{{{CLUSTER}}}", "not seen")
    silent = _counted(
        f"count {EACH} (rank:rankskew_silent_seconds:max{{{CLUSTER}}})"
        # If all ranks are silent, that rule names none of them.
        f' or sum {EACH} (rankskew_node_ranks{{state="silent",{CLUSTER}}} > 0)',
        "gone silent",
    )
    reasons = f"job_reason:rankskew_not_judgeable:bool{{{CLUSTER}}}"
    reason = f"bottomk {EACH} (1, {coded(reasons, 'reason', REASONS)})"
    of_late = f"topk {EACH} (1, {CAUSE} and {RANK} {WORST_LATE})"
    # The short name of the cause and the exporter's sentence, where there is one.
    both = f'label_join({in_short(of_late)}, "cause", ": ", "cause", "sentence")'
    parts = (
        labelled(faults_of(SUSPECT, CLUSTER), "cause", "GPU: {{fault}}"),
        f"{no_exporter} and {JOB} {_in('exporter_down')}",
        f"({missing} or {JOB} {silent}) and {JOB} {_in('ranks_missing')}",
        f"{labelled(reason, 'cause', '{{reason}}')} and {JOB} {_in('starting|not_judgeable')}",
        f'label_replace({both}, "cause", "$1", "cause", "(.*): ")',
    )
    return "(" + f" or {JOB} ".join(f"({part})" for part in parts) + ")"


def _counted(counts: str, words: str) -> str:
    numbers = f'count_values {EACH} ("number", {counts})'
    many = labelled(numbers, "cause", f"{{{{number}}}} ranks {words}")
    return f'label_replace({many}, "cause", "1 rank {words}", "number", "1")'


def _since() -> str:
    late = f"rankskew_late_since_timestamp_seconds{{{CLUSTER}}} and {RANK} {WORST_LATE}"
    starting = f"time() - job:rankskew_starting_seconds:max{{{CLUSTER}}}"
    silent = f"time() - max {EACH} (rank:rankskew_silent_seconds:max{{{CLUSTER}}})"
    either = f" or {JOB} ".join((f"time() - {HUNG}", silent, f"min {EACH} ({late})", starting))
    return f"1000 * ({either})"


def _in(states: str) -> str:
    return f'job:rankskew_state:info{{state=~"{states}",{CLUSTER}}}'


# --- The tables of nodes and of alerts

DOWN: Final = f"count {NODE} ({EXPORTERS} and on (cluster, job, instance) up == 0)"
# While a job hangs, all its GPUs wait for the rank that is suspected.
OF_SUSPECT: Final = f"max by (cluster, job_id, instance) ({SUSPECT}) * {JOB} group_left () {WORLD}"
NODE_LOST: Final = f"sum {NODE} ({RANK_LOST} or {OF_SUSPECT})"
LATE_RANKS: Final = f"count {NODE} ({LATE})"
GPU_DOWN: Final = 'fault="lost"'
# Errors that programs cause, or that the GPU has repaired itself, are no trouble of a node.
XID: Final = 'fault="xid",detail!~"13|31|43|45|68|109|63|92"'
WITHOUT_GPU: Final = "memory|nvlink|nvlink_errors|fabric|recovery|pcie_link|pcie_errors|pstate"
ALERT_KEY: Final = ("alertname", "severity", "cluster", "job_id", "rank", "instance")


def _nodes() -> Panel:
    down = {"1": {"text": "down", "color": "orange"}}
    return table(
        "Nodes with trouble",
        "Nodes whose exporter does not answer, whose GPUs are down, throttled or faulty, or "
        "with late ranks, worst first. GPUs lost are all GPUs that wait for ranks on this "
        "node. XID errors and faults are GPUs with them; errors of programs do not count.",
        [
            links.linked(_trouble(), links.NODE_KEY),
            links.keyed(DOWN, links.NODE_KEY),
            links.keyed(NODE_LOST, links.NODE_KEY),
            links.keyed(LATE_RANKS, links.NODE_KEY),
            links.keyed(_faulty(GPU_DOWN), links.NODE_KEY),
            links.keyed(_faulty('fault="throttled"'), links.NODE_KEY),
            links.keyed(_faulty(XID), links.NODE_KEY),
            links.keyed(_faulty(f'fault=~"{WITHOUT_GPU}"'), links.NODE_KEY),
        ],
        {
            "instance": column("Node") | links.NODE,
            "Value #B": column("Exporter", width=85) | mapped(down) | AS_TEXT,
            "Value #C": column("GPUs lost", "none", 1, RED, width=85),
            "Value #D": column("Late ranks", "none", 0, width=85),
            "Value #E": column("GPUs down", "none", 0, RED, width=90),
            "Value #F": column("Throttled", "none", 0, width=80),
            "Value #G": column("XID", "none", 0, width=50),
            "Value #H": column("Other faults", "none", 0, width=95),
        },
        order="Value #A",
        hidden=("to_cluster",),
        height=9,
        empty="No node is known to have trouble",
    )


def _trouble() -> str:
    parts = (
        f"1e6 * {DOWN}",
        f"1e4 * {_faulty(GPU_DOWN)}",
        f"10 * {NODE_LOST}",
        LATE_RANKS,
        _faulty(XID),
        _faulty(f'fault=~"throttled|{WITHOUT_GPU}"'),
    )
    # Each with a label of its own: otherwise only the first of a node would count.
    own = (f'label_replace({part}, "part", "{n}", "", "")' for n, part in enumerate(parts))
    return f"sum {NODE} ({' or '.join(own)})"


def _faulty(selector: str) -> str:
    faults = f"rankskew_gpu_fault{{{selector},{CLUSTER}}}"
    return f"count {NODE} (group by (cluster, instance, gpu_uuid) ({faults}))"


def _past() -> Panel:
    lost = f"node:rankskew_incident_gpu_seconds:sum1h{{{CLUSTER}}}[4w]"
    used = f"node:rankskew_used_gpu_seconds:sum1h{{{CLUSTER}}}[4w]"
    lost_hours = f"sum {NODE} (sum_over_time({lost})) / 3600"
    used_hours = f"(sum {NODE} (sum_over_time({used})) / 3600)"
    most = f"topk(10, {lost_hours})"
    jobs = f"count {NODE} (count by (cluster, instance, job_id) (last_over_time({lost})))"
    return table(
        "Nodes that jobs waited for, four weeks",
        "GPU-hours lost to waiting for late ranks of each node, largest loss first; in how many "
        "jobs; and the loss per GPU-hour that jobs used there. Recorded once an hour.",
        [
            links.linked(most, links.NODE_KEY),
            *(
                links.keyed(f"({each} and on (cluster, instance) {most})", links.NODE_KEY)
                for each in (jobs, used_hours, f"{lost_hours} / {used_hours}")
            ),
        ],
        {
            "instance": column("Node") | links.NODE,
            "Value #A": column("GPU-hours lost", "none", 1, RED),
            "Value #B": column("Jobs", "none", 0),
            "Value #C": column("GPU-hours used", "none", 0),
            "Value #D": column("Lost per GPU-hour used", "none", 2),
        },
        order="Value #A",
        hidden=("to_cluster",),
        height=8,
        empty="Nothing was recorded",
    )


def _alerts() -> Panel:
    since = f"ALERTS_FOR_STATE{{{CLUSTER}}} and ignoring (alertstate) {firing(CLUSTER)}"
    labels = ", ".join(ALERT_KEY)
    ordered = " or ".join(
        f"{weight} * max by ({labels}) ({_of(severity)})"
        for weight, severity in enumerate(reversed(SEVERITIES), start=1)
    )
    named = f'label_replace(({ordered}), "name", "$1", "alertname", "Rankskew(.*)")'
    return table(
        "Alerts firing",
        "Every firing alert, the most severe first, since when its condition holds, and what "
        "it is about. A click on its name opens the runbook.",
        [links.linked(named, ALERT_KEY), links.keyed(f"(1000 * {since})", ALERT_KEY)],
        {
            "severity": column("Severity", width=75) | marked(SEVERITIES) | AS_TEXT,
            "name": column("Alert") | links.to_runbook(links.FIELD % "alertname"),
            "job_id": column("Job", width=110) | links.JOB,
            "rank": column("Rank", width=55),
            "instance": column("Node", width=115) | links.NODE,
            "Value #B": column("Since", "dateTimeFromNow", width=115),
        },
        order="Value #A",
        hidden=("alertname", "to_cluster"),
        height=9,
        empty="No alert fires",
    )


def _of(severity: str) -> str:
    return firing(f'severity="{severity}",{CLUSTER}')
