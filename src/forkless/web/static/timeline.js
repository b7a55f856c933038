// SPDX-License-Identifier: GPL-3.0-or-later
// When each host, or each worker, did what: one canvas of the size of the window that is seen; only what is seen is drawn.
import { palette } from "./grid.js";
import { span } from "./dom.js";

const ROW = 18;
const NAMES = 120;
const HEAD = 20;

export class Timeline {
  constructor(box, line) {
    this.box = box; this.line = line;
    this.canvas = box.querySelector("canvas"); this.room = box.querySelector(".room");
    this.spans = []; this.hosts = new Map(); this.open = new Map(); this.tasks = new Map();
    this.lanes = 0; this.free = []; this.byHost = true; this.begin = null; this.end = 0; this.cursor = -1; this.waiting = false;
    box.addEventListener("scroll", () => this.soon());
    new ResizeObserver(() => this.soon()).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.colours = null; this.soon(); });
    box.addEventListener("pointermove", (event) => this.point(event));
    box.addEventListener("keydown", (event) => this.key(event));
  }

  add(event) {
    if (!event.host || !event.key || !event.at) return;
    this.end = Math.max(this.end, event.at);
    if (!event.state) return;
    if (!this.hosts.has(event.host)) this.hosts.set(event.host, this.hosts.size);
    this.tasks.set(event.key, event.task);
    const key = `${event.key} ${event.host}`;
    if (event.state === "running") {
      // The lowest free number, as the workers of a run take tasks.
      this.free.sort((one, other) => one - other);
      this.open.set(key, { host: this.hosts.get(event.host), state: "running", start: event.at, lane: this.free.length ? this.free.shift() : this.lanes++ });
    }
    const from = this.open.get(key);
    const start = from?.start ?? event.at - event.took;
    this.begin = this.begin === null ? start : Math.min(this.begin, start);
    if (event.state === "running") return;
    if (from) { this.open.delete(key); this.free.push(from.lane); }
    else if (!event.took) return; // no worker ran it: an include, a meta task
    this.spans.push({ host: this.hosts.get(event.host), lane: from?.lane ?? 0, start, end: event.at, task: event.key, state: event.state });
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  rows() { return this.byHost ? [...this.hosts.keys()] : Array.from({ length: this.lanes }, (_, n) => `worker ${n + 1}`); }
  rowOf(one) { return this.byHost ? one.host : one.lane; }
  x(at, width) { return NAMES + ((at - this.begin) / Math.max(0.001, this.end - this.begin)) * (width - NAMES - 8); }

  draw() {
    const { box, canvas } = this;
    this.colours ??= palette();
    const names = this.rows();
    const width = box.clientWidth;
    const height = Math.min(320, HEAD + 6 + Math.max(1, names.length) * ROW);
    this.room.style.width = "1px";
    this.room.style.height = `${HEAD + 6 + names.length * ROW}px`;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "12px system-ui, sans-serif"; pen.textBaseline = "middle";
    if (this.begin === null) return;
    const y = (row) => HEAD + row * ROW - box.scrollTop;
    const going = [...this.open.values()].map((one) => ({ ...one, end: this.end }));
    [...this.spans, ...going].forEach((one, index) => {
      const top = y(this.rowOf(one));
      if (top < HEAD - ROW || top > height) return;
      const left = this.x(one.start, width);
      pen.fillStyle = this.colours[one.state];
      pen.fillRect(left, top + 3, Math.max(1, this.x(one.end, width) - left - 0.5), ROW - 6);
      if (index === this.cursor) {
        pen.strokeStyle = this.colours.text; pen.lineWidth = 2;
        pen.strokeRect(left, top + 2, Math.max(2, this.x(one.end, width) - left), ROW - 4);
      }
    });
    pen.fillStyle = this.colours.panel;
    pen.fillRect(0, 0, NAMES - 2, height); pen.fillRect(0, 0, width, HEAD - 2);
    pen.fillStyle = this.colours.text;
    names.forEach((name, row) => { if (y(row) >= HEAD - ROW / 2 && y(row) < height) pen.fillText(name.length > 17 ? `${name.slice(0, 16)}…` : name, 8, y(row) + ROW / 2); });
    const whole = this.end - this.begin;
    for (let tick = 0; tick <= 4; tick++) {
      pen.textAlign = tick === 4 ? "right" : "left";
      pen.fillText(tick ? span((whole * tick) / 4) : "0", this.x(this.begin + (whole * tick) / 4, width), 9);
    }
    pen.textAlign = "left";
  }

  tell(index) {
    const one = this.spans[index];
    if (!one) return;
    this.cursor = index;
    this.line.textContent = `${[...this.hosts.keys()][one.host]} · ${this.tasks.get(one.task)}: ${one.state}, ${span(one.end - one.start)}, worker ${one.lane + 1}, ${span(one.start - this.begin)} after the begin`;
    this.soon();
  }

  point(event) {
    const place = this.box.getBoundingClientRect();
    const row = Math.floor((event.clientY - place.top - this.box.clientTop + this.box.scrollTop - HEAD) / ROW);
    const x = event.clientX - place.left - this.box.clientLeft;
    const width = this.box.clientWidth;
    this.tell(this.spans.findIndex((one) => this.rowOf(one) === row && x >= this.x(one.start, width) - 2 && x <= this.x(one.end, width) + 2));
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    this.tell(Math.max(0, Math.min(this.spans.length - 1, this.cursor + step)));
    const one = this.spans[this.cursor];
    if (one) this.box.scrollTop = Math.max(0, this.rowOf(one) * ROW - 150);
  }
}
