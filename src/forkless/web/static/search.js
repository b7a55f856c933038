// SPDX-License-Identifier: GPL-3.0-or-later
// Search in the output of one run: the page has only the end of a long log, the server has all of it.
import { byId, count as counted, element, send, tell } from "./dom.js";

const MOST = 200;

export function search(run) {
  const form = byId("find"), list = byId("found"), count = byId("found-count"), more = byId("find-more");
  let turn = 0, many = 0, next = 0, text = "";

  // The found text inside its line, marked; all of it goes in as text.
  function marked(line) {
    const parts = [];
    const low = line.toLowerCase(), wanted = text.toLowerCase();
    let from = 0;
    for (let at = low.indexOf(wanted); at >= 0 && low.length === line.length; at = low.indexOf(wanted, from)) {
      parts.push(line.slice(from, at), element("mark", {}, line.slice(at, at + wanted.length)));
      from = at + wanted.length;
    }
    return [...parts, line.slice(from)];
  }

  async function look() {
    const mine = ++turn;
    const end = many + MOST;
    more.hidden = true;
    while (next !== null && many < end) {
      count.textContent = `${counted(many, "line")}, searching …`;
      const answer = await send("GET", `/api/runs/${run}/search?${new URLSearchParams({ text, after: next })}`);
      if (mine !== turn) return; // another search was begun meanwhile
      many += answer.lines.length;
      next = answer.next;
      list.append(...answer.lines.map((one) => element("li", {}, element("span", { class: "quiet" }, [one.host, one.task].filter(Boolean).join(" · ")), element("pre", {}, ...marked(one.text)))));
      list.hidden = many === 0;
    }
    count.textContent = `${counted(many, "line")}${next === null ? "" : " so far"}`;
    more.hidden = next === null;
  }

  const again = () => look().catch((err) => { count.textContent = ""; tell(err.message); });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    text = form.elements.text.value;
    many = 0; next = 0;
    list.replaceChildren();
    list.hidden = true;
    count.textContent = "";
    more.hidden = true;
    turn += 1;
    if (text) again();
  });
  more.addEventListener("click", again);
}
