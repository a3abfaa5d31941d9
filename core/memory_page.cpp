// Snapshots of memory as a page: for each allocator a stack of areas, one for each op and module, and a bar
// for each segment.
#include <tapedeck/core/memory.h>

namespace tapedeck {

namespace {

constexpr const char* kBefore = R"html(<!doctype html>
<meta charset="utf-8">
<title>Memory</title>
<style>
  body { font: 14px system-ui, sans-serif; margin: 20px; color: #222; background: #fff; }
  canvas { width: 100%; border: 1px solid #ccc; display: block; }
  .bars { max-height: 160px; overflow: hidden auto; margin-top: 8px; }
  #tip { position: fixed; display: none; pointer-events: none; background: #222e; color: #fff; padding: 6px 9px;
         border-radius: 4px; font-size: 12px; white-space: pre; }
  table { border-collapse: collapse; margin: 8px 0 30px; }
  td, th { padding: 1px 12px 1px 0; text-align: right; }
  td:nth-child(2), td:nth-child(3), th:nth-child(2), th:nth-child(3) { text-align: left; }
  i { display: inline-block; width: 12px; height: 12px; }
</style>
<label><input type="checkbox" id="even"> one event after the other, instead of time</label>
<div id="tip"></div>
<script>
const pools = [)html";

constexpr const char* kAfter = R"html(];
const even = document.getElementById("even"), tip = document.getElementById("tip");
const make = (parent, kind, text = "") => {
  const element = parent.appendChild(document.createElement(kind));
  element.textContent = text;
  return element;
};
const show = bytes => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(bytes) >= 1024 && unit < 4) { bytes /= 1024; unit++; }
  return (unit ? bytes.toFixed(2) : bytes) + " " + units[unit];
};
const tell = (mouse, text) => {
  tip.textContent = text;
  tip.style.display = text ? "block" : "none";
  tip.style.left = Math.min(mouse.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(mouse.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
};

function add(pool) {
  const {tags, history: events} = pool;
  const named = t => (tags[t].op || "other") + (tags[t].module ? " in " + tags[t].module : "");
  const order = tags.map((_, t) => t).sort((a, b) => tags[b].peak - tags[a].peak);  // the largest lowest
  const colour = [];
  order.forEach((t, k) => colour[t] = `hsl(${k * 137.5 % 360} 60% ${52 + 12 * (k % 3)}%)`);
  make(document.body, "h3", `${pool.device}: ${show(pool.in_use)} in use of ${show(pool.reserved)}, ` +
    `peak ${show(pool.peak)}, fragmentation ${Math.round(100 * pool.fragmentation)}%`);

  const chart = make(document.body, "canvas");
  chart.style.height = "360px";
  const last = events.length ? Math.max(1, events[events.length - 1][0]) : 1;
  let top = 1, held = 0;
  for (const e of events) top = Math.max(top, held += e[2]);
  const place = k => even.checked ? (k + 1) / (events.length + 1) : events[k][0] / last;
  let columns = [];  // of each pixel: the event after which most was in use there, and how much of each tag

  function draw() {
    const w = chart.width = chart.clientWidth, h = chart.height = chart.clientHeight, c = chart.getContext("2d");
    const sums = tags.map(() => 0);
    columns = [];
    let total = 0, x = -1, most = 0, steps = [];
    const keep = k => columns[x] = {event: k, sums: sums.slice()};
    events.forEach((e, k) => {
      const here = Math.min(w - 1, Math.floor(place(k) * w));
      if (here > x) {  // what was in use before holds until here
        const before = columns[x] && {event: k - 1, sums: sums.slice()};
        for (let fill = x + 1; fill < here; fill++) columns[fill] = before;
        x = here;
        most = total;
        keep(Math.max(0, k - 1));
      }
      sums[e[3]] += e[2];
      if ((total += e[2]) > most) { most = total; keep(k); }
      if (k && e[4] !== events[k - 1][4]) steps.push([here, e[4]]);
    });
    for (let fill = x + 1; fill < w && events.length; fill++) columns[fill] = {event: events.length - 1, sums};
    columns.forEach((column, at) => {
      if (!column) return;
      let y = h;
      for (const t of order) {
        const height = column.sums[t] / top * (h - 20);
        c.fillStyle = colour[t];
        c.fillRect(at, y - height, 1, height);
        y -= height;
      }
    });
    c.font = "12px system-ui, sans-serif";
    c.fillStyle = "#222";
    c.fillText(events.length ? `at most ${show(top)}, ${events.length} events in ${(last / 1000).toFixed(1)} ms`
                             : "no history: record_memory_history() starts one", 6, 14);
    c.strokeStyle = "#0005";
    let free = 300;
    for (const [at, step] of steps) {
      c.beginPath(); c.moveTo(at, 18); c.lineTo(at, h); c.stroke();
      if (at < free) continue;
      c.fillText(`step ${step}`, at + 3, 14);
      free = at + 70;
    }
  }

  chart.onmousemove = mouse => {
    const column = columns[Math.min(chart.width - 1, Math.max(0, Math.floor(mouse.offsetX)))];
    if (!column) return tell(mouse, "");
    const [time, , , , step] = events[column.event];
    const total = column.sums.reduce((a, b) => a + b, 0);
    const lines = [`step ${step}, ${(time / 1000).toFixed(3)} ms: ${show(total)} in use`];
    let y = (chart.clientHeight - mouse.offsetY) / (chart.clientHeight - 20) * top;
    const under = order.find(t => (y -= column.sums[t]) < 0);
    if (under !== undefined && y + column.sums[under] >= 0) {
      const live = new Map();
      for (let k = 0; k <= column.event; k++) {
        const e = events[k];
        if (e[2] > 0) live.set(e[1], e); else live.delete(e[1]);
      }
      const blocks = [...live.values()].filter(e => e[3] === under).sort((a, b) => b[2] - a[2]);
      lines.push(`${named(under)}: ${show(column.sums[under])} in ${blocks.length} blocks`);
      for (const e of blocks.slice(0, 8)) lines.push(`  ${show(e[2])} ${e[5]} since step ${e[4]}`);
      if (blocks.length > 8) lines.push("  ...");
    }
    tell(mouse, lines.join("\n"));
  };
  chart.onmouseleave = mouse => tell(mouse, "");

  const bars = make(document.body, "div");
  bars.className = "bars";
  for (const segment of pool.segments) {
    const bar = make(bars, "canvas");
    bar.style.height = "14px";
    const w = bar.width = 1000, c = bar.getContext("2d");
    bar.height = 1;
    for (const b of segment.blocks) {
      c.fillStyle = b.state === "free" ? "#fff" : colour[b.tag];
      c.fillRect(b.offset / segment.bytes * w, 0, Math.max(1, b.bytes / segment.bytes * w), 1);
    }
    bar.onmousemove = mouse => {
      const at = mouse.offsetX / bar.clientWidth * segment.bytes;
      const b = segment.blocks.find(block => at < block.offset + block.bytes);
      tell(mouse, `a segment of ${show(segment.bytes)}` + (b ? `; here ${show(b.bytes)} ` +
        (b.state === "free" ? "free" : `of ${named(b.tag)} ${b.shape}`) : ""));
    };
    bar.onmouseleave = mouse => tell(mouse, "");
  }

  const table = make(document.body, "table"), head = make(table, "tr");
  for (const text of ["", "op", "module", "in use", "peak", "allocations"]) make(head, "th", text);
  for (const t of order) {
    const row = make(table, "tr");
    make(make(row, "td"), "i").style.background = colour[t];
    for (const text of [tags[t].op || "other", tags[t].module, show(tags[t].in_use), show(tags[t].peak),
                        tags[t].allocations]) make(row, "td", text);
  }
  return draw;
}
const drawings = pools.map(add), draw = () => drawings.forEach(f => f());
even.onchange = onresize = draw;
draw();
</script>
)html";

}  // namespace

std::string memory_page(const std::vector<std::string>& snapshots) {
  std::string page = kBefore;
  for (const std::string& snapshot : snapshots) page += snapshot + ",\n";
  return page + kAfter;
}

}  // namespace tapedeck
