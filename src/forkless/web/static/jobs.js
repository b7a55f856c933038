// SPDX-License-Identifier: GPL-3.0-or-later
// Jobs of one host that outlive their runs. The host is asked by a run; what it said stays until it is asked again.
import { byId, element, link, onClick, send, state, time } from "./dom.js";

const name = new URLSearchParams(location.search).get("name");
const host = `host=${encodeURIComponent(name)}`;
const open = new Set();
const sure = new Set(); // jobs whose end was asked for once
let last = "";

function button(job, operation, text, kind) {
  const made = element("button", { class: kind, disabled: job.asking !== null, "aria-label": `${text}: ${job.job_name}` }, operation === "kill" && sure.has(job.id) ? "Really end it?" : text);
  onClick(made, async () => {
    if (operation === "kill" && !sure.has(job.id)) { sure.add(job.id); made.textContent = "Really end it?"; made.disabled = false; return; }
    sure.delete(job.id);
    if (operation === "output") open.add(job.id);
    await send("POST", `/api/hosts/jobs/${job.id}/${operation}?${host}`);
    await look();
  });
  return made;
}

function box(job) {
  const about = [];
  if (job.asking) about.push("asking the host in ", link(`/runs/${job.asking}`, `run ${job.asking}`), " … ");
  else if (job.run) about.push("seen ", ...(job.seen ? [time(job.seen)] : []), " by ", link(`/runs/${job.run}`, `run ${job.run}`), " ");
  else about.push("the host was not asked yet ");
  const steer = byId("may-steer").dataset.may ? [button(job, "status", "Ask the host", ""), " ", button(job, "output", "Show the output", ""), " ", button(job, "kill", "End the job", "danger")] : [];
  const output = element("details", { open: open.has(job.id) }, element("summary", {}, "Output"), element("pre", { tabIndex: 0 }, job.output));
  output.addEventListener("toggle", () => (output.open ? open.add(job.id) : open.delete(job.id)));
  return element("div", { class: "job" },
    element("p", {}, element("strong", {}, job.job_name), " ", ...(job.state ? [state(job.state)] : []), job.why ? ` ${job.why}` : ""),
    element("p", { class: "quiet" }, [job.playbook_name, job.project].filter(Boolean).join(" · "), " · saved ", job.saved ? time(job.saved) : "not yet", " · ", ...about),
    element("p", { class: "actions" }, ...steer), ...(job.output ? [output] : []));
}

function draw({ jobs }) {
  const text = JSON.stringify(jobs);
  if (text === last) return; // what is the same stays, and the pointer's target with it
  last = text;
  byId("jobs").hidden = jobs.length === 0;
  byId("job-list").replaceChildren(...jobs.map(box));
}

async function look() { draw(await send("GET", `/api/hosts/jobs?${host}`)); }

draw(JSON.parse(byId("boot-jobs").textContent));
setInterval(() => { if (!document.hidden) look().catch(() => {}); }, 3000); // fleet.js says that the server is away
