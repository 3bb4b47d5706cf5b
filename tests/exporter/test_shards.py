"""Rules are divided by what they read, and each file keeps the words around the rules it keeps."""

from exporter.shards import Plan, everywhere, for_ruler, selector, series_in

RULES = """\
# Topic.
groups:
  - name: rankskew_thresholds
    rules:
      - record: shard_job:rankskew_job:group
        expr: group by (job_id) (rankskew_node_ranks)
      - {record: "job:rankskew_job:group", expr: "group by (job_id) (shard_job:rankskew_job:group)"}

  - name: rankskew_ranks
    interval: 1m # Slow.
    rules:
      # Of a node.
      - record: node:rankskew_hot:group
        expr: rankskew_node_heat > on (job_id) job:rankskew_job:group
      # A part.
      - record: shard_job:rankskew_heat:max
        expr: max by (job_id) (rankskew_node_heat)
      # A sum.
      - record: job:rankskew_heat:max
        expr: max by (job_id) (shard_job:rankskew_heat:max)

      # ---- Alerts ----
      - alert: Cold
        expr: job:rankskew_heat:max < 1 unless on (job_id) rankskew_node_gone
      - alert: Hot
        expr: node:rankskew_hot:group > 3
  - name: rankskew_words
    rules:
      - {record: "rankskew:heat:text", labels: {text: "job:rankskew_none:max"}, expr: "1"}
"""


def test_global_is_what_reads_parts_or_nothing() -> None:
    """Everything else runs where the node is scraped; thresholds run on both."""
    plan = Plan({"one.yaml": RULES})

    assert [rule.record for rule in plan.rules("shard")] == [
        "shard_job:rankskew_job:group",
        "job:rankskew_job:group",
        "node:rankskew_hot:group",
        "shard_job:rankskew_heat:max",
        None,
    ]
    assert [rule.record for rule in plan.rules("global")] == [
        "job:rankskew_job:group",
        "job:rankskew_heat:max",
        None,
        "rankskew:heat:text",
    ]
    assert everywhere(plan) == ["job:rankskew_job:group"]


def test_what_travels_is_read_globally_and_recorded_elsewhere() -> None:
    """That is, parts and what is scraped of single nodes; names and copies are for texts."""
    names = Plan({"one.yaml": RULES}).travelling()

    assert [name for name in names if not name.startswith("suspect:")] == [
        "node:rankskew_name:info",
        "rankskew_node_gone",
        "shard_job:rankskew_heat:max",
        "shard_job:rankskew_job:group",
    ]
    assert selector(["a", "b:c:d"]) == '{__name__=~"a|b:c:d"}'


def test_files_keep_their_words() -> None:
    """A rule goes with the comment above it, a group with its interval; an empty group is gone."""
    files = Plan({"one.yaml": RULES}).files("global")

    assert files == {
        "one.yaml": """\
# Topic.
groups:
  - name: rankskew_thresholds
    rules:
      - {record: "job:rankskew_job:group", expr: "group by (job_id) (shard_job:rankskew_job:group)"}

  - name: rankskew_ranks
    interval: 1m # Slow.
    rules:
      # A sum.
      - record: job:rankskew_heat:max
        expr: max by (job_id) (shard_job:rankskew_heat:max)

      # ---- Alerts ----
      - alert: Cold
        expr: job:rankskew_heat:max < 1 unless on (job_id) rankskew_node_gone
  - name: rankskew_words
    rules:
      - {record: "rankskew:heat:text", labels: {text: "job:rankskew_none:max"}, expr: "1"}
"""
    }
    assert "rankskew_words" not in "".join(Plan({"one.yaml": RULES}).files("shard").values())


def test_a_name_in_quotes_is_no_series() -> None:
    """Only what an expression reads counts, not the values of labels."""
    assert series_in(
        'label_replace(rankskew_a, "x", "rankskew_b", "", "") > rankskew_c{d="up"}'
    ) == {
        "rankskew_a",
        "rankskew_c",
    }


def test_rulers_have_forms_of_their_own() -> None:
    """A namespace for Mimir, and for Thanos no answer rather than half of one, in each group."""
    assert for_ruler("mimir", "one.yaml", RULES) == f"namespace: rankskew_one\n{RULES}"
    assert for_ruler("thanos", "one.yaml", RULES).count(
        "\n    partial_response_strategy: abort\n"
    ) == RULES.count("- name: ")
