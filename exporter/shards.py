"""The rules for jobs that several Prometheus scrape: which of them run where, and what travels.

A shard scrapes some of the nodes. It records its part of each job, in series named `shard_...`, and
what is known of the ranks that may be late. The global Prometheus decides about jobs and ranks.
Which rule runs where follows from what it reads; docs/scale.md explains it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Part = Literal["shard", "global"]
PARTS: Final[tuple[Part, ...]] = ("shard", "global")
Ruler = Literal["thanos", "mimir"]
RULERS: Final[tuple[Ruler, ...]] = ("thanos", "mimir")
# Thresholds are constants for each job, and both parts compare with them.
EVERYWHERE: Final = "rankskew_thresholds"
OWN: Final = "shard_"
# Both parts have their own: what users record, and whether the targets answer.
GIVEN: Final = frozenset({"rankskew:threshold:override", "rankskew:gpu_hour_price:override", "up"})
# Texts call a node by its name, if its target is an address.
NAMES: Final = frozenset({"node:rankskew_name:info"})
# What the texts of alerts look up of single ranks. Shards copy it for the few that may be named.
LOOKED_UP: Final = (
    "rankskew_gpu_rank_info",
    "rankskew_late_line_ratio",
    "rankskew_late_since_timestamp_seconds",
    "rankskew_rank_info",
    "rankskew_rank_last_event_timestamp_seconds",
    "rankskew_stage_seconds_total",
    "rankskew_steps_total",
)
COPIES_FILE: Final = "copies.yaml"
COPIES: Final = """\
# What the texts of alerts look up of ranks that may be named; the global Prometheus renames it.
groups:
  - name: rankskew_copies
    rules:
"""
COPY: Final = """\
      - record: suspect:{name}:copy
        expr: |2
          {name} and on (cluster, job_id, rank, instance) (
            rank:rankskew_suspect:group or rankskew_rank_silent_seconds
            or shard_rank_stage:rankskew_out_of_sync_seconds:max
          )
"""
QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
SERIES: Final = re.compile(
    r"(?<![\w:])(?:rankskew_\w+|[a-z_]+:[a-z_]+:[a-z_0-9]+|up|process_start_time_seconds)(?![\w:])"
)
# A rule of our files begins here; the comments above it belong to it.
RULE: Final = re.compile(
    r"(?m)^(?:      #.*\n|\n)*      - (?:.*\n)(?:(?!      [-#] ?|  [-#] ?).*\n)*"
)
NAMED: Final = re.compile(r"(?m)^(  - name: .*\n)")
GROUP: Final = re.compile(r"(?m)^  - name: ")


@dataclass(frozen=True)
class Rule:
    """One rule: its group, what it records (None: an alert), and what its expression reads."""

    group: str
    record: str | None
    reads: frozenset[str]


def series_in(expression: str) -> frozenset[str]:
    """Return the names of the series that *expression* reads."""
    return frozenset(SERIES.findall(QUOTED.sub('""', expression)))


def rules_in(text: str) -> list[Rule]:
    """Return the rules of the rule file *text*, in order."""
    import yaml  # All other files can be written without it.

    return [
        Rule(group["name"], rule.get("record"), series_in(str(rule["expr"])))
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
    ]


class Plan:
    """Where each rule of *texts*, the rule files by name, runs."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)
        self._rules = [rule for text in texts.values() for rule in rules_in(text)]
        self._anywhere = GIVEN | {rule.record for rule in self._rules if rule.group == EVERYWHERE}
        self._recorded_globally: frozenset[str] = frozenset()
        while (found := self._found()) != self._recorded_globally:
            self._recorded_globally = found

    def _found(self) -> frozenset[str]:
        return frozenset(
            rule.record for rule in self._rules if rule.record and self._is_global(rule)
        )

    def _is_global(self, rule: Rule) -> bool:
        """Say whether *rule* needs all nodes: it adds up parts, or reads what was made of them.

        One that reads nothing of a node does not belong there either: words, prices, lost shards.
        """
        if rule.group == EVERYWHERE or (rule.record or "").startswith(OWN):
            return False
        parts = {name for name in rule.reads if name.startswith(OWN)}
        return bool(parts or rule.reads & self._recorded_globally or rule.reads <= self._anywhere)

    def _runs_on(self, part: Part, rule: Rule) -> bool:
        if rule.group == EVERYWHERE and not (rule.record or "").startswith(OWN):
            return True
        return self._is_global(rule) == (part == "global")

    def rules(self, part: Part) -> list[Rule]:
        """Return the rules of *part*, in order."""
        return [rule for rule in self._rules if self._runs_on(part, rule)]

    def travelling(self) -> list[str]:
        """Return the names that the global Prometheus reads and does not record, sorted."""
        rules = self.rules("global")
        read = frozenset().union(*(rule.reads for rule in rules))
        copies = {f"suspect:{name}:copy" for name in LOOKED_UP}
        return sorted(read - {rule.record for rule in rules} - GIVEN | copies | NAMES)

    def scraped(self) -> list[str]:
        """Return the names that rules or texts read and no rule records, sorted."""
        read = frozenset().union(*(rule.reads for rule in self._rules), LOOKED_UP)
        return sorted(read - {rule.record for rule in self._rules} - GIVEN)

    def files(self, part: Part) -> dict[str, str]:
        """Return the rule files of *part* by name, with the comments of what they keep."""
        found = {name: self._cut(text, part) for name, text in self._texts.items()}
        if part == "shard":
            found[COPIES_FILE] = COPIES + "".join(COPY.format(name=name) for name in LOOKED_UP)
        return {name: text for name, text in found.items() if text}

    def _cut(self, text: str, part: Part) -> str:
        """Return *text* with the rules of *part*, and nothing if none is."""
        kept = iter([self._runs_on(part, rule) for rule in rules_in(text)])
        head, *groups = GROUP.split(text)
        cut = [RULE.sub(lambda rule: rule[0] if next(kept) else "", group) for group in groups]
        left = [f"  - name: {group}" for group in cut if RULE.search(group)]
        return head + "".join(left) if left else ""


def everywhere(plan: Plan) -> list[str]:
    """Return the names that both parts record, which must not meet in one storage."""
    both = {rule.record for rule in plan.rules("shard")} & {
        rule.record for rule in plan.rules("global")
    }
    return sorted(name for name in both if name)


def for_ruler(ruler: Ruler, name: str, text: str) -> str:
    """Return the rule file *text* in the form of a Thanos Ruler or of `mimirtool rules load`."""
    if ruler == "mimir":
        return f"namespace: rankskew_{name.removesuffix('.yaml')}\n{text}"
    # Better no evaluation than one that lacks nodes, whose ranks would be called missing.
    return NAMED.sub(r"\1    partial_response_strategy: abort\n", text)


def selector(names: list[str]) -> str:
    """Return a selector of all series with one of *names*."""
    return f'{{__name__=~"{"|".join(names)}"}}'
