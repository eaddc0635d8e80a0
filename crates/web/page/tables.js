// Tables: leaves, queue pairs, events, commands. Rows are kept, and only what differs is written.

import { h, rate, shell } from "./state.js";

function head(heads) {
  return h("thead", {}, h("tr", {}, heads.map((head) => head instanceof Node ? head : h("th", {}, head))));
}

/** The height of a row and of the part of a table that is seen, in pixels, as the style has them. */
const [ROW, SEEN] = [28, 330];
/** Rows above and below those that are seen, so that Tab finds the next one. */
const MARGIN = 6;

/** A table with elements only for the rows that are seen. Only what differs is written. */
export class Rows {
  #shown = new Map();
  #keys = [];
  #top = 0;

  /** `make` adds listeners to a new row. With `wraps`, rows have any height, and all have elements. */
  constructor(section, heads, make = () => {}, wraps = false) {
    Object.assign(this, { make, wraps });
    const place = document.querySelector(`#${section} .wide`);
    this.body = h("tbody", {});
    this.head = head(heads);
    this.heads = [...this.head.querySelectorAll("th")];
    this.columns = this.heads.map((cell) => ({ cell, width: 0, shade: cell.className || undefined }));
    this.table = h("table", { class: wraps ? "wraps" : undefined }, this.head, this.body);
    place.replaceChildren(this.table);
    place.addEventListener("scroll", () => {
      this.#top = place.scrollTop;
      this.#draw();
    }, { passive: true });
  }

  /** `cells` gives the cells and the class of a key. */
  show(keys, cells) {
    this.#keys = keys;
    this.cells = cells;
    this.#draw();
  }

  #draw() {
    const all = this.#keys.length;
    const end = this.wraps ? all : Math.min(all, Math.ceil((this.#top + SEEN) / ROW) + MARGIN);
    const first = this.wraps ? 0 : Math.max(0, Math.min(Math.floor(this.#top / ROW), end - SEEN / ROW) - MARGIN | 0);
    for (const [at, row] of this.#shown) {
      if (at >= first && at < end) continue;
      row.element.remove();
      this.#shown.delete(at);
    }
    let next = null;
    for (let at = end - 1; at >= first; at -= 1) {
      if (!this.#shown.has(at)) this.#shown.set(at, this.#new(at, next));
      const row = this.#shown.get(at);
      this.#write(row, this.#keys[at]);
      next = row.element;
    }
    const space = `${first * ROW}px 0 ${(all - end) * ROW}px`;
    if (space !== this.space) this.table.style.margin = this.space = space;
    if (all !== this.all) this.table.setAttribute("aria-rowcount", this.all = all);
  }

  #new(at, next) {
    const row = { element: h("tr", { "aria-rowindex": at + 1 }), texts: [],
      cells: this.columns.map(({ shade }) => h("td", { class: shade })) };
    row.element.append(...row.cells);
    this.make(row);
    this.body.insertBefore(row.element, next);
    return row;
  }

  #write(row, key) {
    const [cells, shade = ""] = this.cells(key);
    if (row.key !== key) row.element.dataset.key = row.key = key;
    if (row.shade !== shade) row.element.className = row.shade = shade;
    cells.forEach((cell, at) => {
      const text = `${cell}`;
      if (text === row.texts[at]) return;
      row.cells[at].textContent = row.texts[at] = text;
      // Columns only grow, so that they do not jump while rows come and go.
      const column = this.columns[at];
      if (text.length > column.width && !this.wraps) {
        column.width = text.length;
        column.cell.style.minWidth = `${text.length}ch`;
      }
    });
  }
}

/** Makes the rows of a table buttons: for the pointer, and with Enter. */
function selectable(onselect, onhover = () => {}) {
  return (row) => {
    row.element.tabIndex = 0;
    const listen = (name, does) => row.element.addEventListener(name, does);
    listen("click", () => onselect(row.key));
    listen("keydown", (event) => { if (event.key === "Enter") onselect(row.key); });
    listen("mouseenter", () => onhover(row.key));
    listen("focus", () => onhover(row.key));
    listen("mouseleave", () => onhover(undefined));
    listen("blur", () => onhover(undefined));
  };
}

/** The uplinks of each leaf: [link, direction]. */
const found = new WeakMap();
function uplinks(fabric, leaf) {
  if (!found.has(fabric)) {
    const all = new Map();
    for (const link of fabric.links) {
      const [a, b] = [link.a, link.b].map((end) => end.split(":")[0]);
      if (a in fabric.hosts || b in fabric.hosts) continue;
      for (const [node, way] of [[a, "ab"], [b, "ba"]]) all.set(node, [...all.get(node) ?? [], [link.a, way]]);
    }
    found.set(fabric, all);
  }
  return found.get(fabric).get(leaf) ?? [];
}

/** The load of the most loaded uplink over the mean; undefined if nothing is sent. */
export function mmr(fabric, state, leaf) {
  const loads = uplinks(fabric, leaf).map(([link, way]) => state.links?.[link]?.[way].sent ?? 0);
  const sum = loads.reduce((all, load) => all + load, 0);
  return sum > 1e5 ? Math.max(...loads) / (sum / loads.length) : undefined;
}

let leafRows;
export function leaves(fabric, state, onselect) {
  const number = (name) => h("th", { class: "number" }, name);
  leafRows ??= new Rows("leaves", ["leaf", "VNI", "datapath", "policy", "sources", number("dropped"), number("MMR of uplinks")],
    selectable((name) => onselect({ node: name })));
  leafRows.show(Object.keys(state.leaves ?? {}).sort(), (name) => {
    const leaf = state.leaves[name];
    const vnis = Object.entries(leaf.vnis ?? {});
    const even = mmr(fabric, state, name);
    return [[name, leaf.vtepd ? vnis.map(([vni]) => vni).join(", ") : "no vtepd: kernel VXLAN forwards",
      vnis.map(([, vni]) => vni.datapath).join(", "), vnis.map(([, vni]) => vni.policy).join(", "),
      Object.entries(leaf.sources ?? {}).map(([source, is]) => `${source} ${is}`).join(", "),
      leaf.dropped ?? 0, even ? +even.toFixed(2) : "–"]];
  });
}

const COLUMNS = [
  ["from", (pair) => pair.from], ["to", (pair) => pair.to],
  ["queue pair", (pair) => pair.qp, (pair) => `0x${pair.qp.toString(16)}`],
  ["leaf", (pair) => pair.leaf], ["uplink", (pair) => pair.uplink], ["source port", (pair) => pair.port],
  ["state", (pair) => pair.state], ["bit/s", (pair) => pair.rate, (pair) => rate(pair.rate)],
  ["moves", (pair) => pair.moves], ["PSN gaps", (pair) => pair.gaps], ["same links", (pair) => pair.same],
];
const NUMBERS = ["source port", "bit/s", "moves", "PSN gaps"];
const RATE = 7;
const TITLES = { state: "hashed: its hash chose the path, before any was known. moving: after the next pause in its traffic",
  "PSN gaps": "Packets that are missing on the way to the leaf; not what the fabric loses" };

/** The queue pairs that qp-pin has placed. */
export class Pairs {
  #sort = RATE;
  #down = true;
  #order = [];
  chosen;

  constructor(fabric, onselect, onhover, again) {
    Object.assign(this, { fabric, again, onhover });
    this.names = new Map(Object.entries(fabric.hosts).map(([name, address]) => [address, name]));
    this.filter = document.getElementById("filter");
    this.rows = new Rows("pairs", COLUMNS.map(([name], at) => h("th", { class: NUMBERS.includes(name) ? "number" : undefined },
      h("button", { type: "button", title: TITLES[name], onclick: () => this.#sorted(at) }, name))), selectable(onselect, onhover));
    this.#heads();
  }

  named(pair) {
    const name = (address) => this.names.get(address) ?? address;
    return { ...pair, from: name(pair.source), to: name(pair.destination) };
  }

  update(state) {
    const all = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    // >1M and <500k are rates in bit/s.
    const rates = all.map((word) => /^([<>])([\d.]+)([kmg]?)$/.exec(word)).filter(Boolean)
      .map(([, sign, number, unit]) => [sign, number * { "": 1, k: 1e3, m: 1e6, g: 1e9 }[unit]]);
    const words = all.filter((word) => !/^[<>]/.test(word));
    const found = new Map();
    for (const [key, pair] of Object.entries(state.pairs ?? {})) {
      const named = this.named(pair);
      if (!rates.every(([sign, rate]) => (sign === ">" ? pair.rate > rate : pair.rate < rate))) continue;
      if (words.length) {
        const text = [named.from, named.to, pair.leaf, pair.uplink, pair.port, pair.state, pair.qp,
          `0x${pair.qp.toString(16)}`, ...pair.routers].join(" ").toLowerCase();
        if (!words.every((word) => text.includes(word))) continue;
      }
      found.set(key, named);
    }
    // Rows keep their places while the pointer or the focus is on them.
    const held = this.rows.body.matches(":hover, :focus-within") && !this.resort;
    this.resort = false;
    const kept = held ? this.#order.filter((key) => found.has(key)) : [];
    const rest = new Set(found.keys());
    kept.forEach((key) => rest.delete(key));
    const value = COLUMNS[this.#sort][1];
    const sorted = [...rest].map((key) => [key, value(found.get(key))]).sort(([first, a], [second, b]) => {
      const order = a < b ? -1 : a > b ? 1 : first < second ? -1 : 1;
      return this.#down ? -order : order;
    });
    this.#order = [...kept, ...sorted.map(([key]) => key)];
    const before = this.moves;
    this.moves = new Map([...found].map(([key, pair]) => [key, pair.moves]));
    this.rows.show(this.#order, (key) => {
      const pair = found.get(key);
      const moved = pair.moves > (before?.get(key) ?? pair.moves);
      return [COLUMNS.map(([, value, text]) => (text ?? value)(pair)),
        `${key === this.chosen ? "chosen" : ""} ${moved ? "moved" : ""}`.trim()];
    });
    document.querySelector("#pairs h2").textContent = found.size
      ? `Queue pairs: ${found.size}`
      : all.length ? "Queue pairs: none matches the filter" : "Queue pairs: none is placed. With the policy qp-pin, a RoCE stream (panel: Send) makes some";
  }

  #heads() {
    this.rows.head.querySelectorAll("th").forEach((cell, at) => {
      const sorted = at === this.#sort;
      if (sorted) cell.setAttribute("aria-sort", this.#down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
      cell.firstChild.textContent = `${COLUMNS[at][0]}${sorted ? (this.#down ? " ↓" : " ↑") : ""}`;
    });
  }

  #sorted(at) {
    this.#down = at === this.#sort ? !this.#down : at >= RATE;
    this.#sort = at;
    this.resort = true;
    this.#heads();
    this.again();
  }
}

let eventRows;
let shownEvents;
export function events(state) {
  if (state.events === shownEvents) return;
  shownEvents = state.events;
  eventRows ??= new Rows("events", ["time (UTC)", "leaf", "kind", "event"], undefined, true);
  const all = state.events ?? {};
  // Leaves are asked in turns, so those of one may come after later ones of another.
  const time = (at) => +new Date(all[at].time);
  eventRows.show(Object.keys(all).sort((a, b) => time(b) - time(a) || b - a), (at) =>
    [[new Date(all[at].time).toISOString().slice(11, 19), all[at].leaf, all[at].kind, all[at].text]]);
}

/** Ends a command, as Ctrl-C does. */
export const stop = (job) => fetch("stop", { method: "POST", body: JSON.stringify({ job: +job }) });

let shownJobs;
export function commands(state) {
  if (state.jobs === shownJobs) return;
  shownJobs = state.jobs;
  const place = document.querySelector("#commands .wide");
  const all = Object.entries(state.jobs ?? {}).sort(([a], [b]) => b - a);
  const rows = all.map(([number, job]) => h("tr", {}, h("td", {}, job.at ? new Date(job.at).toISOString().slice(11, 19) : ""),
    h("td", {}, job.running ? h("button", { type: "button", onclick: () => stop(number) }, "Stop")
      : job.ok ? "done" : h("span", { class: "bad" }, "failed")),
    h("td", { class: "long" }, shell(job.command), job.output ? h("pre", {}, job.output) : undefined)));
  place.replaceChildren(all.length ? h("table", {}, head(["time (UTC)", "", "command, as a shell runs it"]), h("tbody", {}, rows))
    : h("p", { class: "dim" }, "Each action of this page is a command, which is listed here."));
}
