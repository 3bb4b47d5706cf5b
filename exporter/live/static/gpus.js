// The node's GPUs: one tile for each, with what is wrong marked on it.
import { className, keyed, make, show, text, texts, width } from "./dom.js";
import { gigabytes, percent } from "./words.js";

export function drawGpus(parent, gpus) {
  keyed(parent, gpus, (gpu) => gpu.gpu, gpuTile);
}

function gauge() {
  const filled = make("span");
  const node = make("div", "gauge", filled);
  node.setAttribute("aria-hidden", "true"); // The figure is beside it.
  return { node, fill: (ratio) => width(filled, 100 * Math.min(1, ratio ?? 0)) };
}

function gpuTile() {
  const [number, model] = [make("span"), make("span", "faint")];
  const [busy, memory, heat, ranks] = [make("p"), make("p"), make("p"), make("p", "faint")];
  const [busyGauge, memoryGauge] = [gauge(), gauge()];
  const flags = make("ul", "flags");
  const readings = make("div", "", busy, busyGauge.node, memory, memoryGauge.node, heat);
  const node = make("li", "gpu", make("h3", "", number, model), readings, ranks, flags);
  return {
    node,
    update(gpu) {
      className(node, gpu.up ? "gpu" : "gpu lost");
      text(number, "GPU " + gpu.gpu);
      text(model, gpu.name.replace(/^NVIDIA /, ""));
      show(readings, gpu.up);
      text(busy, percent(gpu.utilization_ratio) + " busy");
      busyGauge.fill(gpu.utilization_ratio);
      text(memory, gigabytes(gpu.memory_used_bytes) + " of " + gigabytes(gpu.memory_total_bytes) + " GiB");
      memoryGauge.fill(gpu.memory_total_bytes ? gpu.memory_used_bytes / gpu.memory_total_bytes : 0);
      text(heat, [[gpu.temperature_celsius, "°C", 0], [gpu.power_watts, "W", 0],
        [gpu.sm_clock_hertz == null ? null : gpu.sm_clock_hertz / 1e9, "GHz", 2]]
        .filter(([value]) => value != null).map(([value, unit, digits]) => value.toFixed(digits) + " " + unit).join(" · "));
      text(ranks, gpu.ranks.length ? gpu.ranks.map(({ job_id, rank }) => "rank " + rank + " of " + job_id).join(", ") : "no rank");
      texts(flags, "li", wrong(gpu));
      show(flags, flags.children.length > 0);
    },
  };
}

function wrong(gpu) {
  if (!gpu.up) return ["does not answer"];
  const narrow = gpu.pcie_link_width != null && gpu.pcie_link_width < gpu.pcie_link_width_max;
  return [
    ...gpu.throttle_reasons.map((reason) => reason.replaceAll("_", " ")),
    ...(narrow ? [`PCIe ×${gpu.pcie_link_width} of ×${gpu.pcie_link_width_max}`] : []),
    ...(gpu.foreign_processes ? [gpu.foreign_processes + (gpu.foreign_processes === 1 ? " foreign process" : " foreign processes")] : []),
  ];
}
