// SPDX-License-Identifier: GPL-3.0-or-later
import { byId, element, link, send, span, state, tell } from "./dom.js";

const query = new URLSearchParams(location.search);
for (const name of ["first", "second"]) document.querySelector(`[name=${name}]`).value = query.get(name) ?? "";

const KINDS = [["failed", "Failed now, and did not before"], ["recovered", "Failed before, and does not now"], ["changed", "Changed something now, and did not before"], ["unchanged", "Changed something before, and does not now"]];

const MOST_HOSTS = 20;

// Hosts to which the same happened are one entry: 800 of them would be 800 lines.
function differences(title, rows) {
  if (!rows.length) return [];
  const groups = new Map();
  for (const one of rows) {
    const key = JSON.stringify([one.task, one.path, one.before, one.after, one.output]);
    if (!groups.has(key)) groups.set(key, { ...one, hosts: [] });
    groups.get(key).hosts.push(one.host);
  }
  const entries = [...groups.values()].map((one) => {
    const more = one.hosts.length - MOST_HOSTS;
    const about = [element("strong", {}, one.hosts.sort().slice(0, MOST_HOSTS).join(", ")), more > 0 ? ` and ${more} more` : "", ` · ${one.task} `,
      element("span", { class: "quiet" }, `${one.before} → ${one.after}${one.path ? ` · ${one.path}` : ""}`)];
    if (!one.output && more <= 0) return element("p", { class: `failure ${one.after}` }, ...about);
    return element("details", { class: `failure ${one.after}`, open: groups.size <= 5 && Boolean(one.output) }, element("summary", {}, ...about),
      ...(more > 0 ? [element("p", {}, one.hosts.join(", "))] : []), ...(one.output ? [element("pre", { tabIndex: 0 }, one.output)] : []));
  });
  return [element("h2", {}, `${title} `, element("span", { class: "quiet" }, rows.length)), ...entries];
}

function draw(answer) {
  const about = (run) => [link(`/runs/${run.id}`, `run ${run.id}`), ` ${run.title} `, state(run.status), ` ${span(run.seconds)}`];
  const parts = [element("p", {}, ...about(answer.first), " → ", ...about(answer.second))];
  for (const [kind, title] of KINDS) parts.push(...differences(title, answer[kind]));
  if (answer.slower.length) {
    parts.push(element("h2", {}, "Slower"), element("ul", {}, ...answer.slower.map((one) => element("li", {}, `${one.task}: ${span(one.before)} → ${span(one.after)}`))));
  }
  for (const [kind, title] of [["only_first", "Hosts of the first run only"], ["only_second", "Hosts of the second run only"]]) {
    if (answer[kind].length) parts.push(element("h2", {}, title), element("p", {}, answer[kind].join(", ")));
  }
  if (parts.length === 1) parts.push(element("p", { class: "message" }, "Nothing failed, changed or got slower that did not before."));
  byId("comparison").replaceChildren(...parts);
}

if (query.get("first") && query.get("second")) {
  byId("busy").textContent = "Comparing …";
  try { draw(await send("GET", `/api/compare?${query}`)); } catch (err) { tell(err.message); }
  byId("busy").textContent = "";
}
