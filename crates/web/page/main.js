// The page: joins the state, the map, the tables and the panel.

import { charts } from "./chart.js";
import { History, follow, run } from "./state.js";
import { Map_ } from "./map.js";
import { Pairs, commands, events, leaves } from "./tables.js";
import { panel } from "./actions.js";

const start = await (await fetch("fabric")).json();
const { fabric } = start;
const element = (id) => document.getElementById(id);
element("name").textContent = `Fabric ${fabric.name}`;
document.title = `${fabric.name} – lab web`;

let history = new History();
let live = {};
let past;
let chosen = {};
let refresh = () => {};
const paths = new Map();

const map = new Map_(fabric, select);
const pairs = new Pairs(fabric, (key) => select({ pair: key }), (key) => hover(key));
const shown = () => (past === undefined ? live : history.samples[past] ?? live);

function select(next) {
  chosen = next;
  pairs.chosen = next.pair;
  pairs.again = true;
  map.select(next);
  refresh = panel(fabric, shown(), next, !start.readOnly && !start.replay);
  mark(next.pair);
  draw();
}

let hovered;
function hover(key) {
  hovered = key;
  // A pointer that only passes asks for nothing.
  setTimeout(() => { if (hovered === key) mark(key ?? chosen.pair); }, 120);
}

/** Marks the path of a queue pair, both directions: its uplink at once, the rest when routers have answered. */
async function mark(key) {
  const pair = key && shown().pairs?.[key];
  if (!pair) return map.path();
  const named = pairs.named(pair);
  const name = `${key} ${pair.port} ${pair.uplink}`;
  if (!paths.has(name)) {
    map.path([`${pair.leaf}:${pair.uplink}`]);
    if (start.replay) return undefined;
    const ask = async (from, to, queue_pair) => {
      if (queue_pair === undefined) return [];
      const answer = await run({ action: "path", from, to, queue_pair });
      if (!answer.ok) return [];
      const { from: end, hops, placed } = JSON.parse(answer.output);
      return placed === false ? [] : [end, ...hops.map((hop) => `${hop.node}:${hop.leaves}`)];
    };
    paths.set(name, await Promise.all([ask(named.from, named.to, pair.qp), ask(named.to, named.from, pair.partner)]));
  }
  if (key === (hovered ?? chosen.pair)) map.path(...paths.get(name));
  return undefined;
}

let drawn = 0;
function draw() {
  const state = shown();
  map.update(state);
  refresh(state);
  const second = Math.floor((state.time ?? 0) / 1000);
  pairs.update(state);
  if (second === drawn && past === undefined) return;
  drawn = second;
  leaves(fabric, state, select);
  events(state);
  commands(live);
  charts(fabric, history.samples, chosen.link, past === undefined ? undefined : state.time);
  const scrub = element("scrub");
  scrub.max = Math.max(0, history.samples.length - 1);
  if (past === undefined) scrub.value = scrub.max;
  const ago = Math.round(((history.samples.at(-1)?.time ?? 0) - (state.time ?? 0)) / 1000);
  element("shown").textContent = past === undefined ? "live" : `${ago} s ago`;
  element("live").disabled = past === undefined;
}

element("scrub").addEventListener("input", (event) => {
  const at = Number(event.target.value);
  past = at >= history.samples.length - 1 && !start.replay ? undefined : at;
  draw();
});
element("live").addEventListener("click", () => { past = undefined; drawn = 0; draw(); });
element("filter").addEventListener("input", draw);
element("save").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([history.file(fabric)], { type: "application/json" }));
  link.download = `${fabric.name}.lab-web.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});
addEventListener("keydown", (event) => { if (event.key === "Escape") select({}); });

let waiting = false;
function soon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

select({});
if (start.replay) {
  history = History.from(start.replay);
  past = history.samples.length - 1;
  element("status").textContent = "replay";
  element("live").hidden = true;
  draw();
} else {
  follow((state) => {
    live = state;
    history.add(state);
    if (past !== undefined && past >= history.samples.length) past = history.samples.length - 1;
    soon();
  }, (answers) => {
    element("status").textContent = answers ? "" : "lab web does not answer; trying again";
    element("status").className = answers ? "" : "bad";
  });
}
