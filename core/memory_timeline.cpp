// The history of a device's memory as a page: a stack of areas, one for each op and module.
#include <tapedeck/core/memory.h>

namespace tapedeck {

namespace {

constexpr const char* kBefore = R"html(<!doctype html>
<meta charset="utf-8">
<title>Memory</title>
<style>
  body { font: 14px system-ui, sans-serif; margin: 20px; color: #222; background: #fff; }
  canvas { width: 100%; height: 420px; border: 1px solid #ccc; }
  #what { min-height: 3.2em; }
  table { border-collapse: collapse; }
  td, th { padding: 2px 12px 2px 0; text-align: right; }
  td:nth-child(2), td:nth-child(3), th:nth-child(2), th:nth-child(3) { text-align: left; }
  i { display: inline-block; width: 12px; height: 12px; }
</style>
<h2 id="title"></h2>
<label><input type="checkbox" id="even"> one allocation after the other, instead of time</label>
<canvas id="chart"></canvas>
<p id="what">Move the mouse over the chart.</p>
<table id="tags"></table>
<script>
const memory = )html";

constexpr const char* kAfter = R"html(;
const show = bytes => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(bytes) >= 1024 && unit < 4) { bytes /= 1024; unit++; }
  return (unit ? bytes.toFixed(2) : bytes) + " " + units[unit];
};
const named = tag => (tag.op || "other") + (tag.module ? " in " + tag.module : "");
const shownTags = memory.tags.map((tag, i) => ({...tag, i})).sort((a, b) => b.peak - a.peak);
const colour = memory.tags.map(() => "");
shownTags.forEach((tag, k) => colour[tag.i] = `hsl(${(k * 137.5) % 360} 60% ${55 + 12 * (k % 3)}%)`);
document.getElementById("title").textContent = `${memory.device}: ${show(memory.in_use)} in use of ${show(memory.reserved)}`;
document.getElementById("tags").innerHTML = "<tr><th></th><th>op</th><th>module</th><th>in use</th><th>peak</th><th>allocations</th></tr>" +
  shownTags.map(t => `<tr><td><i style="background:${colour[t.i]}"></i></td><td>${t.op || "other"}</td><td>${t.module}</td>` +
    `<td>${show(t.in_use)}</td><td>${show(t.peak)}</td><td>${t.allocations}</td></tr>`).join("");

const events = memory.history, canvas = document.getElementById("chart"), even = document.getElementById("even");
const last = events.length ? Math.max(1, events[events.length - 1][0]) : 1;
let top_ = 1, held = 0;
for (const e of events) { held += e[1]; top_ = Math.max(top_, held); }
const place = k => even.checked ? k / Math.max(1, events.length - 1) : events[k][0] / last;

function draw() {
  const c = canvas.getContext("2d"), w = canvas.width = canvas.clientWidth, h = canvas.height = canvas.clientHeight;
  const sums = memory.tags.map(() => 0);
  let from = 0;
  for (let k = 0; k < events.length; k++) {
    sums[events[k][2]] += events[k][1];
    const to = k + 1 < events.length ? place(k + 1) * w : w;
    // Of all that falls on one pixel the last is drawn, but peaks are kept.
    if (to < from + 1 && k + 1 < events.length && events[k + 1][1] > 0) continue;
    let y = h;
    shownTags.forEach(tag => {
      const height = sums[tag.i] / top_ * (h - 20);
      if (height <= 0) return;
      c.fillStyle = colour[tag.i];
      c.fillRect(from, y - height, Math.max(1, to - from), height);
      y -= height;
    });
    from = to;
  }
  c.fillStyle = "#222";
  c.fillText(events.length ? `peak ${show(top_)}, ${events.length} events, ${(last / 1000).toFixed(1)} ms`
                           : "no history: call record_memory_history(device, true) first", 6, 13);
  let step = events.length ? events[0][3] : 0;
  c.strokeStyle = "#0004";
  events.forEach((e, k) => {
    if (e[3] === step) return;
    step = e[3];
    c.beginPath(); c.moveTo(place(k) * w, 18); c.lineTo(place(k) * w, h); c.stroke();
  });
}
canvas.onmousemove = mouse => {
  if (!events.length) return;
  const at = mouse.offsetX / canvas.clientWidth;
  let k = 0, low = 0, high = events.length - 1;
  while (low <= high) { const m = (low + high) >> 1; if (place(m) <= at) { k = m; low = m + 1; } else high = m - 1; }
  const sums = memory.tags.map(() => 0);
  for (let j = 0; j <= k; j++) sums[events[j][2]] += events[j][1];
  const [time, bytes, tag, step, shape] = events[k];
  const total = sums.reduce((a, b) => a + b, 0);
  let y = (canvas.clientHeight - mouse.offsetY) / (canvas.clientHeight - 20) * top_, under = "";
  for (const t of shownTags) { if (sums[t.i] <= 0) continue; if (y < sums[t.i]) { under = `${named(t)} holds ${show(sums[t.i])}`; break; } y -= sums[t.i]; }
  document.getElementById("what").textContent =
    `step ${step}, ${(time / 1000).toFixed(3)} ms: ${show(total)} in use. ${bytes > 0 ? "Allocates" : "Frees"} ${show(Math.abs(bytes))}` +
    ` ${shape ? "for " + shape + " " : ""}of ${named(memory.tags[tag])}. ${under ? "Here: " + under + "." : ""}`;
};
even.onchange = window.onresize = draw;
draw();
</script>
)html";

}  // namespace

std::string memory_timeline(Device device) {
  return kBefore + memory_snapshot(device) + kAfter;
}

}  // namespace tapedeck
