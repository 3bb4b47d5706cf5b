// A job: its state, what it costs, what to do first, and its ranks on this node.
import { attribute, className, keyed, make, show, text, texts } from "./dom.js";
import { rankTable } from "./ranks.js";
import { MILD, STAGES, STATES, duration } from "./words.js";

export function drawJobs(parent, live) {
  keyed(parent, live.jobs.map((job) => ({ job, live })), ({ job }) => job.job_id, jobSection);
}

function jobSection() {
  const [title, badge, here, steps, pace] = [make("h2"), make("span", "badge"), ...["", "", ""].map(() => make("span", "faint"))];
  const verdict = make("p", "verdict");
  const details = make("ul", "details");
  const facts = make("dl", "facts");
  const table = rankTable();
  const legend = make("ul", "legend faint timed");
  const fact = factRows(facts);
  const node = make("section", "job", make("div", "head", title, badge, here, steps, pace), verdict, facts, details, table.node, legend);
  return {
    node,
    update({ job, live }) {
      className(node, "job " + job.verdict.state);
      text(title, "Job " + job.job_id);
      text(badge, STATES[job.verdict.state] ?? job.verdict.state);
      text(here, job.coverage + " here");
      text(steps, job.probed ? job.steps + " steps" : "");
      text(pace, job.step_seconds == null ? "" : duration(job.step_seconds) + " per step");
      text(verdict, job.verdict.sentence);
      texts(details, "li", job.verdict.details);
      fact(job, live);
      table.update(job);
      drawLegend(legend, job);
    },
  };
}

// Cost, since when, what to do first, where to read on: each with its name, if there is one.
function factRows(list) {
  const row = (name) => {
    const [dt, dd] = [make("dt", "", name), make("dd")];
    list.append(dt, dd);
    return (isShown) => { show(dt, isShown); show(dd, isShown); return dd; };
  };
  const [cost, since, first, read] = ["Cost", "Since", "Do first", "Read on"].map(row);
  const [command, words] = [make("code"), make("span")];
  first(false).append(command, words);
  cost(false).className = "cost";
  const [runbook, grafana] = [make("a"), make("a", "", "Dashboard in Grafana")];
  read(false).append(runbook, grafana);
  return (job, live) => {
    const said = job.verdict;
    const gpus = gpusLost(said);
    text(cost(gpus >= 0.005), gpus.toFixed(gpus === job.world_size ? 0 : 2) + " of " + job.world_size + " GPUs lost");
    const began = sinceSeconds(job);
    text(since(began != null), duration(began) + " ago");
    first(said.first_action != null);
    const [what, where] = commandOf(said.first_action ?? "");
    text(command, what);
    text(words, where);
    show(command, what !== "");
    links(job, live, runbook, grafana, read);
  };
}

// A command, and where to give it, so that it can be copied alone; a sentence has no command.
function commandOf(action) {
  if (/[.?]$/.test(action)) return ["", action];
  const [, command, where] = action.match(/^(.*)( on \S+)$/) ?? [null, action, ""];
  return [command, where];
}

function links(job, live, runbook, grafana, read) {
  const said = job.verdict;
  if (said.runbook) {
    const late = said.late.filter((each) => !MILD[each.kind]);
    const rank = (late.find((each) => each.is_here) ?? late[0])?.rank; // Of one here more is known.
    const query = new URLSearchParams({ job: job.job_id, ...(rank == null ? {} : { rank }) });
    attribute(runbook, "href", "runbooks/" + said.runbook + "?" + query);
    text(runbook, "Runbook " + said.runbook);
  }
  // Only an address that a browser opens, never a script.
  const url = /^https?:/.test(live.grafana_url ?? "") ? live.grafana_url : null;
  if (url) attribute(grafana, "href", url + "/d/rankskew-job?var-job_id=" + encodeURIComponent(job.job_id));
  show(runbook, Boolean(said.runbook));
  show(grafana, Boolean(url));
  read(Boolean(said.runbook || url));
}

function gpusLost(said) {
  if (said.state === "hung") return said.gpus_lost.hung ?? 0;
  if (said.state === "rotating") return said.gpus_lost.rotating ?? 0;
  return said.late.filter((late) => !MILD[late.kind]).reduce((sum, late) => sum + late.gpus_lost, 0);
}

function sinceSeconds(job) {
  const ages = (those) => those.filter((age) => age != null);
  const { state, late } = job.verdict;
  if (state === "hung") return Math.min(...ages(job.ranks.map((rank) => rank.last_step_age_seconds)));
  if (state === "ranks_missing") {
    const silent = job.ranks.filter((rank) => rank.silent).map((rank) => rank.heartbeat_age_seconds);
    return silent.length ? Math.max(...silent) : null;
  }
  const since = late.filter((each) => !MILD[each.kind]).map((each) => each.late_for_seconds);
  return since.length ? Math.max(...since) : null;
}

function drawLegend(legend, job) {
  const seen = new Set(job.ranks.flatMap((rank) => Object.keys(rank.stage_seconds ?? {})));
  keyed(legend, STAGES.filter((stage) => seen.has(stage)), (stage) => stage, (stage) => ({
    node: make("li", "", make("i", stage), stage === "sync" ? "sync (waiting for the others)" : stage),
    update() {},
  }));
}
