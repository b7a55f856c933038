// SPDX-License-Identifier: GPL-3.0-or-later
// Jobs of one host that outlive their runs. The host is asked by a run; what it said stays until it is asked again.
import { byId, element, link, onClick, send, state, time } from "./dom.js";

const name = new URLSearchParams(location.search).get("name");
const host = `host=${encodeURIComponent(name)}`;
const open = new Set();
const logs = new Map(); // by job: the element with its output, and the stream that fills it
const MOST_LINES = 2000;
const sure = new Set(); // jobs whose end was asked for once
let last = "";

function button(job, operation, text, kind) {
  const made = element("button", { class: kind, disabled: job.asking !== null && job.asking_for !== "output", "aria-label": `${text}: ${job.job_name}` }, operation === "kill" && sure.has(job.id) ? "Really end it?" : text);
  onClick(made, async () => {
    if (operation === "kill" && !sure.has(job.id)) { sure.add(job.id); made.textContent = "Really end it?"; made.disabled = false; return; }
    sure.delete(job.id);
    if (operation === "output") { open.add(job.id); log(job).wanted = true; }
    await send("POST", `/api/hosts/jobs/${job.id}/${operation}?${host}`);
    await look();
  });
  return made;
}

// One element for each job, which stays when the box around it is made again: what is selected and scrolled to stays with it.
function log(job) {
  if (!logs.has(job.id)) logs.set(job.id, { shown: element("pre", { tabIndex: 0, "aria-label": `Output of ${job.job_name}` }, job.output), run: null, source: null, wanted: false, told: job.output });
  return logs.get(job.id);
}

function append(one, text) {
  const stays = one.shown.scrollTop + one.shown.clientHeight >= one.shown.scrollHeight - 30;
  one.shown.textContent = `${one.shown.textContent}${text}\n`.split("\n").slice(-MOST_LINES - 1).join("\n");
  if (stays) one.shown.scrollTop = one.shown.scrollHeight;
}

// The run that asks for the output tells what the job prints as it comes, for a minute; while the reader looks, it is asked again.
function follow(job) {
  const one = log(job);
  if (job.asking === null || job.asking_for !== "output" || one.run === job.asking) return;
  one.source?.close();
  one.run = job.asking;
  let first = true;
  const began = performance.now();
  one.source = new EventSource(`/api/runs/${job.asking}/stream`);
  one.source.addEventListener("events", (message) => {
    for (const event of JSON.parse(message.data).events) {
      if (event.event !== "runner_on_output") continue;
      if (first) { one.shown.textContent = ""; first = false; } // it begins with the last lines again
      append(one, event.text);
    }
  });
  one.source.addEventListener("end", async () => {
    one.source.close();
    one.source = null;
    await look();
    const now = jobs.find((other) => other.id === job.id);
    const waited = performance.now() - began > 20000; // a job that prints into a pipe has nothing to wait for: it is asked once
    if (one.wanted && waited && open.has(job.id) && !document.hidden && now?.state === "running" && now.asking === null) await send("POST", `/api/hosts/jobs/${job.id}/output?${host}`);
    else one.wanted = false;
    await look();
  });
}

function stop(job) {
  const made = element("button", { "aria-label": `Stop following: ${job.job_name}` }, "Stop following");
  onClick(made, async () => { log(job).wanted = false; await send("POST", `/api/runs/${job.asking}/cancel`); await look(); });
  return made;
}

function box(job) {
  const one = log(job);
  if (one.told !== job.output && !one.source) { one.told = job.output; one.shown.textContent = job.output; }
  const following = job.asking !== null && job.asking_for === "output";
  const about = [];
  if (following) about.push("following its output in ", link(`/runs/${job.asking}`, `run ${job.asking}`), " ");
  else if (job.asking) about.push("asking the host in ", link(`/runs/${job.asking}`, `run ${job.asking}`), " … ");
  else if (job.run) about.push("seen ", ...(job.seen ? [time(job.seen)] : []), " by ", link(`/runs/${job.run}`, `run ${job.run}`), " ");
  else about.push("the host was not asked yet ");
  const steer = byId("may-steer").dataset.may ? [button(job, "status", "Ask the host", ""), " ", following ? stop(job) : button(job, "output", "Follow the output", ""), " ", button(job, "kill", "End the job", "danger")] : [];
  const output = element("details", { open: open.has(job.id) }, element("summary", {}, "Output"), one.shown);
  output.addEventListener("toggle", () => (output.open ? open.add(job.id) : open.delete(job.id)));
  return element("div", { class: "job" },
    element("p", {}, element("strong", {}, job.job_name), " ", ...(job.state ? [state(job.state)] : []), job.why ? ` ${job.why}` : ""),
    element("p", { class: "quiet" }, [job.playbook_name, job.project].filter(Boolean).join(" · "), " · saved ", job.saved ? time(job.saved) : "not yet", " · ", ...about),
    element("p", { class: "actions" }, ...steer), ...(job.output || following || one.shown.textContent ? [output] : []));
}

let jobs = [];

function draw(answer) {
  jobs = answer.jobs;
  const text = JSON.stringify(jobs);
  if (text === last) return; // what is the same stays, and the pointer's target with it
  last = text;
  byId("jobs").hidden = jobs.length === 0;
  byId("job-list").replaceChildren(...jobs.map(box));
  jobs.forEach(follow);
}

async function look() { draw(await send("GET", `/api/hosts/jobs?${host}`)); }

// Nobody reads on: the worker is to be free for others.
addEventListener("pagehide", () => {
  const csrf = document.querySelector("meta[name=forkless-csrf]").content;
  for (const one of logs.values()) {
    if (one.wanted && one.source) fetch(`/api/runs/${one.run}/cancel`, { method: "POST", keepalive: true, headers: { "content-type": "application/json", "x-forkless-csrf": csrf }, body: "{}" });
  }
});
draw(JSON.parse(byId("boot-jobs").textContent));
setInterval(() => { if (!document.hidden) look().catch(() => {}); }, 3000); // fleet.js says that the server is away
