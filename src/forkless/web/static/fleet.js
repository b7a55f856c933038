// SPDX-License-Identifier: GPL-3.0-or-later
// Hosts, one host, workers, the queue, schedules: tables of what the API answers, asked again while the page is seen.
import { boot, byId, cell, connection, count, element, link, number, onClick, send, state, time } from "./dom.js";

const when = (iso) => (iso ? time(iso) : "");
const run = (id) => (id ? link(`/runs/${id}`, id) : "");
const host = (name) => link(`/host?name=${encodeURIComponent(name)}`, name);
const both = (id, at) => (id ? [run(id), " ", when(at)] : []);
const row = (...cells) => element("tr", {}, ...cells);

const kinds = {
  "/hosts": {
    ask: () => `/api/hosts${location.search}`,
    draw(answer) {
      fill("rows", answer.hosts.map((one) => row(
        cell("", host(one.host)), cell("run", run(one.run)), cell("", when(one.at)), number("failures", one.failures ? element("span", { class: "bad" }, one.failures) : ""),
        cell("last failure", ...both(one.failed_run, one.failed_at)), cell("last change", ...both(one.changed_run, one.changed_at)))));
      next("after", answer.after, "/hosts");
    },
  },
  "/host": {
    ask: () => `/api/hosts/history?${new URLSearchParams([...new URLSearchParams(location.search)].map(([name, value]) => [name === "name" ? "host" : name, value]))}`,
    draw(answer) {
      fill("rows", answer.runs.map((one) => row(
        cell("", run(one.run)), cell("", state(one.status)), cell("", one.title), cell("", when(one.ended)), number("ok", one.ok), number("changed", one.changed),
        number("failed", one.failed ? element("span", { class: "bad" }, one.failed) : ""), number("unreachable", one.unreachable ? element("span", { class: "bad" }, one.unreachable) : ""), number("skipped", one.skipped))));
      const bad = answer.runs.find((one) => one.failed || one.unreachable);
      const changed = answer.runs.find((one) => one.changed);
      byId("summary").replaceChildren(...(bad ? ["Last failure: run ", run(bad.run), ". "] : ["No failure in the runs below. "]), ...(changed ? ["Last change: run ", run(changed.run), "."] : []));
      next("before", answer.older, "/host");
    },
  },
  "/workers": {
    ask: () => "/api/workers",
    draw(answer) {
      fill("rows", answer.workers.map((one) => row(
        cell("", `${one.name} (${one.host}, process ${one.pid})`), cell("", state(one.state)), cell("run", ...(one.run ? [run(one.run), ` ${one.title}`, ...(one.at ? [element("small", { class: "quiet" }, one.at)] : [])] : [])), cell("labels", one.labels.join(", ")),
        cell("forkless", one.versions.forkless ?? ""), cell("ansible-core", one.versions.ansible_core ?? ""), cell("Python", one.versions.python ?? ""), cell("seen", when(one.seen)))));
      const places = new Map();
      for (const one of answer.workers) {
        const place = places.get(one.host) ?? places.set(one.host, { slots: 0, free: 0 }).get(one.host);
        place.slots += one.state === "away" ? 0 : 1;
        place.free += one.state === "idle" ? 1 : 0;
      }
      byId("summary").textContent = [...places].map(([name, { slots, free }]) => `${name}: ${count(slots, "slot")}, ${free} free`).join("; ");
    },
    // When each was seen changes all the time; what it does, and the pointer's target, does not.
    touch: (answer) => answer.workers.forEach((one, index) => byId("rows").rows[index].lastElementChild.replaceChildren(when(one.seen))),
  },
  "/queue": {
    ask: () => "/api/queue",
    draw(answer) {
      fill("under-way", answer.running.map((one) => row(cell("", run(one.id)), cell("", state(one.status)), cell("", one.title), cell("worker", one.slices ? count(one.slices, "slice") : one.worker), cell("at", one.at))));
      fill("rows", answer.waiting.map(({ run: one, why }) => row(
        cell("", run(one.id)), cell("", one.title), cell("limit", one.limit), cell("by", one.created_by), number("priority", one.priority), cell("waits", why))));
      const limits = Object.entries(answer.limits).map(([label, most]) => `${label}: at most ${most} at once`).join("; ");
      byId("summary").textContent = `${answer.running.length} under way, ${answer.waiting.length} waiting, ${count(answer.free_workers, "free worker")}. ${limits}`;
    },
  },
  "/schedules": {
    ask: () => "/api/schedules",
    draw(answer) {
      fill("rows", answer.schedules.map((one) => row(
        cell("", one.name), cell("", one.title, one.limit ? ` on ${one.limit}` : ""), cell("when", element("code", {}, one.cron), ` ${one.time_zone}`),
        cell("next", one.enabled ? when(one.due) : "paused"), cell("last run", run(one.last_run)), cell("by", one.created_by), cell("note", one.note), steer(one))));
    },
  },
};

function steer(one) {
  if (!byId("may-steer").dataset.may) return cell("");
  const address = `/api/schedules/${encodeURIComponent(one.name)}`;
  const pause = element("button", { "aria-label": `${one.enabled ? "Pause" : "Resume"} ${one.name}` }, one.enabled ? "Pause" : "Resume");
  onClick(pause, async () => { await send("POST", `${address}/${one.enabled ? "pause" : "resume"}`); await again(); });
  const remove = element("button", { class: "danger", "aria-label": `Remove ${one.name}` }, "Remove");
  onClick(remove, async () => {
    if (remove.dataset.sure) { await send("DELETE", address); await again(); return; }
    remove.dataset.sure = "yes"; remove.textContent = "Really remove?"; remove.disabled = false;
  });
  return cell("", pause, " ", remove);
}

function fill(id, rows) {
  byId(id).replaceChildren(...rows);
  byId(id).closest(".scroll").hidden = rows.length === 0;
  byId(id === "rows" ? "empty" : "idle").hidden = rows.length > 0;
}

function next(name, value, address) {
  const shown = byId("older");
  shown.hidden = value === null;
  if (value === null) return;
  const query = new URLSearchParams(location.search);
  query.set(name, value);
  shown.href = `${address}?${query}`;
}

const kind = kinds[location.pathname];
let last = "";

function draw(answer) {
  // What is the same stays: focus, selection and the pointer's target with it.
  const text = JSON.stringify(answer, (name, value) => (["now", "seconds", "away", "seen"].includes(name) ? undefined : value));
  if (text === last) { kind.touch?.(answer); return; }
  last = text;
  kind.draw(answer);
}

async function again() {
  last = "";
  draw(await send("GET", kind.ask()));
}

draw(boot());
setInterval(async () => {
  if (document.hidden) return;
  try { draw(await send("GET", kind.ask())); connection("live"); } catch { connection("away"); }
}, 3000);
