// Figures and states as people read them.

export const duration = (s) => s == null ? "–" : s < 0.9995 ? (s * 1000).toPrecision(3).replace(/\.0+$/, "") + " ms"
  : s < 120 ? (s < 10 && !Number.isInteger(s) ? s.toPrecision(3) : Math.round(s)) + " s"
  : s < 7200 ? Math.round(s / 60) + " min" : Math.round(s / 3600) + " h";

export const age = (s) => s == null ? "–" : s < 2 ? "now" : s < 120 ? Math.round(s) + " s ago" : duration(s) + " ago";

export const gigabytes = (bytes) => bytes == null ? "–" : (bytes / 2 ** 30).toFixed(bytes < 10 * 2 ** 30 ? 1 : 0);

export const percent = (ratio) => ratio == null ? "–" : Math.round(100 * ratio) + " %";

export const STATES = {
  hung: "Hung", exporter_down: "Exporter down", ranks_missing: "Ranks missing", starting: "Starting",
  not_judgeable: "Not judgeable", slow_node: "Slow node", straggler: "Straggler", rotating: "Rotating",
  healthy: "Healthy", finished: "Finished", no_probe: "No probe",
};

// Too little for an alert, or it is not known whether any rank waits.
export const MILD = { mild: "a little late", unsynced: "stands out" };

// In step order, as in rank_probe/stages.py.
export const STAGES = ["optimizer", "other", "checkpoint", "eval", "data", "h2d", "forward", "backward", "compute", "sync"];
