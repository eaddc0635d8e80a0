// Tables: leaves, queue pairs, events, commands.

import { h, rate } from "./state.js";

/** Replaces the table of a section, and keeps the focus on the row of the same key. */
function show(section, table) {
  const place = document.querySelector(`#${section} .wide`);
  const focused = place.contains(document.activeElement)
    ? document.activeElement.dataset.key : undefined;
  const { scrollTop, scrollLeft } = place;
  place.replaceChildren(table);
  Object.assign(place, { scrollTop, scrollLeft });
  if (focused) place.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

function row(cells) {
  return cells.map((cell) => h("td", { class: typeof cell === "number" ? "number" : undefined }, `${cell}`));
}

function table(heads, rows) {
  return h("table", {}, h("thead", {}, h("tr", {}, heads.map((head) =>
    head instanceof Node ? head : h("th", {}, head)))), h("tbody", {}, rows));
}

/** The load of the fullest uplink over the mean; undefined if nothing is sent. */
export function mmr(fabric, state, leaf) {
  const loads = fabric.links.flatMap((link) => {
    const [a, b] = [link.a, link.b].map((end) => end.split(":")[0]);
    if (a in fabric.hosts || b in fabric.hosts) return [];
    const load = state.links?.[link.a];
    if (!load) return [];
    return a === leaf ? [load.ab.sent] : b === leaf ? [load.ba.sent] : [];
  });
  const sum = loads.reduce((all, load) => all + load, 0);
  return sum > 1e5 ? Math.max(...loads) / (sum / loads.length) : undefined;
}

export function leaves(fabric, state, onselect) {
  const rows = Object.entries(state.leaves ?? {}).sort().map(([name, leaf]) => {
    const vnis = Object.entries(leaf.vnis ?? {});
    const even = mmr(fabric, state, name);
    return h("tr", { tabindex: "0", "data-key": name, onclick: () => onselect({ node: name }),
      onkeydown: (event) => { if (event.key === "Enter") onselect({ node: name }); } }, row([
      name, leaf.vtepd ? vnis.map(([vni]) => vni).join(", ") : "no vtepd: kernel VXLAN forwards",
      vnis.map(([, vni]) => vni.datapath).join(", "), vnis.map(([, vni]) => vni.policy).join(", "),
      Object.entries(leaf.sources ?? {}).map(([source, is]) => `${source} ${is}`).join(", "),
      leaf.dropped ?? 0, even ? even.toFixed(2) : "–"]));
  });
  const heads = ["leaf", "VNI", "datapath", "policy", "sources"];
  show("leaves", table([...heads, h("th", { class: "number" }, "dropped"), "MMR of uplinks"], rows));
}

const COLUMNS = [
  ["from", (pair) => pair.from], ["to", (pair) => pair.to],
  ["queue pair", (pair) => pair.qp], ["leaf", (pair) => pair.leaf], ["uplink", (pair) => pair.uplink],
  ["source port", (pair) => pair.port], ["state", (pair) => pair.state],
  ["bit/s", (pair) => pair.rate], ["moves", (pair) => pair.moves], ["PSN gaps", (pair) => pair.gaps],
  ["same links", (pair) => pair.same],
];
const MOST_ROWS = 300;

/** The queue pairs that qp-pin has placed. */
export class Pairs {
  #sort = 7;
  #down = true;
  chosen;

  constructor(fabric, onselect, onhover) {
    Object.assign(this, { fabric, onselect, onhover });
    this.names = new Map(Object.entries(fabric.hosts).map(([name, address]) => [address, name]));
    this.filter = document.getElementById("filter");
  }

  named(pair) {
    const name = (address) => this.names.get(address) ?? address;
    return { ...pair, from: name(pair.source), to: name(pair.destination) };
  }

  update(state) {
    if (state.pairs === this.shown && this.filter.value === this.text && !this.again) return;
    Object.assign(this, { shown: state.pairs, text: this.filter.value, again: false });
    const words = this.text.toLowerCase().split(/\s+/).filter(Boolean);
    const value = COLUMNS[this.#sort][1];
    const all = Object.entries(state.pairs ?? {}).map(([key, pair]) => [key, this.named(pair)])
      .filter(([, pair]) => {
        const text = [pair.from, pair.to, pair.leaf, pair.uplink, pair.port, pair.state, pair.qp,
          `0x${pair.qp.toString(16)}`, ...pair.routers].join(" ").toLowerCase();
        return words.every((word) => text.includes(word));
      });
    all.sort(([first, a], [second, b]) => {
      const order = value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : first < second ? -1 : 1;
      return this.#down ? -order : order;
    });
    const rows = all.slice(0, MOST_ROWS).map(([key, pair]) => this.#row(key, pair));
    const heads = COLUMNS.map(([name], at) => h("th", { "aria-sort": at === this.#sort
      ? (this.#down ? "descending" : "ascending") : undefined }, h("button", { type: "button",
      "data-key": `sort ${name}`, onclick: () => this.#sorted(at, state) },
    `${name}${at === this.#sort ? (this.#down ? " ↓" : " ↑") : ""}`)));
    show("pairs", table(heads, rows));
    const more = all.length > MOST_ROWS ? `, the first ${MOST_ROWS} are shown` : "";
    document.querySelector("#pairs h2").textContent = all.length
      ? `Queue pairs: ${all.length}${more}` : "Queue pairs: none is placed (policy qp-pin lists them)";
  }

  #sorted(at, state) {
    this.#down = at === this.#sort ? !this.#down : at >= 7;
    this.#sort = at;
    this.again = true;
    this.update(state);
  }

  #row(key, pair) {
    const cells = COLUMNS.map(([name, value]) => name === "queue pair" ? `0x${pair.qp.toString(16)}`
      : name === "bit/s" ? rate(pair.rate) : value(pair));
    return h("tr", { tabindex: "0", "data-key": key, class: key === this.chosen ? "chosen" : undefined,
      onclick: () => this.onselect(key), onmouseenter: () => this.onhover(key),
      onfocus: () => this.onhover(key), onmouseleave: () => this.onhover(undefined),
      onkeydown: (event) => { if (event.key === "Enter") this.onselect(key); } }, row(cells));
  }
}

export function events(state) {
  const all = Object.entries(state.events ?? {}).sort(([a], [b]) => b - a).slice(0, 100);
  const rows = all.map(([, event]) => h("tr", {}, row([
    event.time.slice(11, 19), event.leaf, event.kind, event.text])));
  show("events", table(["time (UTC)", "leaf", "kind", "event"], rows));
}

export function commands(state) {
  const all = Object.entries(state.jobs ?? {}).sort(([a], [b]) => b - a);
  const rows = all.map(([number, job]) => h("tr", {},
    h("td", {}, job.running ? h("button", { type: "button", "data-key": number,
      onclick: () => fetch("stop", { method: "POST", body: JSON.stringify({ job: +number }) }) }, "Stop")
      : job.ok ? "done" : h("span", { class: "bad" }, "failed")),
    h("td", {}, h("code", {}, job.command), job.output ? h("pre", {}, job.output) : undefined)));
  show("commands", all.length ? table(["", "command, as a shell runs it"], rows)
    : h("p", { class: "dim" }, "Each action of this page is a command, which is listed here."));
}
