// A job: its state, what it costs, what to do first, and its ranks on this node.
import { attribute, className, keyed, make, prose, show, text, texts } from "./dom.js";
import { rankTable } from "./ranks.js";
import { STAGES, STATES } from "./vocabulary.js";
import { causeInShort, duration, mark, percent } from "./words.js";

export function drawJobs(parent, live) {
  keyed(parent, live.jobs.map((job) => ({ job, live })), ({ job }) => job.job_id, jobSection);
}

function jobSection() {
  const [title, badge] = [make("h2"), make("span", "badge")];
  const [here, steps, pace, judge] = ["", "", "", ""].map(() => make("span", "faint"));
  const verdict = make("p", "verdict");
  const details = make("ul", "details");
  const facts = make("dl", "facts");
  const table = rankTable();
  const legend = make("ul", "legend faint timed");
  const fact = factRows(facts);
  const node = make("section", "job", make("div", "head", title, badge, here, steps, pace, judge), verdict, facts, details, table.node, legend);
  return {
    node,
    update({ job, live }) {
      const state = STATES[job.verdict.state];
      className(node, ["job", job.verdict.state, state?.colour ?? "grey"].join(" "));
      text(title, "Job " + job.job_id);
      text(badge, state?.word ?? job.verdict.state);
      text(here, job.coverage + " here");
      text(steps, job.probed ? job.steps + " steps" : "");
      text(pace, job.step_seconds == null ? "" : duration(job.step_seconds) + " per step");
      text(judge, job.verdict.judge === "node" ? "compared with the ranks of this node only" : "");
      text(verdict, job.verdict.sentence);
      const { sentence } = causeOf(job.verdict) ?? {};
      texts(details, "li", job.verdict.details.filter((each) => !sentence || !each.includes(sentence)));
      fact(job, live);
      table.update(job);
      drawLegend(legend, job);
    },
  };
}

// Cost, since when, why, what to do, where to read on: each with its name, if there is one.
function factRows(list) {
  const row = (name) => {
    const [dt, dd] = [make("dt", "", name), make("dd")];
    list.append(dt, dd);
    return (isShown) => { show(dt, isShown); show(dd, isShown); return dd; };
  };
  const [cost, since, cause, first, read] = ["Cost", "Since", "Cause", "Do first", "Read on"].map(row);
  const reasons = make("ul", "causes");
  cause(false).append(reasons);
  cost(false).className = "cost";
  const [runbook, grafana, other] = [make("a"), make("a", "", "Dashboard in Grafana"), make("a")];
  read(false).append(other, runbook, grafana);
  return (job, live) => {
    const said = job.verdict;
    const gpus = gpusLost(said);
    text(cost(gpus >= 0.005), gpus.toFixed(gpus === job.world_size ? 0 : 2) + " of " + job.world_size + " GPUs lost");
    const began = sinceSeconds(job);
    text(since(began != null), duration(began) + " ago");
    const why = causeOf(said);
    cause(why != null);
    texts(reasons, "li", why == null ? [] : causeTexts(why, ofWhich(said)));
    prose(first(said.first_action != null), firstOf(said));
    links(job, live, runbook, grafana, other, read);
  };
}

// Of the rank to look at: only its own node knows it. The sentence is in the verdict's details too.
const causeOf = (said) => toLookAt(said)?.cause;

const isLate = (each) => !mark(each);

function toLookAt(said) {
  const late = said.late.filter(isLate);
  return late.find((each) => each.cause) ?? late.find((each) => each.is_here) ?? late[0];
}

// Which of several late ranks it is about.
const ofWhich = (said) => said.late.filter(isLate).length > 1 ? "rank " + toLookAt(said).rank + ": " : "";

function causeTexts(why, which) {
  const what = capital(which + (why.cause === "unknown" ? "not known" : causeInShort(why)));
  const covered = why.cause === "unknown" ? "" : `; ${percent(why.share)} of its delay`;
  return [
    [what, why.sentence].filter(Boolean).join(": ") + covered + ".",
    ...why.others.map((each) => `Or perhaps ${causeInShort(each)}: ${each.sentence}; ${percent(each.share)} of its delay.`),
  ];
}

const capital = (words) => words[0].toUpperCase() + words.slice(1);

// What to do first. A command is code, without where to give it, so that it can be copied alone;
// a sentence, and all that a cause says, has its commands in backticks.
function firstOf(said) {
  const action = said.first_action ?? "";
  const isProse = /[.?]$/.test(action) || said.late.some((each) => each.cause?.first_action === action);
  return isProse ? action : action.replace(/^(.+?)( on \S+)?$/, "`$1`$2");
}

function links(job, live, runbook, grafana, other, read) {
  const said = job.verdict;
  if (said.runbook) {
    attribute(runbook, "href", "runbooks/" + said.runbook);
    text(runbook, "Runbook " + said.runbook);
  }
  // Only an address that a browser opens, never a script.
  const address = (url) => /^https?:/.test(url ?? "") ? url : null;
  const url = address(live.grafana_url);
  if (url) attribute(grafana, "href", url + "/d/rankskew-job?var-job_id=" + encodeURIComponent(job.job_id));
  const late = said.late.filter(isLate).find((each) => !each.is_here);
  const far = said.suspect.rank ? said.suspect : { rank: late?.rank, ...late?.at };
  const page = address(far.page);
  if (page) {
    attribute(other, "href", page);
    text(other, "Page of the node of rank " + far.rank);
  }
  show(other, Boolean(page));
  show(runbook, Boolean(said.runbook));
  show(grafana, Boolean(url));
  read(Boolean(page || said.runbook || url));
}

// The sum over all kinds; while the job hangs that is all of them.
const gpusLost = (said) => Object.values(said.gpus_lost).reduce((sum, gpus) => sum + gpus, 0);

function sinceSeconds(job) {
  const ages = (those) => those.filter((age) => age != null);
  const { state, late } = job.verdict;
  if (state === "hung") {
    const stepped = ages(job.ranks.map((rank) => rank.last_step_age_seconds));
    return stepped.length ? Math.min(...stepped) : null;
  }
  if (state === "ranks_missing") {
    const silent = job.ranks.filter((rank) => rank.silent).map((rank) => rank.heartbeat_age_seconds);
    return silent.length ? Math.max(...silent) : null;
  }
  const since = late.filter(isLate).map((each) => each.late_for_seconds);
  return since.length ? Math.max(...since) : null;
}

function drawLegend(legend, job) {
  const seen = new Set(job.ranks.flatMap((rank) => Object.keys(rank.stage_seconds ?? {})));
  keyed(legend, STAGES.filter((stage) => seen.has(stage)), (stage) => stage, (stage) => ({
    node: make("li", "", make("i", stage), stage === "sync" ? "sync (waiting for the others)" : stage),
    update() {},
  }));
}
