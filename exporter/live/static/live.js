// Asks the exporter every second and draws what it says.
import { className, show, text } from "./dom.js";
import { drawGpus } from "./gpus.js";
import { drawJobs } from "./jobs.js";
import { STATES } from "./vocabulary.js";
import { duration } from "./words.js";

const EVERY_MILLISECONDS = 1000;
const PATIENCE_MILLISECONDS = 5000;

const byId = (id) => document.getElementById(id);
let answered = null;

function draw(live) {
  show(byId("loading"), false);
  text(byId("node"), about(live).join(" · "));
  drawJobs(byId("jobs"), live);
  show(byId("empty"), !live.jobs.length);
  const gpus = live.gpus ?? [];
  drawGpus(byId("gpus"), gpus);
  show(byId("node-gpus"), gpus.length > 0);
  const [worst] = Object.keys(STATES).filter((state) => live.jobs.some((job) => job.verdict.state === state));
  document.title = [worst ? STATES[worst].word : null, live.host || location.host, "rankskew"].filter(Boolean).join(" · ");
  // Said aloud only when a state changes: figures do all the time.
  text(byId("announcement"), live.jobs.map((job) => "Job " + job.job_id + ": " + (STATES[job.verdict.state]?.word ?? "")).join(". "));
}

function about(live) {
  const count = live.gpus_visible;
  const gpus = count == null ? null : count === 0 ? "no GPU visible" : count + (count === 1 ? " GPU" : " GPUs") + " visible";
  return [live.host || location.host, gpus, live.version ? "version " + live.version : null].filter(Boolean);
}

function admit(what, error) {
  const why = error.name === "TimeoutError" ? "no answer for " + PATIENCE_MILLISECONDS / 1000 + " s" : error.message;
  const seconds = Math.round((Date.now() - answered) / 1000);
  const old = answered == null ? "" : " The data below is " + duration(seconds) + " old.";
  text(byId("trouble"), "This page is out of date: " + what + " (" + why + ")." + old + " Retrying every second.");
  show(byId("trouble"), true);
  className(document.body, "stale");
  text(byId("loading"), "");
}

async function poll() {
  let what = "the exporter does not answer";
  try {
    if (!document.hidden) {
      const answer = await fetch("api/v1/live", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MILLISECONDS) });
      if (!answer.ok) throw new Error("HTTP status " + answer.status);
      const live = await answer.json();
      what = "it cannot display the exporter's answer";
      draw(live);
      answered = Date.now();
      show(byId("trouble"), false);
      className(document.body, "");
    }
  } catch (error) {
    admit(what, error);
  } finally {
    setTimeout(poll, EVERY_MILLISECONDS);
  }
}
poll();
