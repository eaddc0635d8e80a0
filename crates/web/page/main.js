// The page: joins the state, the map, the tables and the panel.

import { charts, follow as followPointer } from "./chart.js";
import { clock } from "./pauses.js";
import { History, ask, follow, lookAt, measureIn, nameOf } from "./state.js";
import { Map_ } from "./map.js";
import { Pairs, commands, events, leaves } from "./tables.js";
import { experiment } from "./results.js";
import { hops, panel } from "./actions.js";

const start = await (await fetch("fabric")).json();
const { fabric } = start;
const element = (id) => document.getElementById(id);
element("name").textContent = fabric.name ? `Fabric ${fabric.name}` : "No fabric";
document.title = `${fabric.name || "no fabric"} – lab web`;
measureIn(fabric.unit);
if (fabric.runs) {
  // Each sample is a run, and nothing is known of its queue pairs and events.
  for (const section of ["leaves", "pairs", "events", "commands"]) element(section).hidden = true;
  element("when").firstChild.textContent = "Run ";
  [...element("span").options].forEach((option) => { option.textContent = `${option.value * 60} runs`; });
}

let history = new History();
let live = {};
let past;
let chosen = {};
/** The queue pair that was selected last. It is followed while links of its path are selected. */
let followed;
let connected = false;
let refresh = () => {};
const paths = new Map();

const map = new Map_(fabric, select);
const pairs = new Pairs(fabric, (key) => {
  select({ pair: key });
  // Its path is marked there.
  element("map").scrollIntoView({ block: "start" });
}, (key) => hover(key), all);
const shown = () => (past === undefined ? live : history.samples[past] ?? live);

function select(next) {
  if (next.flow && !next.link && !next.node && !next.pair) return selectFlow(next.flow);
  const pair = shown().pairs?.[next.pair];
  if (pair) watch({ ...pairs.named(pair), key: next.pair });
  else if (next.pair ? next.pair !== followed?.key : next.alone || !(next.link || next.node)) watch(undefined);
  choose({ ...next, flow: followed });
}

/** Follows a queue pair by hosts and number, whether `qp-pin` has placed it or not. */
function selectFlow({ from, to, qp }) {
  const placed = Object.entries(shown().pairs ?? {}).map(([key, pair]) => ({ ...pairs.named(pair), key }))
    .find((pair) => pair.from === from && pair.to === to && pair.qp === qp);
  if (placed) return select({ pair: placed.key });
  watch({ from, to, qp });
  return choose({ flow: followed });
}

function choose(next) {
  chosen = next;
  pairs.chosen = followed?.key;
  map.select(next);
  refresh = panel(fabric, shown(), chosen, !start.readOnly && !start.replay, select);
  mark(followed?.key);
  remember();
  all();
}

/** Follows a queue pair: the server counts its packets from now on. */
function watch(flow) {
  if (flow !== followed) path = undefined;
  followed = flow;
  if (connected) lookAt(flow && flow.from in fabric.hosts && flow.to in fabric.hosts ? flow : undefined);
}

let hovered;
function hover(key) {
  hovered = key;
  // A pointer that only passes asks for nothing.
  setTimeout(() => { if (hovered === key) mark(key ?? followed?.key); }, 120);
}

/** The keys of the other directions of queue pairs, which were found. */
const partners = new Map();
function partnerOf(key, pair) {
  const all = shown().pairs;
  const is = (other) => other?.qp === pair.partner && other.source === pair.destination
    && other.destination === pair.source && other.vni === pair.vni;
  if (pair.partner !== undefined && !is(all[partners.get(key)])) partners.set(key, Object.keys(all).find((other) => is(all[other])));
  return pair.partner === undefined ? undefined : all[partners.get(key)];
}

let marked;
/** Names a path. It changes with the source ports and uplinks of both directions, and with links that go down or up. */
function pathOf(key) {
  const pair = key && shown().pairs?.[key];
  const place = (of) => `${of?.port} ${of?.uplink}`;
  const links = shown().links ?? {};
  const down = Object.keys(links).filter((link) => !links[link].up).join(" ");
  if (pair) return `${key} ${place(pair)} ${place(partnerOf(key, pair))} ${down}`;
  if (key || !followed || followed.key) return undefined;
  return `${nameOf(followed)} ${down}`;
}

/** The path that is marked last, by queue pair: it is shown while the next one is asked for. */
const before = new Map();
/** Routers take some time to know that a link is down or up. So long after a change in ms, they are asked again. */
const [SETTLES, AGAIN] = [12000, 1000];
let changed = 0;

/** Asks the routers for both directions of a path. */
function route(pair) {
  const named = pair ? pairs.named(pair) : followed;
  const path = async (from, to, queue_pair) => {
    if (queue_pair === undefined) return { ends: [] };
    const answer = await ask("run", { action: "path", from, to, queue_pair });
    if (!answer.ok) return { ends: [], why: answer.error ?? answer.output };
    const { from: end, hops: routers, placed } = JSON.parse(answer.output);
    const ends = placed === false ? [] : [end, ...routers.map((hop) => `${hop.node}:${hop.leaves}`)];
    return { ends, command: answer.command };
  };
  const both = [path(named.from, named.to, named.qp), path(named.to, named.from, named.partner)];
  return Promise.all(both).catch((error) => [{ ends: [], why: error.message }, { ends: [] }]);
}

/** Shows a path on the map, and in the panel of its queue pair. A path with a link that is down is one of the past. */
function draw(key, [there, back], { command, why } = {}) {
  const links = shown().links ?? {};
  const down = fabric.links.find(({ a, b }) => links[a]?.up === false && [...there, ...back].some((end) => end === a || end === b));
  map.path(there, back, down && "was");
  const isShown = key ? key === chosen.pair : !chosen.link && !chosen.node;
  const was = down && `This was its path. ${down.a} to ${down.b} is down now; the routers are asked again.`;
  if (isShown) hops(fabric, [there, back], command, select, was ?? why);
}

/** Marks the path of a queue pair, both directions: what is known at once, the rest when routers have answered. */
async function mark(key) {
  const name = pathOf(key);
  marked = name;
  if (!name) return map.path();
  const pair = key && shown().pairs[key];
  const who = key ?? nameOf(followed);
  const own = pair ? [[`${pair.leaf}:${pair.uplink}`], []] : [[], []];
  if (start.replay || past !== undefined) {
    const then = shown().path;
    if (then?.who === who) return draw(key, then.ends);
    return draw(key, own, { why: pair ? "Only its uplink is known: the page did not ask for its path then." : undefined });
  }
  if (!paths.has(name)) {
    const { ends, command } = before.get(who) ?? { ends: own };
    draw(key, ends, { command, why: command ? undefined : "The routers are asked." });
    paths.set(name, route(pair));
  }
  const [there, back] = await paths.get(name);
  // What is not known now is asked for again, and what may change soon.
  if (!there.ends.length || Date.now() - changed < SETTLES) paths.delete(name);
  if (name !== marked || past !== undefined) return undefined;
  const ends = there.ends.length ? [there.ends, back.ends] : own;
  before.set(who, { ends, command: there.command });
  if (who === (followed?.key ?? (followed && nameOf(followed)))) path = { who, ends };
  draw(key, ends, { command: there.command, why: there.why });
  return undefined;
}

/** The path of the queue pair that is followed, for samples. */
let path;
let asked = 0;
let seen = {};
/** Asks again for a path that may have changed. */
function again() {
  const key = hovered ?? followed?.key;
  const name = pathOf(key);
  const of = `${key ?? ""} ${name}`;
  // It is not that another queue pair is marked.
  if (of !== seen.of && key === seen.key) changed = Date.now();
  seen = { of, key };
  if (!name || !marked || past !== undefined) return;
  const soon = Date.now() - changed < SETTLES && !paths.has(name) && Date.now() - asked >= AGAIN;
  if (name === marked && !soon) return;
  asked = Date.now();
  mark(key);
}

/** What the user selects stays after a reload. */
function remember() {
  if (start.replay) return;
  sessionStorage.setItem(location.pathname, JSON.stringify({ number: start.number, chosen, followed }));
}

const slow = [
  () => map.texts(shown()),
  () => experiment(start.replay ? shown() : live),
  () => pairs.update(shown()),
  () => leaves(fabric, shown(), select),
  () => { events(shown()); commands(live); },
  () => charts(fabric, history.samples, chosen, past === undefined ? undefined : shown().time, Number(element("span").value) * 60000),
  () => time(),
];

function time() {
  const scrub = element("scrub");
  scrub.max = Math.max(0, history.samples.length - 1);
  scrub.value = past ?? scrub.max;
  const ago = Math.round(((history.samples.at(-1)?.time ?? 0) - (shown().time ?? 0)) / 1000);
  element("shown").textContent = past === undefined ? "live" : fabric.runs ? `${past + 1} of ${history.samples.length}: ${shown().run.name}` : `${ago} s ago, ${clock(shown().time ?? 0)}`;
  scrub.setAttribute("aria-valuetext", element("shown").textContent);
  element("live").disabled = past === undefined;
}

// One part in each frame, so that none takes long.
let waiting = false;
let fresh = false;
let parts = [];
let second = 0;
function soon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(frame);
}

function frame() {
  waiting = false;
  if (fresh) {
    fresh = false;
    const state = shown();
    map.update(state);
    refresh(state, live, past !== undefined);
    // A queue pair that has moved has another path.
    again();
  } else parts.shift()?.();
  if (fresh || parts.length) soon();
}

/** Draws everything anew. */
function all() {
  fresh = true;
  parts = [...slow];
  soon();
}

function goto(at) {
  past = at >= history.samples.length - 1 && !start.replay ? undefined : Math.max(0, at);
  element("scrub").value = past ?? element("scrub").max;
  mark(followed?.key);
  all();
}
element("scrub").addEventListener("input", (event) => goto(Number(event.target.value)));
element("live").addEventListener("click", () => { past = undefined; mark(followed?.key); all(); });
element("span").addEventListener("change", all);
followPointer((time) => {
  const at = history.samples.findIndex((sample) => sample.time >= time);
  if (at >= 0) goto(at);
});
element("filter").addEventListener("input", () => {
  // At once: a row that is clicked next is one that matches.
  pairs.update(shown());
  all();
});
element("save").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([history.file(fabric)], { type: "application/json" }));
  link.download = `${fabric.name}.lab-web.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});
addEventListener("keydown", (event) => { if (event.key === "Escape") select({}); });

if (!start.replay) {
  // Before the page was loaded, or another one was open.
  history = History.from({ changes: await (await fetch("history")).json() });
  live = history.samples.at(-1) ?? live;
}
const kept = JSON.parse(sessionStorage.getItem(location.pathname) ?? "{}");
select({});
if (!start.replay && kept.number === start.number) {
  followed = kept.followed;
  choose(kept.chosen);
}
if (start.replay) {
  history = History.from(start.replay);
  past = history.samples.length - 1;
  element("status").textContent = "replay";
  element("live").hidden = true;
  element("save").hidden = true;
  all();
} else {
  const source = follow((state) => {
    // Another fabric is shown, as by an experiment.
    if ((state.fabric ?? start.number) !== start.number) return location.reload();
    live = path && followed ? { ...state, path } : state;
    history.add(live);
    if (past !== undefined && past >= history.samples.length) past = history.samples.length - 1;
    fresh ||= past === undefined;
    const now = Math.floor((state.time ?? 0) / 1000);
    if ((now !== second || state.experiment?.ended) && !parts.length) {
      parts = past === undefined ? [...slow] : [() => refresh(shown(), live, true), () => experiment(live), () => commands(live), () => time()];
    }
    second = now;
    return soon();
  }, (answers) => {
    const ended = live.experiment?.ended;
    if (ended) source.close();
    connected = answers;
    if (answers) watch(followed);
    element("status").textContent = answers ? "" : ended ? "ended" : "lab web does not answer; trying again";
    element("status").className = answers || ended ? "" : "bad";
  });
}
