"""The environment variables of the training process, which configure the probe."""

from typing import Final

# Each with its default and its meaning.
VARIABLES: Final = (
    ("`RANK_PROBE`", "on", "`0` turns the probe off: every call is a no-op."),
    (
        "`RANKSKEW_EXPORTER`",
        "`unix:/run/rankskew/exporter.sock`",
        "Where to send snapshots: the socket of the node's exporter, or `http://127.0.0.1:PORT`.",
    ),
    (
        "`RANKSKEW_TOKEN_FILE`",
        "none",
        "A file with the token of the exporter's `--ingest.token-file`, sent over "
        "`http:` only; read again when the exporter rejects it.",
    ),
    (
        "`RANKSKEW_JOB_ID`",
        "the scheduler's or launcher's name",
        "The `job_id` label: SLURM_JOB_ID, TORCHELASTIC_RUN_ID, JOBSET_NAME, "
        "RAY_JOB_ID or the pod's name without its index; in Kubernetes prefixed with "
        "the namespace (`POD_NAMESPACE`, or the service account's). Without any of "
        "them `local-` and MASTER_ADDR, or the node's name if MASTER_ADDR is missing "
        "or a loopback address. A name that is set here is used as it is.",
    ),
    (
        "`RANKSKEW_PEER_GROUP`",
        "`pp` and the pipeline stage, and the GPU model, as far as they are known; else `all`",
        "The `peer_group` label: ranks that should do equal work.",
    ),
    (
        "`RANK_PROBE_LABELS`",
        "none",
        "What is known of the place of this process, such as `rack=r12,switch=s3`: if all late "
        "ranks have one of these in common, and no other rank has it, that is said. At most eight "
        "labels; `node`, `image`, `driver` or `torch` takes the place of what the probe finds "
        "itself.",
    ),
    (
        "`RANK_PROBE_JOIN`",
        "`1`",
        "`0` turns off the comparison of steps through the job's own store; the judge "
        "then does not run, and each node compares its own ranks only.",
    ),
    (
        "`RANK_PROBE_STACKS`",
        "`1`",
        "`0` turns off the samples of a late rank's stack, which name the line of code.",
    ),
    (
        "`RANK_PROBE_TRACE`",
        "none",
        "A directory in which each rank writes the stages of every step to "
        "`JOB_ID-ATTEMPT-RANK.csv`, as input for `rankskew replay`.",
    ),
    ("`RANK_PROBE_TRACE_MAX_MIB`", "`1024`", "Largest size of such a file, in MiB."),
)
