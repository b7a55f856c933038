// SPDX-License-Identifier: GPL-3.0-or-later
// What all pages use. Text from hosts goes in as text (textContent), never as markup.

export const byId = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("data-") || name.startsWith("aria-")) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.map((one) => (one instanceof Node ? one : document.createTextNode(String(one)))));
  return made;
}

export const boot = () => JSON.parse(byId("boot").textContent);

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

const moment = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
export const time = (iso) => element("time", { dateTime: iso, title: iso }, moment.format(new Date(iso)));

// How long a run has taken: by the server's clock until the answer, by this one's since.
export const took = (run, heard) => (run.started === null ? null : run.ended ? run.seconds : run.seconds + (performance.now() - heard) / 1000);

export function connection(state) {
  const shown = byId("connection");
  shown.className = state;
  shown.textContent = { live: "live", away: "no connection; trying again", ended: "", database: "the database is away; trying again" }[state];
  if (state === "database") shown.className = "away";
}

// What keeps runs from going on, above every page.
export function trouble(sentence) {
  byId("trouble").hidden = !sentence;
  byId("trouble").textContent = sentence;
}

// Changes need the session's own token: a page of another site cannot know it.
export async function send(method, path, body) {
  const answer = await fetch(path, {
    method,
    headers: { "content-type": "application/json", "x-forkless-csrf": document.querySelector("meta[name=forkless-csrf]").content },
    body: method === "GET" ? undefined : JSON.stringify(body ?? {}),
  });
  trouble(answer.headers.get("x-forkless-trouble") ?? "");
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.error ?? `the server answered ${answer.status}`);
  return said;
}
export const post = (path, body) => send("POST", path, body);

export function tell(sentence) {
  byId("told").hidden = !sentence;
  byId("told").textContent = sentence ?? "";
}

let busy = 0;
let leaving = false;

function showBusy(change) {
  busy += change;
  document.body.toggleAttribute("data-busy", busy > 0);
  byId("busy-bar").textContent = busy > 0 ? "working …" : "";
}

// To another page: what was asked for is shown as under way until that page is there.
export function go(address) { leaving = true; location.href = address; }
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

// Shows before the server has answered that something is under way. Nothing moves: the bar lies above the page.
export async function working(button, call) {
  button.setAttribute("aria-busy", "true");
  button.disabled = true;
  showBusy(1);
  try { return await call(); } finally {
    if (!leaving) { button.removeAttribute("aria-busy"); showBusy(-1); }
  }
}

// A button that does one thing at a time, and says what went wrong.
export function onClick(button, call) {
  button?.addEventListener("click", async () => {
    tell("");
    try { await working(button, call); } catch (err) { tell(err.message); button.disabled = false; }
  });
}

export const count = (many, one) => `${many} ${one}${many === 1 ? "" : "s"}`;
export const link = (address, text) => element("a", { href: address }, text);
export const state = (name) => element("span", { class: `state ${name}` }, name);
export const cell = (label, ...children) => element("td", { "data-label": label }, ...children.filter((one) => one !== null && one !== undefined && one !== ""));
export const number = (label, value) => element("td", { class: "number", "data-label": label }, value || "");

// A stream that is closed while the page is hidden (a browser has six connections for one server) and goes on afterwards.
export function listen(address, kinds) {
  let source = null;
  let ended = false;
  let retry = 0;
  const close = () => { source?.close(); source = null; };
  const open = () => {
    clearTimeout(retry);
    if (ended || source || document.hidden) return;
    source = new EventSource(address());
    source.onopen = () => { connection("live"); trouble(""); }; // the stream tells it again if there is some
    source.onerror = () => {
      connection("away");
      if (source?.readyState === EventSource.CLOSED) { close(); retry = setTimeout(open, 2000); }
    };
    for (const [kind, call] of Object.entries(kinds)) source.addEventListener(kind, (event) => { connection("live"); call(JSON.parse(event.data)); });
    source.addEventListener("away", () => connection("database"));
    source.addEventListener("trouble", (event) => trouble(JSON.parse(event.data).sentence));
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  open();
  return () => { ended = true; close(); connection("ended"); };
}
