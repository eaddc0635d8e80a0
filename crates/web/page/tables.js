// Tables: leaves, queue pairs, events, commands. Rows are kept, and only what differs is written.

import { h, rate, shell } from "./state.js";

function head(heads) {
  return h("thead", {}, h("tr", {}, heads.map((head) => head instanceof Node ? head : h("th", {}, head))));
}

/** A table whose rows are reused in their places. */
class Rows {
  #rows = [];

  constructor(section, heads) {
    this.place = document.querySelector(`#${section} .wide`);
    this.body = h("tbody", {});
    this.head = head(heads);
    this.numbers = [...this.head.querySelectorAll("th")].map((cell) => cell.className === "number");
    this.place.replaceChildren(h("table", {}, this.head, this.body));
  }

  /** `rows`: [key, cells, class]. `make` adds listeners to a new row. */
  show(rows, make = () => {}) {
    while (this.#rows.length > rows.length) this.#rows.pop().element.remove();
    rows.forEach(([key, cells, shade = ""], at) => {
      if (!this.#rows[at]) {
        const row = { element: h("tr", {}), cells: cells.map((_, column) =>
          h("td", { class: this.numbers[column] ? "number" : undefined })), texts: [] };
        row.element.append(...row.cells);
        make(row);
        this.body.append(row.element);
        this.#rows.push(row);
      }
      const row = this.#rows[at];
      if (row.key !== key) {
        row.key = key;
        row.element.dataset.key = key;
      }
      if (row.shade !== shade) row.element.className = row.shade = shade;
      cells.forEach((cell, column) => {
        if (cell === row.texts[column]) return;
        row.texts[column] = cell;
        if (cell instanceof Node) row.cells[column].replaceChildren(cell);
        else row.cells[column].textContent = `${cell}`;
      });
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

/** The load of the fullest uplink over the mean; undefined if nothing is sent. */
export function mmr(fabric, state, leaf) {
  const loads = uplinks(fabric, leaf).map(([link, way]) => state.links?.[link]?.[way].sent ?? 0);
  const sum = loads.reduce((all, load) => all + load, 0);
  return sum > 1e5 ? Math.max(...loads) / (sum / loads.length) : undefined;
}

let leafRows;
export function leaves(fabric, state, onselect) {
  const number = (name) => h("th", { class: "number" }, name);
  leafRows ??= new Rows("leaves", ["leaf", "VNI", "datapath", "policy", "sources", number("dropped"), number("MMR of uplinks")]);
  leafRows.show(Object.entries(state.leaves ?? {}).sort().map(([name, leaf]) => {
    const vnis = Object.entries(leaf.vnis ?? {});
    const even = mmr(fabric, state, name);
    return [name, [name, leaf.vtepd ? vnis.map(([vni]) => vni).join(", ") : "no vtepd: kernel VXLAN forwards",
      vnis.map(([, vni]) => vni.datapath).join(", "), vnis.map(([, vni]) => vni.policy).join(", "),
      Object.entries(leaf.sources ?? {}).map(([source, is]) => `${source} ${is}`).join(", "),
      leaf.dropped ?? 0, even ? +even.toFixed(2) : "–"]];
  }), selectable((name) => onselect({ node: name })));
}

const COLUMNS = [
  ["from", (pair) => pair.from], ["to", (pair) => pair.to],
  ["queue pair", (pair) => pair.qp, (pair) => `0x${pair.qp.toString(16)}`],
  ["leaf", (pair) => pair.leaf], ["uplink", (pair) => pair.uplink], ["source port", (pair) => pair.port],
  ["state", (pair) => pair.state], ["bit/s", (pair) => pair.rate, (pair) => rate(pair.rate)],
  ["moves", (pair) => pair.moves], ["PSN gaps", (pair) => pair.gaps], ["same links", (pair) => pair.same],
];
const NUMBERS = ["source port", "bit/s", "moves", "PSN gaps"];
const [RATE, MOST_ROWS] = [7, 200];

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
      h("button", { type: "button", onclick: () => this.#sorted(at) }, name))));
    this.make = selectable(onselect, onhover);
    this.#heads();
  }

  named(pair) {
    const name = (address) => this.names.get(address) ?? address;
    return { ...pair, from: name(pair.source), to: name(pair.destination) };
  }

  update(state) {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const all = new Map();
    for (const [key, pair] of Object.entries(state.pairs ?? {})) {
      const named = this.named(pair);
      if (words.length) {
        const text = [named.from, named.to, pair.leaf, pair.uplink, pair.port, pair.state, pair.qp,
          `0x${pair.qp.toString(16)}`, ...pair.routers].join(" ").toLowerCase();
        if (!words.every((word) => text.includes(word))) continue;
      }
      all.set(key, named);
    }
    // Rows keep their places while the pointer or the focus is on them.
    const held = this.rows.body.matches(":hover, :focus-within") && !this.resort;
    this.resort = false;
    const kept = held ? this.#order.filter((key) => all.has(key)) : [];
    const rest = new Set(all.keys());
    kept.forEach((key) => rest.delete(key));
    const value = COLUMNS[this.#sort][1];
    const sorted = [...rest].map((key) => [key, value(all.get(key))]).sort(([first, a], [second, b]) => {
      const order = a < b ? -1 : a > b ? 1 : first < second ? -1 : 1;
      return this.#down ? -order : order;
    });
    this.#order = [...kept, ...sorted.map(([key]) => key)].slice(0, MOST_ROWS);
    this.rows.show(this.#order.map((key) => {
      const pair = all.get(key);
      const moved = pair.moves > (this.moves?.get(key) ?? pair.moves);
      return [key, COLUMNS.map(([, value, text]) => (text ?? value)(pair)),
        `${key === this.chosen ? "chosen" : ""} ${moved ? "moved" : ""}`.trim()];
    }), this.make);
    this.moves = new Map([...all].map(([key, pair]) => [key, pair.moves]));
    const more = all.size > MOST_ROWS ? `, ${MOST_ROWS} are shown` : "";
    document.querySelector("#pairs h2").textContent = all.size
      ? `Queue pairs: ${all.size}${more}`
      : words.length ? "Queue pairs: none matches the filter" : "Queue pairs: none is placed (policy qp-pin lists them)";
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
  eventRows ??= new Rows("events", ["time (UTC)", "leaf", "kind", "event"]);
  const all = Object.entries(state.events ?? {}).sort(([a], [b]) => b - a).slice(0, 100);
  eventRows.show(all.map(([at, event]) => [at, [event.time.slice(11, 19), event.leaf, event.kind, event.text]]));
}

let shownJobs;
export function commands(state) {
  if (state.jobs === shownJobs) return;
  shownJobs = state.jobs;
  const place = document.querySelector("#commands .wide");
  const all = Object.entries(state.jobs ?? {}).sort(([a], [b]) => b - a);
  const stop = (job) => fetch("stop", { method: "POST", body: JSON.stringify({ job: +job }) });
  const rows = all.map(([number, job]) => h("tr", {}, h("td", {}, job.at ? new Date(job.at).toISOString().slice(11, 19) : ""),
    h("td", {}, job.running ? h("button", { type: "button", onclick: () => stop(number) }, "Stop")
      : job.ok ? "done" : h("span", { class: "bad" }, "failed")),
    h("td", { class: "long" }, shell(job.command), job.output ? h("pre", {}, job.output) : undefined)));
  place.replaceChildren(all.length ? h("table", {}, head(["time (UTC)", "", "command, as a shell runs it"]), h("tbody", {}, rows))
    : h("p", { class: "dim" }, "Each action of this page is a command, which is listed here."));
}
