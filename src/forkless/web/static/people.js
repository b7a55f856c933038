// SPDX-License-Identifier: GPL-3.0-or-later
// Log in; one's own tokens and sessions; users.
import { boot, byId, cell, element, go, onClick, post, send, tell, time, working } from "./dom.js";

const form = (id, call) => byId(id)?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = event.target.querySelector("button");
  tell("");
  const values = Object.fromEntries(new FormData(event.target));
  try { await working(button, () => call(values, event.target)); } catch (err) { tell(err.message); }
  button.disabled = false;
});

form("login", async (values, shown) => { await post("/api/login", values); go(shown.dataset.next); });
form("new-token", async (values) => {
  const { token } = await post("/api/me/tokens", { ...values, days: Number(values.days) });
  byId("token").hidden = false;
  byId("token").textContent = `The token, which is not shown again:\n${token}`;
  tokens((await send("GET", "/api/me/tokens")).tokens);
});
form("password", async (values) => { await post("/api/me/password", values); go("/login"); });
form("new-user", async (values) => { await post("/api/users", { ...values, password: values.password || null }); location.reload(); });
onClick(byId("logout"), async () => { await post("/api/me/logout"); go("/"); });

function button(label, about, call, sure = false) {
  const made = element("button", { class: sure ? "danger" : "", "aria-label": `${label} ${about}` }, label);
  onClick(made, async () => {
    if (sure && !made.dataset.sure) { made.dataset.sure = "yes"; made.textContent = "Really?"; made.disabled = false; return; }
    await call();
    made.closest("tr").remove();
  });
  return made;
}

const when = (iso) => (iso ? time(iso) : "");

function tokens(rows) {
  byId("tokens")?.replaceChildren(...rows.map((one) => element("tr", {},
    cell("", one.name), cell("may", one.role), cell("used", when(one.seen)), cell("ends", when(one.ends)), cell("", button("Revoke", one.name, () => send("DELETE", `/api/me/tokens/${one.id}`), true)))));
}

function sessions(rows, all) {
  byId("sessions")?.replaceChildren(...rows.map((one) => element("tr", {},
    ...(all ? [cell("", one.user_name)] : []), cell("", one.about), cell("since", when(one.created)), cell("seen", when(one.seen)),
    cell("", button("Revoke", `session of ${one.user_name}`, () => send("DELETE", `${all ? "/api/sessions" : "/api/me/sessions"}/${one.id}`), true)))));
}

function role(one) {
  const made = element("select", { "aria-label": `role of ${one.name}` }, ...["viewer", "operator", "admin"].map((name) => element("option", { selected: name === one.role }, name)));
  made.addEventListener("change", async () => {
    tell("");
    try { await post(`/api/users/${encodeURIComponent(one.name)}`, { role: made.value }); one.role = made.value; } catch (err) { tell(err.message); made.value = one.role; }
  });
  return made;
}

function users(rows) {
  byId("rows").replaceChildren(...rows.map((one) => element("tr", {},
    cell("", one.name), cell("role", role(one)), cell("by", one.has_password ? "password" : "proxy"), cell("seen", when(one.last_seen)),
    cell("", button("Remove", one.name, () => send("DELETE", `/api/users/${encodeURIComponent(one.name)}`), true)))));
  byId("empty").hidden = rows.length > 0;
}

if (location.pathname === "/me") tokens(boot().tokens);
if (location.pathname === "/users") users(boot().users);
if (byId("boot-sessions")) sessions(JSON.parse(byId("boot-sessions").textContent).sessions, location.pathname === "/users");
for (const one of document.querySelectorAll("td > time")) if (!one.title) one.replaceWith(time(one.dateTime));
