"""Generates alerts/rules/thresholds.yaml from the thresholds and words of exporter/vocabulary.

`python -m alerts.build` writes it; `--check` exits 1 if the committed one is stale.
"""

import sys
from pathlib import Path
from typing import Final

from exporter.vocabulary.thresholds import defaults
from exporter.vocabulary.words import STAGES
from generators.files import write_or_check

FILE: Final = Path(__file__).parent / "rules" / "thresholds.yaml"
HEAD: Final = """\
# Thresholds are series, so that you need not edit an expression. `make docs` writes this file.
# Record your own as rankskew:threshold:override{name, job_id}, see ../README.md.
groups:
  - name: rankskew_thresholds
    rules:
      # All jobs, with or without the probe; and GPUs without a rank, whose job_id is empty.
      - {record: "job:rankskew_job:group", expr: 'group by (cluster, job_id) \
(rankskew_node_ranks{state="beating"} or rankskew_gpus_visible \
or rankskew_gpu_rank_info{source="environ",local_rank=~"0|"} \
or (last_over_time(rankskew_node_ranks{state="beating"}[1m]) \
or last_over_time(rankskew_gpu_rank_info{source="environ",local_rank=~"0|"}[1m])) \
and on (cluster, job, instance) up == 0)'}
"""
LINE: Final = (
    '      - {{record: "rankskew:threshold:default", labels: {{name: {name}}}, '
    'expr: "{value} * job:rankskew_job:group"}} # {reason}\n'
)
WORDS: Final = """\
      # What a rank that is late in a stage "is slow" at: alerts use the words of the page.
      - {{record: "stage:rankskew_slow:group", expr: '{expr}'}}
"""
STAGE: Final = (
    'label_replace(label_replace(vector(1), "stage", "{name}", "", ""), "slow", "{slow}", "", "")'
)
TAIL: Final = """\
      # The override for the job, else the override for all jobs (without job_id), else the default.
      - {record: "job:rankskew_threshold:value", expr: 'max by (cluster, job_id, name) \
(rankskew:threshold:override{job_id!=""}) or 0 * rankskew:threshold:default \
+ on (cluster, name) group_left () max by (cluster, name) \
(rankskew:threshold:override{job_id=""}) or rankskew:threshold:default'}
"""


def text() -> str:
    """Return the content of alerts/rules/thresholds.yaml."""
    lines = [
        LINE.format(name=each.name, value=f"{each.value:.12g}", reason=each.reason)
        for each in defaults().values()
    ]
    stages = (STAGE.format(name=name, slow=each.slow) for name, each in STAGES.items())
    return HEAD + "".join(lines) + TAIL + WORDS.format(expr=" or ".join(stages))


def main() -> int:
    """Write the file, or with --check say whether it is stale; return the exit status."""
    return write_or_check({FILE: text()}, "make docs")


if __name__ == "__main__":
    sys.exit(main())
