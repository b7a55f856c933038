// SPDX-License-Identifier: GPL-3.0-or-later
// Hosts × tasks on one canvas of the size of the window that is seen: only what is seen is drawn.

const CELL = 16;
const HEAD = 6;

// The colours of the page, for a canvas.
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  return Object.fromEntries(["ok", "changed", "failed", "unreachable", "ignored", "skipped", "running", "canceled", "text", "panel", "accent"].map((one) => [one, read(one)]));
}

export class Grid {
  constructor(box, line) {
    this.box = box; this.line = line;
    this.canvas = box.querySelector("canvas"); this.room = box.querySelector(".room");
    this.hosts = new Map(); this.tasks = new Map(); this.taskNames = []; this.hostNames = [];
    this.states = []; // by host, then by task
    this.cursor = null; this.waiting = false; this.names = 120; this.ended = false; // when the run has ended, nothing of it runs
    box.addEventListener("scroll", () => this.soon());
    new ResizeObserver(() => this.soon()).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.colours = null; this.soon(); });
    for (const kind of ["pointermove", "pointerdown"]) box.addEventListener(kind, (event) => this.point(event)); // a finger that taps does not move
    box.addEventListener("keydown", (event) => this.key(event));
  }

  add(event) {
    if (!event.state || !event.host || !event.key) return;
    let task = this.tasks.get(event.key);
    if (task === undefined) { this.tasks.set(event.key, (task = this.tasks.size)); this.taskNames.push((event.task ?? "") + (event.path ? ` (${event.path})` : "")); }
    let host = this.hosts.get(event.host);
    if (host === undefined) { this.hosts.set(event.host, (host = this.hosts.size)); this.hostNames.push(event.host); this.states.push([]); }
    this.states[host][task] = event.state;
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  draw() {
    const { box, canvas } = this;
    this.colours ??= palette();
    const width = box.clientWidth;
    const height = Math.min(420, HEAD * 2 + Math.max(1, this.hostNames.length) * CELL);
    const whole = this.names + this.taskNames.length * CELL + HEAD;
    this.room.style.width = `${whole}px`;
    this.room.style.height = `${HEAD * 2 + this.hostNames.length * CELL}px`;
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif"; pen.textBaseline = "middle";
    const firstRow = Math.max(0, Math.floor((box.scrollTop - HEAD) / CELL));
    const lastRow = Math.min(this.hostNames.length, Math.ceil((box.scrollTop + height) / CELL));
    const firstColumn = Math.max(0, Math.floor(box.scrollLeft / CELL));
    const lastColumn = Math.min(this.taskNames.length, Math.ceil((box.scrollLeft + width) / CELL));
    box.dataset.drawn = (lastRow - firstRow) * (lastColumn - firstColumn);
    for (let row = firstRow; row < lastRow; row++) {
      const y = HEAD + row * CELL - box.scrollTop;
      const states = this.states[row];
      for (let column = firstColumn; column < lastColumn; column++) {
        const colour = this.colours[this.ended && states[column] === "running" ? "canceled" : states[column]];
        if (!colour) continue;
        const x = this.names + column * CELL - box.scrollLeft;
        pen.fillStyle = colour;
        pen.fillRect(x + 1, y + 1, CELL - 2, CELL - 2);
        // Not by colour alone: a failure has a cross.
        if (states[column] === "failed" || states[column] === "unreachable") {
          pen.strokeStyle = this.colours.panel; pen.lineWidth = 1.5; pen.beginPath();
          pen.moveTo(x + 5, y + 5); pen.lineTo(x + CELL - 5, y + CELL - 5); pen.moveTo(x + CELL - 5, y + 5); pen.lineTo(x + 5, y + CELL - 5); pen.stroke();
        }
      }
    }
    pen.fillStyle = this.colours.panel;
    pen.fillRect(0, 0, this.names - 2, height);
    pen.fillStyle = this.colours.text;
    for (let row = firstRow; row < lastRow; row++) {
      const name = this.hostNames[row];
      pen.fillText(name.length > 17 ? `${name.slice(0, 16)}…` : name, 8, HEAD + row * CELL - box.scrollTop + CELL / 2);
    }
    if (this.cursor) {
      pen.strokeStyle = this.colours.accent; pen.lineWidth = 2;
      pen.strokeRect(this.names + this.cursor.task * CELL - box.scrollLeft, HEAD + this.cursor.host * CELL - box.scrollTop, CELL, CELL);
    }
  }

  tell(host, task) {
    if (host < 0 || task < 0 || host >= this.hostNames.length || task >= this.taskNames.length) return;
    this.cursor = { host, task };
    this.line.textContent = `${this.hostNames[host]} · ${this.taskNames[task]}: ${this.ended && this.states[host][task] === "running" ? "stopped with the run" : this.states[host][task] ?? "not run"}`;
    this.soon();
  }

  point(event) {
    const place = this.box.getBoundingClientRect();
    const x = event.clientX - place.left - this.box.clientLeft;
    if (x < this.names) return;
    const y = event.clientY - place.top - this.box.clientTop;
    this.tell(Math.floor((y + this.box.scrollTop - HEAD) / CELL), Math.floor((x + this.box.scrollLeft - this.names) / CELL));
  }

  key(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const from = this.cursor ?? { host: 0, task: -1 };
    this.tell(from.host + step[0], from.task + step[1]);
    const { box, cursor } = this;
    if (!cursor) return;
    const x = this.names + cursor.task * CELL, y = HEAD + cursor.host * CELL;
    if (x - box.scrollLeft < this.names) box.scrollLeft = x - this.names;
    if (x + CELL - box.scrollLeft > box.clientWidth) box.scrollLeft = x + CELL - box.clientWidth;
    if (y < box.scrollTop) box.scrollTop = y - HEAD;
    if (y + CELL - box.scrollTop > box.clientHeight) box.scrollTop = y + CELL - box.clientHeight;
  }
}
