// SPDX-License-Identifier: GPL-3.0-or-later
import { boot, byId, connection, element, go, link, listen, onClick, post, send, span, tell, time, took } from "./dom.js";
import { Grid } from "./grid.js";
import { search } from "./search.js";
import { Timeline } from "./timeline.js";

const MOST_LINES = 5000;
const FAR_BEHIND = 1000;
const MOST_FAILURES = 500;
let run = boot();
let heard = performance.now();
let last = 0;
let failures = 0;
let ignored = 0;
const grid = new Grid(byId("grid"), byId("cell"));
const timeline = new Timeline(byId("timeline"), byId("span"));
const log = byId("log");
const running = new Map();
const MOST_DIFFS = 200;
const MOST_RUNNING = 20;
let diffs = 0;

const seconds = (iso) => Date.parse(iso) / 1000;
const over = () => !["waiting", "running"].includes(run.status);

// What would move the parts below while a mouse is over them waits until it has left. Under one key the last call counts.
const below = byId("below");
const waiting = new Map();
const isPointedAt = () => matchMedia("(hover: hover)").matches && below.matches(":hover");
function unmoved(key, call) {
  if (isPointedAt()) waiting.set(key, call); else call();
}
function settle() {
  if (!waiting.size || isPointedAt()) return;
  const calls = [...waiting.values()];
  waiting.clear();
  for (const call of calls) call();
  countFailures();
}
below.addEventListener("pointerleave", settle);

function fact(name, value) {
  return value === "" || value === null || value === undefined ? [] : [element("div", {}, element("dt", {}, name), element("dd", {}, value))];
}

function drawRun() {
  const state = byId("state");
  state.textContent = run.stopping ? "stopping" : run.status;
  state.className = `state ${run.status}`;
  byId("facts").replaceChildren(
    ...fact("Launched", time(run.created)), ...fact("By", run.created_by), ...fact("Took", element("span", { id: "took" }, span(took(run, heard)))),
    ...fact("Inventory", run.inventory.join(", ")), ...fact("Limit", run.limit), ...fact("Tags", run.tags.join(", ")), ...fact("Skipped tags", run.skip_tags.join(", ")), ...fact("Mode", [run.check ? "check" : "", run.diff ? "diff" : ""].filter(Boolean).join(", ")),
    ...(run.started ? [["Hosts", run.hosts], ["Tasks", run.tasks], ["Ok", run.ok], ["Changed", run.changed], ["Failures", run.failures]].flatMap(([name, value]) => fact(name, value)) : []),
    ...fact("Attempt", run.attempt > 1 ? run.attempt : ""),
    ...fact("Again from", run.relaunch_of ? link(`/runs/${run.relaunch_of}`, `run ${run.relaunch_of}`) : ""),
    ...fact("Note", run.note),
  );
  byId("about").replaceChildren(
    ...fact("Project", run.project), ...fact("Commit", run.commit), ...fact("Variables", run.given.map((name) => name.replace(/^extra_vars\./, "")).join(", ")),
    ...fact("Slices", run.slices || ""), ...fact("Labels", run.labels.join(", ")), ...fact("Worker", run.worker), ...fact("forkless", run.versions.forkless ?? ""),
    ...fact("ansible-core", run.versions.ansible_core ?? ""), ...fact("Python", run.versions.python ?? ""),
  );
  byId("at").textContent = byId("at").title = run.at;
  unmoved("sentence", drawSentence);
  byId("report").hidden = !over();
  if (over()) {
    byId("compare").href = run.relaunch_of ? `/compare?first=${run.relaunch_of}&second=${run.id}` : `/compare?second=${run.id}`;
    byId("compare").removeAttribute("aria-disabled");
    running.clear(); drawRunning();
    grid.ended = timeline.ended = true;
    grid.soon(); timeline.soon();
  }
  for (const [id, may] of [["cancel", !over() && !run.stopping], ["relaunch", over()], ["relaunch-failed", over() && run.failures > 0]]) {
    if (byId(id) && !byId(id).hasAttribute("aria-busy")) byId(id).disabled = !may;
  }
}

function drawSentence() {
  const silent = run.silent_since;
  byId("sentence").className = silent || ["failed", "lost"].includes(run.status) ? "message wrong" : "message";
  byId("sentence").hidden = !silent && (!run.sentence || run.sentence === run.status);
  byId("sentence").replaceChildren(...(silent ? [`The worker ${run.worker} gave no sign since `, time(silent), ". If that goes on, the run is given up at ", time(run.lost_at), "."] : [run.sentence]));
  byId("at").hidden = over();
}

function countFailures() {
  const all = failures + ignored;
  byId("failure-count").textContent = !all ? "" : [
    failures, ignored ? `and ${ignored} ignored` : "", all > MOST_FAILURES ? `of which ${MOST_FAILURES} are shown` : "",
    [...waiting.keys()].some((key) => key.startsWith("failure")) ? "shown when the pointer leaves what is below" : "",
  ].filter(Boolean).join(", ").replace(", and", " and");
}

// Those that ended a host's run first, those that were ignored behind them.
function addFailure(event) {
  const isIgnored = event.state === "ignored";
  const number = isIgnored ? ++ignored : ++failures;
  const all = failures + ignored;
  if (all <= MOST_FAILURES) unmoved(`failure ${all}`, () => {
    const box = byId("failures");
    if (!box.querySelector(".failure")) box.replaceChildren();
    box.insertBefore(element("details", { class: `failure ${event.state}`, open: number <= 5 },
      element("summary", {}, element("strong", {}, event.host), ` · ${event.task} `, element("span", { class: "quiet" }, `${event.state}${event.path ? ` · ${event.path}` : ""}`)),
      element("pre", { tabIndex: 0 }, event.output || event.text || "")), isIgnored ? null : box.querySelector(".failure.ignored"));
  });
  countFailures();
}

function addDiff(event) {
  const number = ++diffs;
  if (number > MOST_DIFFS) {
    byId("change-count").textContent = `${diffs}, of which ${MOST_DIFFS} are shown`;
    return;
  }
  unmoved(`diff ${number}`, () => putDiff(event, number));
}

function putDiff(event, number) {
  byId("changes").hidden = false;
  byId("change-count").textContent = diffs > MOST_DIFFS ? `${diffs}, of which ${MOST_DIFFS} are shown` : diffs;
  const kind = (line) => (/^(\+\+\+|---) |^@@ /.test(line) ? "quiet" : line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "");
  const lines = event.diff.split("\n").map((line) => element("span", { class: kind(line) }, `${line}\n`));
  byId("diffs").append(element("details", { class: "failure changed", open: number <= 3 },
    element("summary", {}, element("strong", {}, event.host), ` · ${event.task} `, element("span", { class: "quiet" }, event.path ?? "")),
    element("pre", { tabIndex: 0 }, ...lines)));
}

// What runs, with the last lines that it printed.
function follow(event) {
  const key = `${event.key} ${event.host}`;
  if (event.state === "running") running.set(key, { host: event.host, task: event.task, since: event.at, lines: [] });
  else if (event.state) running.delete(key);
  else if (event.event === "runner_on_output" && running.has(key)) {
    const { lines } = running.get(key);
    lines.push(...(event.text ?? "").split("\n"));
    lines.splice(0, lines.length - 5);
  }
}

function drawRunning() {
  const box = byId("running");
  // Of one height while the run is under way: nothing below it moves.
  if (byId("now").hidden !== (over() || last === 0)) unmoved("now", () => { byId("now").hidden = over() || last === 0; });
  byId("now-count").textContent = running.size > MOST_RUNNING ? `${running.size} hosts, of which ${MOST_RUNNING} are shown` : "";
  box.classList.toggle("one", run.hosts <= Math.max(1, Math.floor((box.clientWidth + 6) / 326)));
  box.replaceChildren(...[...running.values()].slice(0, MOST_RUNNING).map((one) => element("div", { class: "working" },
    element("p", { title: `${one.host} · ${one.task}` }, element("strong", {}, one.host), ` · ${one.task}`),
    element("div", { class: "tail" }, element("pre", {}, one.lines.join("\n"))))));
}

// One change of the page for each message: a look at the height of the log after each line would lay it out each time.
function addLog(texts) {
  if (!texts.length) return;
  const stays = log.scrollTop + log.clientHeight >= log.scrollHeight - 30;
  const lines = texts.slice(-MOST_LINES);
  for (let many = log.childElementCount + lines.length - MOST_LINES; many > 0; many--) log.firstElementChild.remove();
  log.append(...lines.map((text) => element("span", {}, `${text}\n`)));
  if (stays) log.scrollTop = log.scrollHeight;
}

function events(answer) {
  const printed = [];
  for (const event of answer.events) {
    if (event.n <= last) continue;
    last = event.n;
    grid.add(event);
    timeline.add(event);
    follow(event);
    if (event.diff) addDiff(event);
    if (["failed", "unreachable", "ignored"].includes(event.state)) addFailure(event);
    if (event.text && event.event !== "runner_on_output") printed.push(event.text);
  }
  addLog(printed);
  if (over()) running.clear(); // the past of a run that has ended is read here: nothing runs
  byId("grid-size").textContent = `${grid.hostNames.length} × ${grid.taskNames.length}`;
  byId("behind").textContent = answer.behind ? `catching up: ${answer.behind} events to go` : "";
  document.body.dataset.position = last;
  grid.soon();
  timeline.soon();
  drawRunning();
}

let asksToCancel = false;
onClick(byId("cancel"), async () => {
  asksToCancel = true;
  run = { ...run, stopping: true };
  drawRun();
  try {
    const answer = await post(`/api/runs/${run.id}/cancel`);
    if (over()) return; // the stream was faster and has ended: the answer is from before the end
    run = answer;
  } catch (err) {
    if (over()) return; // it has ended by itself meanwhile
    run = { ...run, stopping: false };
    drawRun();
    throw err;
  } finally {
    asksToCancel = false;
  }
  heard = performance.now();
  drawRun();
});
for (const [id, failed] of [["relaunch", false], ["relaunch-failed", true]]) {
  onClick(byId(id), async () => { go(`/runs/${(await post(`/api/runs/${run.id}/relaunch`, { failed })).id}`); });
}
for (const [id, other] of [["by-host", "by-worker"], ["by-worker", "by-host"]]) {
  byId(id).addEventListener("click", () => {
    timeline.byHost = id === "by-host";
    byId(id).setAttribute("aria-pressed", "true");
    byId(other).setAttribute("aria-pressed", "false");
    byId("span").textContent = !timeline.byHost && timeline.spans.length && !timeline.lanes ? "This run is too long to know its workers here; by host is whole." : "Point at the timeline, touch it, or use the arrow keys.";
    timeline.soon();
  });
}
byId("copy").addEventListener("click", async () => {
  byId("copy").style.minWidth = `${byId("copy").offsetWidth}px`; // the buttons beside it stay where they are
  try { await navigator.clipboard.writeText(run.command); byId("copy").textContent = "Copied"; } catch { tell(run.command); }
});

search(run.id);
drawRun();
setInterval(() => {
  settle(); // a pointer can leave without a word, with a window that is closed above the page
  if (!run.started || run.ended) return;
  byId("took").textContent = span(took(run, heard));
  timeline.until(seconds(run.started) + took(run, heard), seconds(run.started));
}, 1000);

// A long run is read in compressed answers first: a stream is sent as it is, and a slow line would take ten times as long.
async function catchUp() {
  try {
    const ask = (after) => (run.counter - after > FAR_BEHIND ? send("GET", `/api/runs/${run.id}/events?after=${after}`) : null);
    for (let next = ask(last); next !== null;) {
      const answer = await next;
      if (!answer.events.length) return;
      next = ask(answer.events.at(-1).n); // the server reads on while this part is drawn
      next?.catch(() => {}); // it is looked at in the next round
      events(answer);
    }
  } catch { connection("away"); } // the stream goes on from here, and says what is wrong
}
await catchUp();
const stop = listen(() => `/api/runs/${run.id}/stream?after=${last}`, {
  run: (fresh) => {
    run = fresh;
    if (asksToCancel && !over()) run = { ...fresh, stopping: true }; // it may be from before the server was asked to cancel
    heard = performance.now();
    drawRun();
  },
  events,
  end: () => { stop(); if (run.ended) timeline.until(seconds(run.ended), seconds(run.started)); if (!failures && !ignored) byId("failures").replaceChildren(element("p", { class: "quiet" }, "None.")); },
  gone: () => { stop(); tell("This run was removed from the queue."); },
});
