// SPDX-License-Identifier: GPL-3.0-or-later
import { boot, byId, element, listen, post, span, time, took } from "./dom.js";
import { Grid } from "./grid.js";

const MOST_LINES = 5000;
const MOST_FAILURES = 500;
let run = boot();
let heard = performance.now();
let last = 0;
let failures = 0;
const grid = new Grid(byId("grid"), byId("cell"));
const log = byId("log");

const over = () => !["waiting", "running"].includes(run.status);

function fact(name, value) {
  return value === "" || value === null || value === undefined ? [] : [element("div", {}, element("dt", {}, name), element("dd", {}, value))];
}

function drawRun() {
  const state = byId("state");
  state.textContent = run.stopping ? "stopping" : run.status;
  state.className = `state ${run.status}`;
  byId("facts").replaceChildren(
    ...fact("Launched", time(run.created)), ...fact("By", run.created_by), ...fact("Took", element("span", { id: "took" }, span(took(run, heard)))),
    ...fact("Inventory", run.inventory.join(", ")), ...fact("Limit", run.limit), ...fact("Tags", run.tags.join(", ")), ...fact("Mode", run.check ? "check" : ""),
    ...fact("Hosts", run.hosts || ""), ...fact("Tasks", run.tasks || ""), ...fact("Ok", run.ok || ""), ...fact("Changed", run.changed || ""),
    ...fact("Failures", run.failures || ""), ...fact("Worker", run.worker), ...fact("Attempt", run.attempt > 1 ? run.attempt : ""),
    ...fact("Again from", run.relaunch_of ? element("a", { href: `/runs/${run.relaunch_of}` }, `run ${run.relaunch_of}`) : ""),
    ...fact("ansible-core", run.versions.ansible_core ?? ""), ...fact("Python", run.versions.python ?? ""),
  );
  byId("at").textContent = run.at;
  byId("sentence").hidden = !run.sentence;
  byId("sentence").textContent = run.sentence;
  byId("cancel").hidden = over();
  byId("cancel").disabled = run.stopping;
  byId("relaunch").hidden = !over();
  byId("relaunch-failed").hidden = !(over() && run.failures);
}

function addFailure(event) {
  failures += 1;
  byId("failure-count").textContent = failures > MOST_FAILURES ? `${failures}, of which ${MOST_FAILURES} are shown` : failures;
  if (failures > MOST_FAILURES) return;
  const box = byId("failures");
  if (failures === 1) box.replaceChildren();
  box.append(element("details", { class: `failure ${event.state}`, open: failures <= 5 },
    element("summary", {}, element("strong", {}, event.host), ` · ${event.task} `, element("span", { class: "quiet" }, `${event.state}${event.path ? ` · ${event.path}` : ""}`)),
    element("pre", { tabIndex: 0 }, event.output || event.text)));
}

function addLog(text) {
  if (!text) return;
  const stays = log.scrollTop + log.clientHeight >= log.scrollHeight - 30;
  log.append(element("span", {}, `${text}\n`));
  while (log.childElementCount > MOST_LINES) log.firstElementChild.remove();
  return stays;
}

function events(answer) {
  let stays = false;
  for (const event of answer.events) {
    if (event.n <= last) continue;
    last = event.n;
    grid.add(event);
    if (["failed", "unreachable", "ignored"].includes(event.state)) addFailure(event);
    stays = addLog(event.text) || stays;
  }
  if (stays) log.scrollTop = log.scrollHeight;
  byId("grid-size").textContent = `${grid.hostNames.length} × ${grid.taskNames.length}`;
  byId("behind").textContent = answer.behind ? `catching up: ${answer.behind} events to go` : "";
  document.body.dataset.position = last;
  grid.soon();
}

function tell(sentence) {
  byId("told").hidden = false;
  byId("told").textContent = sentence;
}

function act(id, call) {
  byId(id).addEventListener("click", async () => {
    byId(id).disabled = true;
    byId("told").hidden = true;
    try { await call(); } catch (err) { tell(err.message); byId(id).disabled = false; }
  });
}

act("cancel", async () => { run = { ...run, stopping: true }; drawRun(); run = await post(`/api/runs/${run.id}/cancel`); heard = performance.now(); drawRun(); });
act("relaunch", async () => { location.href = `/runs/${(await post(`/api/runs/${run.id}/relaunch`, { failed: false })).id}`; });
act("relaunch-failed", async () => { location.href = `/runs/${(await post(`/api/runs/${run.id}/relaunch`, { failed: true })).id}`; });
byId("copy").addEventListener("click", async () => {
  try { await navigator.clipboard.writeText(run.command); byId("copy").textContent = "Copied"; } catch { tell(run.command); }
});

drawRun();
setInterval(() => { if (run.started && !run.ended) byId("took").textContent = span(took(run, heard)); }, 1000);
const stop = listen(() => `/api/runs/${run.id}/stream?after=${last}`, {
  run: (fresh) => { run = fresh; heard = performance.now(); drawRun(); },
  events,
  end: () => { stop(); if (!failures) byId("failures").replaceChildren(element("p", { class: "quiet" }, "None.")); },
  gone: () => { stop(); tell("This run was removed from the queue."); },
});
