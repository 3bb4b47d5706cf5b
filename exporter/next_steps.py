"""What to do with the files that `rankskew files` has written."""

from pathlib import Path
from typing import Final

SCRAPE: Final = """\
     scrape_configs:
       - {job_name: rankskew, scrape_interval: 15s, static_configs: [{targets: ["NODE:9917"]}]}"""


def next_steps(directory: Path, rules: str, vmalert: bool = False) -> str:
    """Return the whole set-up in a few lines; *rules* is the pattern of the rule files."""
    return f"""\
{_of_vmalert(rules) if vmalert else _of_prometheus(rules)}
2. Alertmanager: add the inhibit_rules of {directory}/alerts/alertmanager.yaml,
   so that one cause pages once; messages for Slack and PagerDuty are there too.
3. Grafana: import {directory}/dashboards/*.json.
4. Reload, and query:
     up{{job="rankskew"}}             1 for each node
     job:rankskew_coverage:ratio    1 for each job, a few minutes after its start"""


def _of_prometheus(rules: str) -> str:
    return f"""\
1. Prometheus: add this, scrape and evaluate every 15s, and run promtool check config.
     global: {{evaluation_interval: 15s}}
     rule_files: ['{rules}']
{SCRAPE}"""


def _of_vmalert(rules: str) -> str:
    return f"""\
1. vmagent: scrape every 15s; vmalert: evaluate every 15s, and keep its -datasource.queryStep.
     vmalert -rule='{rules}' -evaluationInterval=15s
{SCRAPE}"""
