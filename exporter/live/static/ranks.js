// The ranks of a job: one row for each, the late ones first.
import { attribute, className, keyed, make, text, texts, width } from "./dom.js";
import { age, causeInShort, duration, figure, mark } from "./words.js";

const HEADS = [["Rank", ""], ["One step, by stage", "step timed"],
  ["Own work", "number timed"], ["Waits", "number timed"], ["Now in", "timed"], ["Where", ""], ["Last report", "timed"]];

export function rankTable() {
  const heads = HEADS.map(([name, classes]) => {
    const head = make("th", classes, name);
    head.scope = "col";
    return head;
  });
  const body = make("tbody");
  const node = make("table", "", make("thead", "", make("tr", "", ...heads)), body);
  return {
    node,
    update(job) {
      attribute(node, "aria-label", "Ranks of job " + job.job_id + " on this node");
      keyed(body, inOrder(job), (row) => row.rank.rank, rankRow);
    },
  };
}

// What each row says, the most urgent first; late ranks in the order of the judge, the others by number.
function inOrder(job) {
  const late = new Map(job.verdict.late.map((each) => [each.rank, each]));
  const places = [...late.keys()];
  const longest = Math.max(...job.ranks.map((rank) => rank.step_seconds ?? 0)) || 1;
  const rows = job.ranks.map((rank) => {
    const named = rank.finished ? null : late.get(rank.rank);
    const holdsUp = job.verdict.state === "hung" && !rank.finished && rank.last_step_age_seconds != null
      && (rank.silent || rank.stage !== "sync");
    const isLate = named && !mark(named);
    const urgency = holdsUp || isLate ? 3 : rank.silent ? 2 : named ? 1 : 0;
    const place = named ? places.indexOf(rank.rank) : places.length;
    return { rank, named, holdsUp, isLate, urgency, place, longest, probed: job.probed };
  });
  return rows.sort((one, other) => other.urgency - one.urgency || one.place - other.place || one.rank.rank - other.rank.rank);
}

function cell(name, classes, ...content) {
  const made = make("td", classes, ...content);
  if (name) made.dataset.name = name;
  return made;
}

function rankRow() {
  const name = make("th");
  name.scope = "row";
  const bar = make("div", "bar");
  bar.setAttribute("role", "img");
  const lines = make("div", "lines");
  const own = cell("Own work", "number timed");
  const waits = cell("Waits", "number timed");
  const now = cell("Now in", "timed");
  const where = cell("", "where");
  const report = cell("Last report", "timed");
  const node = make("tr", "", name, cell("", "step timed", bar, lines),
    own, waits, now, where, report);
  return {
    node,
    update({ rank, named, holdsUp, isLate, longest }) {
      className(node, isLate || holdsUp ? "late" : "");
      text(name, "rank " + rank.rank + lateness(named));
      drawBar(bar, rank, longest, named?.stage);
      texts(lines, "div", [...causeOf(named), ...codeLines(rank)]);
      text(own, duration(rank.step_seconds == null ? null : rank.step_seconds - (rank.wait_seconds ?? 0)));
      className(own, isLate ? "number timed mark" : "number timed");
      text(waits, duration(rank.wait_seconds));
      text(now, doing(rank));
      className(now, holdsUp ? "timed mark" : "timed");
      text(where, place(rank));
      text(report, rank.finished || !rank.stage ? "–" : age(rank.heartbeat_age_seconds));
    },
  };
}

const lateness = (named) => named ? " · " + (mark(named) || "late " + duration(named.late_for_seconds)) : "";

function causeOf(named) {
  if (!named?.cause) return [];
  const { value, peers_value, unit } = named.cause;
  const figures = value == null || peers_value == null ? "" : `: ${figure(value, unit)}, its peers ${figure(peers_value, unit)}`;
  return ["cause: " + causeInShort(named.cause) + figures];
}

const doing = (rank) => rank.finished ? "finished" : rank.silent ? "silent"
  : rank.stage + (rank.stage_elapsed_seconds >= 2 ? " for " + duration(rank.stage_elapsed_seconds) : "");

const place = (rank) => [rank.host, rank.pid == null ? "" : "PID " + rank.pid, rank.gpu == null ? "" : "GPU " + rank.gpu,
  rank.local_rank == null ? "" : "local rank " + rank.local_rank].filter(Boolean).join(" · ");

const codeLines = (rank) => rank.finished || rank.silent ? []
  : rank.late_lines.slice(0, 2).map((line) => `${line.stage}: ${Math.round(100 * line.share)} % in ${line.place}`);

function drawBar(bar, rank, longest, culprit) {
  const stages = Object.entries(rank.stage_seconds ?? {});
  keyed(bar, stages, ([stage]) => stage, () => {
    const node = make("span");
    return {
      node,
      update([stage, seconds]) {
        className(node, stage + (stage === culprit ? " culprit" : ""));
        width(node, 100 * seconds / longest);
        attribute(node, "title", stage + ": " + duration(seconds) + " per step");
      },
    };
  });
  attribute(bar, "aria-label", stages.map(([stage, seconds]) => stage + " " + duration(seconds)).join(", ") || "no step yet");
}
