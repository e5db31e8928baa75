"""How the page looks, and the few lines of script that show values under the pointer."""

CSS = """
:root { color-scheme: light dark; --fg: #1d2530; --dim: #66717f; --bg: #f6f7f9; --card: #fff;
  --rule: #e3e6ea;
  --idle: #f0f0f0; --c0: #2f6fb5; --c1: #d9791e; --c2: #3f8f5c; --c3: #8d62b3; --c4: #b5443c;
  --c5: #2a9aa5; --c6: #96762a; --c7: #5d6775; }
@media (prefers-color-scheme: dark) { :root { --fg: #dfe4ea; --dim: #94a0ae; --bg: #14181d;
  --card: #1c2229; --rule: #303841;
  --idle: #2a313a; --c0: #6aa6ea; --c1: #f0a050; --c2: #6dc08a; --c3: #b994de;
  --c4: #e5776f; --c5: #5cc8d3; --c6: #cbac5c; --c7: #a3adba; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--fg);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1020px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 22px; margin: 0; display: flex; gap: 12px; align-items: center; flex-wrap: wrap; }
h2 { font-size: 16px; margin: 30px 0 10px; }
p.sub { margin: 4px 0 18px; color: var(--dim); }
.pill { font-size: 12px; font-weight: 600; padding: 2px 10px; border-radius: 99px; color: #fff;
  background: var(--c7); }
.pill.ok { background: #2e7d4f; } .pill.failed { background: #b3382f; }
.pill.running { background: #2f6fb5; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 10px; }
.tile, figure, table, details, pre.error { background: var(--card);
  border: 1px solid var(--rule); border-radius: 8px; }
.tile { padding: 10px 12px; } .tile b { display: block; font-size: 19px; font-weight: 600; }
.tile span { color: var(--dim); font-size: 12px; }
.charts { display: grid; gap: 10px;
  grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr)); }
.charts.wide { grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); }
figure { margin: 0 0 10px; padding: 10px 12px 4px; position: relative; }
figcaption { font-weight: 600; font-size: 13px; margin-bottom: 2px; }
svg { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; } .scroll svg { min-width: 700px; }
.legend { font-weight: 400; font-size: 12px; color: var(--dim); margin-left: 10px; }
.legend.wide { margin: 0 0 8px; }
.key { margin-right: 12px; white-space: nowrap; }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 2px;
  margin-right: 4px; vertical-align: -1px; }
.grid { stroke: var(--rule); } .tick, .lane { fill: var(--dim); font-size: 10.5px; }
.mb { fill: #1a1a1a; font-size: 10px; pointer-events: none; }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; } .cell { fill: var(--c1); }
.none { color: var(--dim); margin: 8px 0 12px; }
table { border-collapse: separate; border-spacing: 0; width: 100%; overflow: hidden; }
th, td { text-align: left; padding: 5px 12px; border-top: 1px solid var(--rule);
  font-variant-numeric: tabular-nums; }
tr:first-child th { border-top: 0; color: var(--dim); font-weight: 500; font-size: 12px; }
td.n, th.n { text-align: right; } td.n { white-space: nowrap; } th.narrow { width: 70px; }
td .bar { display: block; height: 9px; border-radius: 3px; background: var(--c0); }
@media (max-width: 560px) { main { padding: 16px 10px 40px; }
  th, td { padding: 5px 6px; font-size: 12.5px; } td:first-child { overflow-wrap: anywhere; } }
details { padding: 10px 14px; } summary { cursor: pointer; font-weight: 600; }
pre { overflow-x: auto; font-size: 12px; margin: 8px 0 0; }
pre.error { padding: 10px 14px; border-color: #b3382f; white-space: pre-wrap; }
.tip { position: absolute; pointer-events: none; background: var(--fg); color: var(--bg);
  padding: 3px 8px; border-radius: 5px; font-size: 11.5px; white-space: pre; display: none; }
""" + "\n".join(
    f".line.c{n} {{ stroke: var(--c{n}); }} .dot.c{n} {{ fill: var(--c{n}); }} "
    f".key i.c{n} {{ background: var(--c{n}); }}"
    for n in range(8)
)

SCRIPT = """
for (const svg of document.querySelectorAll("svg.chart")) {
  const lines = JSON.parse(svg.dataset.points), tip = document.createElement("div");
  tip.className = "tip"; svg.parentNode.append(tip);
  svg.addEventListener("mousemove", event => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    let step = null; const rows = [];
    for (const [name, points] of Object.entries(lines)) {
      const near = points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
      step ??= near[1]; rows.push((Object.keys(lines).length > 1 ? name + " " : "") + near[2]);
    }
    tip.textContent = "step " + step + "\\n" + rows.join("\\n");
    tip.style.display = "block";
    const left = svg.offsetLeft + event.clientX - box.left;
    tip.style.left = Math.min(left + 14, svg.parentNode.clientWidth - tip.offsetWidth - 4) + "px";
    tip.style.top = svg.offsetTop + 8 + "px";
  });
  svg.addEventListener("mouseleave", () => { tip.style.display = "none"; });
}
"""
