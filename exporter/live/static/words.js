// Figures and causes as people read them.
import { CAUSES, MARKS } from "./vocabulary.js";

export const duration = (s) => s == null ? "–" : s < 0.9995 ? (s * 1000).toPrecision(3).replace(/\.0+$/, "") + " ms"
  : s < 120 ? (s < 10 && !Number.isInteger(s) ? s.toPrecision(3) : Math.round(s)) + " s"
  : s < 7200 ? Math.round(s / 60) + " min" : Math.round(s / 3600) + " h";

export const age = (s) => s == null ? "–" : s < 2 ? "now" : s < 120 ? Math.round(s) + " s ago" : duration(s) + " ago";

export const gigabytes = (bytes) => bytes == null ? "–" : (bytes / 2 ** 30).toFixed(bytes < 10 * 2 ** 30 ? 1 : 0);

export const percent = (ratio) => ratio == null ? "–" : Math.round(100 * ratio) + " %";

// A figure in its base unit, the last part of its name in rank_probe/wire/figures.py.
export const figure = (value, unit) => value == null ? "–"
  : unit === "seconds" ? duration(value) : unit === "ratio" ? percent(value) : (scaled(value) + (UNITS[unit] ?? "")).trim();

const UNITS = { hertz: "Hz", watts: "W", celsius: "°C", bytes: "B", bytes_per_second: "B/s", per_second: "/s" };

function scaled(value) {
  const [factor, prefix] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([factor]) => Math.abs(value) >= factor) ?? [1, ""];
  return Number((value / factor).toPrecision(3)) + " " + prefix;
}

// What to say of a late rank instead of calling it late, if it costs too little or perhaps nobody waits for it.
export const mark = (late) => late.kind === "duty" && late.costs_enough ? "" : MARKS[late.kind] ?? (late.costs_enough === false ? MARKS.mild : "");

const plain = (name) => name.replaceAll("_", " ");

export function causeInShort({ cause, detail }) {
  const known = CAUSES[cause];
  return (known?.short ?? plain(cause)) + (detail ? ` (${known?.details[detail] ?? plain(detail)})` : "");
}
