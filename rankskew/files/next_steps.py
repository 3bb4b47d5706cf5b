"""What to do with the files that `rankskew files` has written."""

from pathlib import Path
from typing import Final

SCRAPE: Final = """\
     scrape_configs:
       - job_name: rankskew
         scrape_interval: 15s
         static_configs: [{{targets: ["NODE:9917"]}}]"""
FIRST: Final = {
    "prometheus": """\
Prometheus: add this, scrape and evaluate every 15s, and run promtool check config.
     global: {{evaluation_interval: 15s}}
     rule_files: ['{rules}']
"""
    + SCRAPE,
    "vmalert": """\
vmagent: scrape every 15s; vmalert: evaluate every 15s, and keep its -datasource.queryStep.
     vmalert -rule='{rules}' -evaluationInterval=15s
"""
    + SCRAPE,
    "thanos": "Thanos Ruler: thanos rule --rule-file='{rules}' --eval-interval=15s",
    "mimir": "Mimir: mimirtool rules load {rules}",
}


def next_steps(directory: Path, rules: str, ruler: str) -> str:
    """Return the whole set-up in a few lines; *rules* is the pattern of the rule files.

    *ruler* evaluates them: a key of FIRST.
    """
    first = FIRST[ruler].format(rules=rules)
    return f"""\
1. {first}
2. Alertmanager: add the inhibit_rules of {directory}/alerts/alertmanager.yaml,
   so that one cause pages once; messages for Slack and PagerDuty are there too.
3. Grafana: import {directory}/dashboards/*.json.
4. Reload, and query:
     up{{job="rankskew"}}             1 for each node
     job:rankskew_coverage:ratio    1 for each job, a few minutes after its start"""
