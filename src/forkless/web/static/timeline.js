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
    this.spans = []; this.hosts = new Map(); this.hostNames = []; this.open = new Map(); this.tasks = new Map();
    this.ofHost = []; this.ofLane = []; // the numbers of the spans in each row: a drawing looks at the rows that are seen only
    this.lanes = 0; this.free = []; this.byHost = true; this.begin = null; this.end = 0; this.cursor = -1; this.waiting = false; this.ended = false;
    box.addEventListener("scroll", () => this.soon());
    new ResizeObserver(() => this.soon()).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.colours = null; this.soon(); });
    for (const kind of ["pointermove", "pointerdown"]) box.addEventListener(kind, (event) => this.point(event)); // a finger that taps does not move
    box.addEventListener("keydown", (event) => this.key(event));
  }

  add(event) {
    if (!event.host || !event.key || !event.at) return;
    this.end = Math.max(this.end, event.at);
    if (!event.state) return;
    if (!this.hosts.has(event.host)) { this.hosts.set(event.host, this.hosts.size); this.hostNames.push(event.host); this.ofHost.push([]); }
    this.tasks.set(event.key, event.task);
    const key = `${event.key} ${event.host}`;
    if (event.state === "running") {
      // The lowest free number, as the workers of a run take tasks; the free ones are kept from the highest to the lowest.
      this.open.set(key, { host: this.hosts.get(event.host), state: "running", start: event.at, lane: this.free.length ? this.free.pop() : this.lanes++ });
    }
    const from = this.open.get(key);
    const start = from?.start ?? event.at - (event.took ?? 0);
    this.begin = this.begin === null ? start : Math.min(this.begin, start);
    if (event.state === "running") return;
    if (from) { this.open.delete(key); this.release(from.lane); }
    else if (!event.took) return; // no worker ran it: an include, a meta task
    const lane = from?.lane ?? -1; // of a long run the page is sent the results only, and not when each worker took a task
    this.ofHost[this.hosts.get(event.host)].push(this.spans.length);
    if (from) (this.ofLane[lane] ??= []).push(this.spans.length);
    this.spans.push({ host: this.hosts.get(event.host), lane, start, end: event.at, task: event.key, state: event.state });
  }

  // What still runs at `now` has run until then, though no event has told so. `started` is by the same clock, which may not be that of the events.
  until(now, started) {
    if (!this.open.size || this.begin < started - 5 || now <= this.end) return;
    this.end = now;
    this.soon();
  }

  release(lane) {
    let low = 0, high = this.free.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.free[middle] > lane) low = middle + 1; else high = middle;
    }
    this.free.splice(low, 0, lane);
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  rowCount() { return this.byHost ? this.hostNames.length : Math.max(this.lanes, this.ofLane.length); }
  rowName(row) { return this.byHost ? this.hostNames[row] : `worker ${row + 1}`; }
  spansOf(row) { return (this.byHost ? this.ofHost[row] : this.ofLane[row]) ?? []; }
  rowOf(one) { return this.byHost ? one.host : one.lane; }
  x(at, width) { return NAMES + ((at - this.begin) / Math.max(0.001, this.end - this.begin)) * (width - NAMES - 8); }

  draw() {
    const { box, canvas } = this;
    this.colours ??= palette();
    const rows = this.rowCount();
    const width = box.clientWidth;
    const height = Math.min(320, HEAD + 6 + Math.max(1, rows) * ROW);
    this.room.style.width = "1px";
    this.room.style.height = `${HEAD + 6 + rows * ROW}px`;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "12px system-ui, sans-serif"; pen.textBaseline = "middle";
    if (this.begin === null) return;
    const y = (row) => HEAD + row * ROW - box.scrollTop;
    const first = Math.max(0, Math.floor(box.scrollTop / ROW)), last = Math.min(rows, Math.ceil((box.scrollTop + height) / ROW));
    let drawn = 0;
    const bar = (one, end, chosen) => {
      const top = y(this.rowOf(one));
      const left = this.x(one.start, width);
      drawn += 1;
      pen.fillStyle = this.colours[this.ended && one.state === "running" ? "canceled" : one.state];
      pen.fillRect(left, top + 3, Math.max(1, this.x(end, width) - left - 0.5), ROW - 6);
      if (!chosen) return;
      pen.strokeStyle = this.colours.text; pen.lineWidth = 2;
      pen.strokeRect(left, top + 2, Math.max(2, this.x(end, width) - left), ROW - 4);
    };
    for (let row = first; row < last; row++) {
      let edge = -1, before = "";
      for (const index of this.spansOf(row)) {
        const one = this.spans[index];
        const right = this.x(one.end, width);
        // What would lie on the same pixel is drawn once.
        if (one.state === before && right - edge < 0.5 && right >= edge && index !== this.cursor) continue;
        edge = right; before = one.state;
        bar(one, one.end, index === this.cursor);
      }
    }
    for (const one of this.open.values()) if (this.rowOf(one) >= first && this.rowOf(one) < last) bar(one, this.end, false);
    box.dataset.drawn = drawn;
    box.dataset.seconds = this.end - this.begin;
    pen.fillStyle = this.colours.panel;
    pen.fillRect(0, 0, NAMES - 2, height); pen.fillRect(0, 0, width, HEAD - 2);
    pen.fillStyle = this.colours.text;
    for (let row = first; row < last; row++) {
      const name = this.rowName(row);
      if (y(row) >= HEAD - ROW / 2 && y(row) < height) pen.fillText(name.length > 17 ? `${name.slice(0, 16)}…` : name, 8, y(row) + ROW / 2);
    }
    const whole = this.end - this.begin;
    const ticks = whole > 0 ? (width < 500 ? 2 : 4) : -1; // all would stand at one place
    for (let tick = 0; tick <= ticks; tick++) {
      pen.textAlign = tick === ticks ? "right" : "left";
      pen.fillText(tick ? span((whole * tick) / ticks) : "0", this.x(this.begin + (whole * tick) / ticks, width), 9);
    }
    pen.textAlign = "left";
  }

  tell(index) {
    const one = this.spans[index];
    if (!one) return;
    this.cursor = index;
    this.line.textContent = `${this.hostNames[one.host]} · ${this.tasks.get(one.task)}: ${one.state}, ${span(one.end - one.start)},${one.lane < 0 ? "" : ` worker ${one.lane + 1},`} ${span(one.start - this.begin)} after the begin`;
    this.soon();
  }

  point(event) {
    const place = this.box.getBoundingClientRect();
    const row = Math.floor((event.clientY - place.top - this.box.clientTop + this.box.scrollTop - HEAD) / ROW);
    const x = event.clientX - place.left - this.box.clientLeft;
    const width = this.box.clientWidth;
    this.tell(this.spansOf(row).find((index) => x >= this.x(this.spans[index].start, width) - 2 && x <= this.x(this.spans[index].end, width) + 2));
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
