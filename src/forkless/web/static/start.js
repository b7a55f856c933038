// SPDX-License-Identifier: GPL-3.0-or-later
import { boot, byId, count as counted, element, go, post, send, tell, working } from "./dom.js";

const form = byId("start");
const projects = new Map(boot().projects.map((one) => [one.name, one]));
const field = (name) => form.elements[name];

function choices(name, values, last) {
  field(name).replaceChildren(...values.map((one) => element("option", { value: one }, one)), ...last);
}

function chosenProject() {
  const project = projects.get(field("project").value);
  byId("project-trouble").hidden = !project.trouble;
  byId("project-trouble").textContent = project.trouble;
  choices("playbook", project.playbooks, []);
  choices("inventory", project.inventories, [element("option", { value: "" }, "that of ansible.cfg")]);
  return chosenPlaybook();
}

let choice = 0;

async function chosenPlaybook() {
  const box = byId("variables");
  const mine = ++choice;
  box.hidden = true;
  box.replaceChildren(box.firstElementChild); // a field that is needed and hidden would keep the form from being sent, without a word
  const playbook = field("playbook").value;
  if (!playbook) { tell("The project has no playbook: a YAML file with plays, at most three folders deep."); return; }
  byId("go").disabled = true; // until it is known what the playbook asks for
  try {
    const query = new URLSearchParams({ playbook, project: field("project").value });
    const { variables } = await send("GET", `/api/variables?${query}`);
    if (mine !== choice) return;
    box.replaceChildren(box.firstElementChild, ...variables.map(input));
    box.hidden = variables.length === 0;
  } catch (err) { tell(err.message); }
  if (mine === choice) byId("go").disabled = false;
}

function input(one) {
  let made;
  if (one.choices.length || one.type === "bool") {
    const values = one.choices.length ? one.choices : ["true", "false"];
    made = element("select", {}, element("option", { value: "" }, one.default ? `as it is (${one.default})` : ""), ...values.map((value) => element("option", {}, value)));
  } else {
    made = element("input", { type: one.secret ? "password" : "text", placeholder: one.default, autocomplete: one.secret ? "new-password" : "off" });
  }
  made.dataset.variable = one.name;
  made.required = one.required;
  return element("label", {}, `${one.label}${one.required ? " (needed)" : ""} `, element("small", { class: "quiet" }, `${one.name}, ${one.type}, ${one.source}`), made);
}

function asked() {
  const variables = {};
  for (const line of field("more").value.split("\n")) {
    if (!line.trim()) continue;
    const at = line.indexOf("=");
    if (at < 1) throw new Error("further variables are lines like name=value");
    variables[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  for (const one of form.querySelectorAll("[data-variable]")) if (one.value) variables[one.dataset.variable] = one.value;
  const slices = field("slices").value.trim();
  return {
    project: field("project").value, playbook: field("playbook").value, inventory: field("inventory").value, limit: field("limit").value,
    tags: field("tags").value, skip_tags: field("skip_tags").value, check: field("check").checked, diff: field("diff").checked,
    slices: slices === "auto" ? "auto" : Number(slices || 1), variables,
  };
}

if (form) {
  field("project").addEventListener("change", chosenProject);
  field("playbook").addEventListener("change", chosenPlaybook);
  // A look that is older than what is chosen now says nothing about it.
  let look = 0;
  const forget = () => { look += 1; byId("hosts").textContent = ""; };
  async function preview() {
    const mine = ++look;
    tell("");
    byId("hosts").textContent = "looking …";
    try {
      const { hosts, count } = await post("/api/preview", asked());
      if (mine === look) byId("hosts").textContent = `${counted(count, "host")}: ${hosts.slice(0, 30).join(", ")}${count > 30 ? " …" : ""}`;
    } catch (err) { if (mine === look) { byId("hosts").textContent = ""; tell(err.message); } }
  }
  byId("preview").addEventListener("click", preview);
  for (const name of ["project", "playbook", "inventory"]) field(name).addEventListener("change", forget);
  field("limit").addEventListener("input", forget);
  field("schedule").addEventListener("input", () => {
    field("cron").required = Boolean(field("schedule").value);
    byId("go").textContent = field("schedule").value ? "Save the schedule" : "Start";
  });
  if (location.hash === "#schedule") {
    byId("further").open = true;
    field("schedule").focus();
  }
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    tell("");
    try {
      await working(byId("go"), begin);
    } catch (err) {
      tell(err.message);
      byId("go").disabled = false;
    }
  });
  async function begin() {
    const run = asked();
    if (field("schedule").value) {
      const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
      await post("/api/schedules", { name: field("schedule").value, cron: field("cron").value, time_zone: zone, run });
      go("/schedules");
    } else go(`/runs/${(await post("/api/runs", run)).id}`);
  }
  await chosenProject();
}
