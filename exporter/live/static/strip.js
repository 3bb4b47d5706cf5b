// Ten minutes of one rank: a column for each ten seconds, filled by the share of each stage.
import { attribute, keyed } from "./dom.js";
import { STAGES } from "./vocabulary.js";

const COLUMNS = 60;
const SVG = "http://www.w3.org/2000/svg";

export function strip() {
  const node = document.createElementNS(SVG, "svg");
  node.setAttribute("class", "history");
  node.setAttribute("viewBox", `0 0 ${COLUMNS} 1`);
  node.setAttribute("preserveAspectRatio", "none");
  node.setAttribute("role", "img");
  return { node, update: (history) => update(node, history) };
}

function update(node, history) {
  if (!history.length) return; // This answer came without it.
  const paths = stagePaths(history);
  keyed(node, Object.entries(paths), ([stage]) => stage, ([stage]) => {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", stage);
    return { node: path, update: ([, d]) => attribute(path, "d", d) };
  });
  attribute(node, "aria-label", spoken(history));
}

// One path for each stage: cheaper than a rectangle for each column.
function stagePaths(history) {
  const paths = {};
  history.forEach((column, index) => {
    const total = Object.values(column ?? {}).reduce((sum, seconds) => sum + seconds, 0);
    let top = 1;
    for (const stage of [...STAGES].reverse()) {
      const share = total && column[stage] ? column[stage] / total : 0;
      if (!share) continue;
      top -= share;
      const left = COLUMNS - history.length + index;
      paths[stage] = (paths[stage] ?? "") + `M${left} ${top.toFixed(3)}h1v${share.toFixed(3)}h-1z`;
    }
  });
  return paths;
}

function spoken(history) {
  const waits = history.filter((column) => column).map((column) => {
    const total = Object.values(column).reduce((sum, seconds) => sum + seconds, 0);
    return total ? (column.sync ?? 0) / total : 0;
  });
  if (!waits.length) return "no step in the last ten minutes";
  const [first, last] = [waits[0], waits.at(-1)].map((share) => Math.round(100 * share));
  return `waited ${first} % of its step at first, ${last} % now`;
}
