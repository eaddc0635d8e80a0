// Charts of the last minutes, with events and commands on the same axis.

import { h, nameOf, rate, unit } from "./state.js";
import { arrived, causes, clock, listed, pauseOf, received, seconds } from "./pauses.js";
import { mmr } from "./tables.js";

const NS = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM] = [306, 120, 42, 4, 16];
const SHADES = ["l2", "l4", "l1", "l3", "l0"];
/** A shorter pause of a host in ms is not told: the server reads ten times a second. */
const SHORTEST = 300;
/** Nothing is known of a longer time between two samples: no page was open. */
const GAP = 8000;
/** Hosts that never receive so many bit/s have no pauses. */
const LITTLE = 5e5;
const STEPS = [1, 2, 5, 10];

function svg(tag, attributes, text) {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** The first of 1, 2, 5 times a power of ten that is not below the value. */
function round(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * STEPS.find((step) => step * power >= value * 0.999999);
}

/** What of a sample its charts need, computed once. */
const known = new WeakMap();
function of(fabric, sample) {
  if (!known.has(sample)) {
    const all = (values, count) => Object.values(values ?? {}).reduce((sum, each) => sum + count(each), 0);
    known.set(sample, {
      balance: Object.fromEntries(Object.keys(sample.leaves ?? {}).map((leaf) => [leaf, mmr(fabric, sample, leaf)])),
      dropped: all(sample.leaves, (leaf) => leaf.dropped ?? 0),
      queues: all(sample.links, (link) => link.ab.dropped + link.ba.dropped),
    });
  }
  return known.get(sample);
}

/** The operations of a kind, by series: when each ended, and how long it took, in ms. */
function completed(samples, kind) {
  const all = new Map();
  for (const sample of samples) {
    for (const [name, of] of Object.entries(sample.completions ?? {})) {
      if (of.kind !== kind) continue;
      if (!all.has(name)) all.set(name, { name, times: [], values: [] });
      const { times, values } = all.get(name);
      for (const [ended, took] of of.points) {
        if (ended <= (times.at(-1) ?? 0)) continue;
        times.push(ended);
        values.push(took / 1000);
      }
    }
  }
  return all;
}

/** The lowest and the highest value of each two pixels, so that no short pause disappears. */
function reduced(times, values, start, end) {
  const width = (end - start) / ((WIDTH - LEFT - RIGHT) / 2);
  const points = [];
  let bucket;
  const flush = () => {
    if (bucket) points.push(...new Set([bucket.low, bucket.high].sort(([a], [b]) => a - b)));
    bucket = undefined;
  };
  times.forEach((time, at) => {
    const value = values[at];
    if (time < start || time > end) return;
    if (value === undefined || time - (times[at - 1] ?? time) > GAP) {
      flush();
      points.push(undefined);
    }
    if (value === undefined) return;
    const [place, point] = [Math.floor((time - start) / width), [time, value]];
    if (bucket?.place !== place) {
      flush();
      bucket = { place, low: point, high: point };
    }
    if (value < bucket.low[1]) bucket.low = point;
    if (value > bucket.high[1]) bucket.high = point;
  });
  flush();
  return points;
}

/** The charts that are shown, for the pointer. */
let drawn = [];
let pointed;

class Chart {
  /**
   * `series`: { name, shade, times, values, note, pauses, lists, lasts }; undefined values are gaps. With `lasts`, each
   * value is how long something took that ended then.
   */
  constructor(title, series, write, floor, { start, end, now, marks, ends }) {
    Object.assign(this, { series, write, start, end, now });
    const visible = series.flatMap(({ times, values }) =>
      values.filter((value, at) => value !== undefined && times[at] >= start && times[at] <= end));
    const most = round(visible.reduce((most, value) => Math.max(most, value), floor));
    const y = (value) => (HEIGHT - BOTTOM - 4) * (1 - value / most) + 4;
    const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
    this.picture = picture;
    for (const share of [0, 0.5, 1]) {
      const at = y(most * share);
      picture.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: at, y2: at }),
        svg("text", { x: LEFT - 4, y: at + (share === 1 ? 6 : 3), "text-anchor": "end" }, write(most * share)));
    }
    for (const [time, text, kind] of marks) {
      if (time < start || time > end) continue;
      const line = this.#line(kind, time);
      line.append(svg("title", {}, text));
      picture.append(line);
    }
    if (now) picture.append(this.#line("now", now));
    for (const { pauses } of series) for (const pause of pauses ?? []) if (pause.end >= start) picture.append(this.#pause(pause));
    this.pointer = this.#line("pointer", start);
    picture.append(this.pointer);
    for (const { shade, times, values, lasts } of series) {
      let part = [];
      const draw = () => {
        if (part.length > 1) picture.append(svg("polyline", { class: lasts ? `${shade} thin` : shade, points: part.join(" ") }));
        part = [];
      };
      for (const point of reduced(times, values, start, end)) {
        if (!point) {
          draw();
          continue;
        }
        part.push(`${this.#x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`);
        if (lasts) picture.append(this.#lasting(point, shade, y(point[1])));
      }
      draw();
    }
    picture.append(svg("text", { x: LEFT, y: HEIGHT - 2 }, ends[0]),
      svg("text", { x: WIDTH - RIGHT, y: HEIGHT - 2, "text-anchor": "end" }, ends[1]));
    this.values = series.map(() => h("output", {}));
    this.place = h("div", { class: "chart" }, h("h2", {}, title), picture, h("div", { class: "key" },
      series.map(({ name, shade, note }, at) => h("span", {}, h("span", { class: shade }, "▬ "), `${name} `,
        this.values[at], note ? h("b", {}, ` ${note}`) : undefined))),
      ...series.filter(({ lists }) => lists?.length).map(({ lists }) => h("ol", { class: "pauses", "aria-label": "Pauses, the last one first" },
        lists.map(({ text }) => h("li", {}, text)))));
    this.point();
  }

  #x(time) {
    return LEFT + (WIDTH - LEFT - RIGHT) * (time - this.start) / (this.end - this.start);
  }

  #line(kind, time) {
    return svg("line", { class: kind, x1: this.#x(time), x2: this.#x(time), y1: 0, y2: HEIGHT - BOTTOM });
  }

  /** A pause, which is wide enough to be seen. */
  #pause({ length, end }) {
    const width = Math.max(3, this.#x(end) - this.#x(end - length));
    const band = svg("rect", { class: "pause", x: this.#x(end) - width, width, y: 4, height: HEIGHT - BOTTOM - 4 });
    band.append(svg("title", {}, `no packet for ${seconds(length)} at ${clock(end - length)}`));
    return band;
  }

  /** From the beginning of something to its end, wide enough to be seen. */
  #lasting([end, took], shade, y) {
    const to = this.#x(end);
    const from = Math.max(LEFT, Math.min(to - 2, this.#x(end - took)));
    return svg("line", { class: `lasting ${shade}`, x1: from.toFixed(1), x2: to.toFixed(1), y1: y.toFixed(1), y2: y.toFixed(1) });
  }

  /** The time below the pointer. */
  timeAt(event) {
    const box = this.picture.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * WIDTH;
    return this.start + (x - LEFT) / (WIDTH - LEFT - RIGHT) * (this.end - this.start);
  }

  /** Shows the values at a time; by default at the one that is shown, or the last. */
  point(time) {
    const within = time !== undefined && time >= this.start && time <= this.end;
    this.pointer.setAttribute("visibility", within ? "visible" : "hidden");
    for (const name of ["x1", "x2"]) this.pointer.setAttribute(name, within ? this.#x(time) : 0);
    const at = within ? time : this.now ?? this.end;
    this.series.forEach(({ times, values }, number) => {
      const next = times.findIndex((other) => other >= at);
      const value = values[next < 0 ? values.length - 1 : next];
      this.values[number].textContent = value === undefined ? "–" : this.write(value);
    });
  }
}

/** Listens to the pointer: all charts show its time, and a click goes there. */
export function follow(goto) {
  const place = document.getElementById("plots");
  const chartOf = (event) => drawn.find((chart) => chart.picture.contains(event.target));
  place.addEventListener("pointermove", (event) => {
    pointed = chartOf(event)?.timeAt(event);
    drawn.forEach((chart) => chart.point(pointed));
  });
  place.addEventListener("pointerleave", () => {
    pointed = undefined;
    drawn.forEach((chart) => chart.point());
  });
  place.addEventListener("click", (event) => {
    const chart = chartOf(event);
    if (chart) goto(chart.timeAt(event));
  });
}

function marksOf(sample) {
  const events = Object.values(sample.events ?? {}).map((event) =>
    [+new Date(event.time), `${event.leaf}: ${event.text}`, "event"]);
  const jobs = Object.values(sample.jobs ?? {}).map((job) => [job.at, job.ok === false ? `failed: ${job.command}` : job.command, job.ok === false ? "failed" : "action"]);
  return [...events, ...jobs];
}

/** What the ends of the axis are: times, or the numbers of runs. */
function endsOf(fabric, start, end) {
  if (fabric.runs) return [start, end].map((at) => `run ${Math.max(1, Math.round(at / 1000))}`);
  const ago = (end - start) / 1000;
  return [`−${ago < 120 ? `${Math.round(ago)} s` : `${Math.round(ago / 60)} min`}`, clock(end)];
}

const digits = (value) => `${+value.toPrecision(3)}`;

/** The charts of results: a sample is a run. */
function ofRuns(some, link, times) {
  const all = (of) => [...new Set(some.flatMap((sample) => Object.keys(of(sample.run) ?? {})))].slice(0, SHADES.length);
  // Between its runs, a series keeps its last value.
  const kept = (name, at, value) => {
    let last;
    return { name, shade: SHADES[at], times, values: some.map(({ run }) => (last = value(run) ?? last)) };
  };
  return [
    [some.at(-1).experiment?.measure ?? "", all((run) => ({ [run.series]: 0 })).map((name, at) =>
      kept(name, at, (run) => (run.series === name ? run.value : undefined))), digits, 0.001],
    link,
    ["Balance of links (MMR)", all((run) => run.mmr).map((name, at) => kept(name, at, (run) => run.mmr[name])), digits, 2],
    ["Frames lost in a run", [kept("lost", 1, (run) => run.lost)], digits, 10],
  ];
}

/** Draws the charts: what hosts receive, loads of the chosen or the most loaded link, completion times, balance, losses. */
export function charts(fabric, samples, chosen, now, span) {
  const place = document.getElementById("plots");
  const newest = samples.at(-1);
  if (samples.length < 2 || !fabric.links.length) {
    return place.replaceChildren(h("div", {}, fabric.runs ? "Charts need two runs." : "Charts begin after two seconds."));
  }
  const end = now === undefined ? newest.time : Math.min(newest.time, Math.max(now + span / 2, samples[0].time + span));
  // The axis of a few runs is not mostly empty.
  const start = fabric.runs ? Math.max(samples[0].time, end - span) : end - span;
  const frame = { start, end, now, marks: marksOf(newest), ends: endsOf(fabric, start, end) };
  const some = samples.filter((sample) => sample.time >= frame.start - 2000 && sample.time <= end);
  const last = some.at(-1) ?? newest;
  const times = some.map((sample) => sample.time);
  const line = (name, shade, value) => ({ name, shade, times, values: some.map(value) });

  const load = (link) => Math.max(last.links?.[link]?.ab.sent ?? 0, last.links?.[link]?.ba.sent ?? 0);
  const link = chosen.link ?? fabric.links.map((of) => of.a).reduce((best, a) => load(a) > load(best) ? a : best);
  const { a, b } = fabric.links.find((other) => other.a === link);
  const ofLink = [`${a} – ${b}, ${unit}`, [line(`from ${a}`, "l2", (sample) => sample.links?.[link]?.ab.sent),
    line(`from ${b}`, "l4", (sample) => sample.links?.[link]?.ba.sent)], rate, unit === "bit/s" ? 1e6 : 1e3];
  const all = fabric.runs ? ofRuns(some, ofLink, times) : ofTime(fabric, some, chosen, { ...last, jobs: newest.jobs }, line, ofLink, frame);
  drawn = all.map((parts) => new Chart(...parts, frame));
  place.replaceChildren(...drawn.map((chart) => chart.place));
  drawn.forEach((chart) => chart.point(pointed));
}

/** The packets of a queue pair where they arrive, and how long they stopped. */
function ofFlow(some, flow, last, frame) {
  const { series, sent, pauses } = arrived(some, flow);
  const { rows, result } = listed(pauses, causes(last), frame);
  const [, packets, without, , out] = last.watched?.[nameOf(flow)]?.steps?.at(-1) ?? [];
  const now = packets !== 0 ? [] : !out && series.values.some(Boolean) ? [`${flow.from} sends none now`]
    : without ? [`now none for ${seconds(without)}`] : [];
  const note = [series.values.some(Boolean) ? result : "no packet yet", ...now].join(", ");
  return [`Queue pair 0x${flow.qp.toString(16)}, packets/s`,
    [{ ...series, name: `arrive at ${flow.to}`, shade: "l2", pauses, note, lists: series.values.some(Boolean) ? rows : [] },
      { ...sent, name: `sent by ${flow.from}`, shade: "l0" }], rate, 10];
}

/** How long operations of a kind took: nothing if there were none. */
function ofKind(some, kind, title) {
  const all = [...completed(some, kind).values()].sort((a, b) => b.times.at(-1) - a.times.at(-1)).slice(0, SHADES.length);
  all.sort((a, b) => (a.name < b.name ? -1 : 1));
  const series = all.map((of, at) => ({ ...of, shade: SHADES[at], lasts: true,
    note: `longest ${took(of.values.reduce((most, value) => Math.max(most, value), 0))}` }));
  return all.length ? [[title, series, took, 1]] : [];
}

/** A time in ms as short text. */
const took = (time) => time >= 1000 ? `${digits(time / 1000)} s` : `${digits(time)} ms`;

/** What a leaf's vtepd sends and drops. It is asked once a second, so that a mean of three samples is smooth. */
function ofLeaf(some, leaf, line) {
  const rateOf = (field) => (sample, at) => {
    const before = some[Math.max(0, at - 3)];
    const [now, then] = [sample, before].map((of) => of.leaves?.[leaf]?.[field]);
    return at && now !== undefined && then !== undefined ? Math.max(0, now - then) * 1000 / (sample.time - before.time) : undefined;
  };
  return [`${leaf}, frames/s`, [line("sent by vtepd", "l2", rateOf("sent")), line("dropped", "l4", rateOf("dropped"))], rate, 10];
}

function ofTime(fabric, some, chosen, last, line, ofLink, frame) {
  const hosts = Object.keys(fabric.hosts).map((name) => ({ name, ...received(some, name) }));
  const sum = (host) => host.values.reduce((all, value) => all + value, 0) + (host.name === chosen.node ? Infinity : 0);
  hosts.sort((a, b) => sum(b) - sum(a) || (a.name < b.name ? -1 : 1));
  const most = hosts.slice(0, 3).map((host, at) => {
    // ARP and the like pause all the time.
    if (Math.max(0, ...host.values) < LITTLE) return { ...host, shade: SHADES[at] };
    const longest = pauseOf(host);
    const is = longest.length >= SHORTEST;
    const note = is ? `longest pause ${(longest.length / 1000).toFixed(1)} s at ${clock(longest.end - longest.length)}` : `no pause of ${SHORTEST / 1000} s`;
    return { ...host, shade: SHADES[at], note, pauses: is ? [longest] : [] };
  });
  const names = Object.keys(last.leaves ?? {}).sort().slice(0, SHADES.length);
  const lost = (field) => (sample, at) => at ? Math.max(0, of(fabric, sample)[field] - of(fabric, some[at - 1])[field])
    * 1000 / (sample.time - some[at - 1].time) : 0;
  return [
    ...chosen.flow ? [ofFlow(some, chosen.flow, last, frame)] : [],
    ...fabric.nodes[chosen.node]?.leaf ? [ofLeaf(some, chosen.node, line)] : [],
    ["Received by hosts, bit/s", most, rate, 1e6],
    ofLink,
    ...ofKind(some, "iteration", "Completion time of iterations"),
    ...ofKind(some, "stream", "Completion time of streams"),
    ["Balance of uplinks (MMR)", names.map((name, at) => line(name, SHADES[at],
      (sample) => of(fabric, sample).balance[name])), (value) => +value.toFixed(2), 2],
    ["Frames lost a second", [line("dropped by vtepd", "l4", lost("dropped")),
      line("dropped at interfaces", "l2", (sample) => of(fabric, sample).queues)], (value) => value.toFixed(0), 10],
  ];
}
