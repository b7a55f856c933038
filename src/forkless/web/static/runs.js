// SPDX-License-Identifier: GPL-3.0-or-later
import { boot, byId, count, element, listen, span, time, took } from "./dom.js";

const rows = new Map();
let heard = performance.now();
let shown = boot();

function cells(run) {
  const failures = run.failures ? element("span", { class: "bad" }, run.failures) : "";
  const progress = element("td", { class: "progress" });
  if (run.status === "running") {
    progress.append(element("progress", { "aria-label": `run ${run.id} is running` }), `${count(run.tasks, "task")} · ${run.ok} ok`);
  } else if (run.tasks) progress.append([count(run.tasks, "task"), `${run.ok} ok`, run.changed ? `${run.changed} changed` : ""].filter(Boolean).join(" · "));
  else if (run.sentence) progress.append(run.sentence);
  const title = element("td", { class: "title" }, element("a", { href: `/runs/${run.id}` }, run.title));
  const about = [run.check ? "check" : "", run.silent_since ? "its worker gives no sign" : run.at].filter(Boolean).join(" · ");
  title.append(element("small", { title: about }, about));
  return [
    element("td", { class: "number" }, element("a", { href: `/runs/${run.id}` }, run.id)),
    element("td", {}, element("span", { class: `state ${run.status}` }, run.stopping ? "stopping" : run.status)),
    title,
    element("td", { "data-label": "limit" }, run.limit),
    element("td", { "data-label": "by" }, run.created_by),
    element("td", { class: "number", "data-label": "hosts" }, run.hosts || ""),
    progress,
    element("td", { class: "number", "data-label": "failures" }, failures),
    element("td", { class: "number took", "data-label": "took" }, span(took(run, heard))),
    element("td", {}, time(run.created)),
  ];
}

const body = byId("rows");
let held = null; // the answer that would move rows, while a mouse is over them; a finger never leaves them

// Rows that come or go would move the one that somebody is about to click. Those that are there are brought up to date at once.
function drawSteady(answer) {
  const there = new Map(answer.runs.map((run) => [run.id, run]));
  const moves = answer.runs.some((run) => !rows.has(run.id)) || [...rows.keys()].some((id) => !there.has(id));
  held = moves && matchMedia("(hover: hover)").matches && body.matches(":hover") ? answer : null;
  draw(held ? { ...answer, runs: [...rows].map(([id, row]) => there.get(id) ?? row.run).sort((one, other) => other.id - one.id) } : answer);
}
body.addEventListener("pointerleave", () => { if (held) { draw(held); held = null; } });

function draw(answer) {
  heard = performance.now();
  shown = answer;
  const keep = new Set(answer.runs.map((run) => run.id));
  for (const [id, row] of rows) if (!keep.has(id)) { row.element.remove(); rows.delete(id); }
  let before = null;
  for (const run of [...answer.runs].reverse()) {
    const { now, seconds, ...rest } = run;
    const text = JSON.stringify(rest);
    let row = rows.get(run.id);
    if (!row) rows.set(run.id, (row = { element: element("tr"), text: "" }));
    // A row that is the same stays the same element: focus and selection stay where they are.
    if (row.text !== text) { row.element.replaceChildren(...cells(run)); row.text = text; }
    row.run = run;
    if (row.element.nextSibling !== before || row.element.parentNode !== body) body.insertBefore(row.element, before);
    before = row.element;
  }
  byId("empty").hidden = answer.runs.length > 0;
  byId("table").hidden = answer.runs.length === 0;
  byId("counts").textContent = Object.entries(answer.counts).map(([state, many]) => `${many} ${state}`).join(" · ");
  const older = byId("older");
  older.hidden = answer.older === null;
  if (answer.older !== null) {
    const query = new URLSearchParams(location.search);
    query.set("before", answer.older);
    older.href = `/?${query}`;
  }
}

// Empty fields stay out of the address.
document.querySelector("form.filter").addEventListener("submit", (event) => {
  for (const field of event.target.elements) if (field.name && !field.value) field.disabled = true;
});
window.addEventListener("pageshow", () => { for (const field of document.querySelector("form.filter").elements) field.disabled = false; });

draw(shown);
setInterval(() => {
  for (const { element: row, run } of rows.values()) if (run.started && !run.ended) row.querySelector(".took").textContent = span(took(run, heard));
}, 1000);
const query = new URLSearchParams(location.search);
const older = byId("newest");
if (older) { query.delete("before"); older.href = `/?${query}`; }
listen(() => `/api/runs/stream${location.search}`, { runs: drawSteady });
