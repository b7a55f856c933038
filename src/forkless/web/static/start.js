// SPDX-License-Identifier: GPL-3.0-or-later
import { byId, post } from "./dom.js";

byId("start")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const button = form.querySelector("button");
  button.disabled = true;
  byId("told").hidden = true;
  const field = (name) => form.elements[name];
  try {
    const run = await post("/api/runs", {
      playbook: field("playbook").value, inventory: field("inventory").value, limit: field("limit").value, tags: field("tags").value,
      check: field("check").checked, diff: field("diff").checked,
    });
    location.href = `/runs/${run.id}`;
  } catch (err) {
    byId("told").textContent = err.message;
    byId("told").hidden = false;
    button.disabled = false;
  }
});
