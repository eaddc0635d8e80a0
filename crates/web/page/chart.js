// Charts of the last minutes, with events on the same axis.

import { h, rate } from "./state.js";
import { mmr } from "./tables.js";

const NS = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, LEFT, BOTTOM] = [420, 120, 40, 14];

function svg(tag, attributes, text) {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** A chart of series [name, class, values]; undefined values are gaps. */
function chart(title, times, series, write, floor, marks, now) {
  const all = series.flatMap(([, , values]) => values).filter((value) => value !== undefined);
  const most = Math.max(floor, ...all) * 1.05;
  const [start, end] = [times[0], Math.max(times.at(-1), times[0] + 10000)];
  const x = (time) => LEFT + (WIDTH - LEFT - 4) * (time - start) / (end - start);
  const y = (value) => (HEIGHT - BOTTOM) * (1 - value / most) + 2;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  for (const share of [0, 0.5, 1]) {
    const at = y(most * share);
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: at, y2: at }),
      svg("text", { x: LEFT - 4, y: at + (share === 1 ? 8 : 3), "text-anchor": "end" }, write(most * share)));
  }
  for (const [time, text] of marks.filter(([time]) => time >= start && time <= end)) {
    const line = svg("line", { class: "event", x1: x(time), x2: x(time), y1: 0, y2: HEIGHT - BOTTOM });
    line.append(svg("title", {}, text));
    picture.append(line);
  }
  if (now) picture.append(svg("line", { class: "now", x1: x(now), x2: x(now), y1: 0, y2: HEIGHT - BOTTOM }));
  for (const [, shade, values] of series) {
    let part = [];
    const draw = () => {
      if (part.length > 1) picture.append(svg("polyline", { class: shade, points: part.join(" ") }));
      part = [];
    };
    values.forEach((value, at) => {
      // Nothing is known of a time without a page.
      if (value === undefined || times[at] - (times[at - 1] ?? times[at]) > 8000) draw();
      if (value !== undefined) part.push(`${x(times[at]).toFixed(1)},${y(value).toFixed(1)}`);
    });
    draw();
  }
  const ago = Math.round((end - start) / 1000);
  picture.append(svg("text", { x: LEFT, y: HEIGHT - 2 }, `${ago} s ago`),
    svg("text", { x: WIDTH - 4, y: HEIGHT - 2, "text-anchor": "end" }, "now"));
  const key = series.map(([name, shade]) => h("span", { class: shade }, "▬ ",
    h("span", {}, name)));
  return h("div", { class: "chart" }, h("h2", {}, title), picture, h("div", { class: "key" }, key));
}

const SHADES = ["l2", "l4", "l1", "l3", "l0"];

/** Draws the charts: balance of leaves, loads of the chosen or the fullest link, losses. */
export function charts(fabric, samples, chosen, now) {
  const place = document.getElementById("charts");
  if (samples.length < 2) return place.replaceChildren(h("div", {}, "Charts begin after two seconds."));
  // A point for each two pixels is enough.
  const step = Math.ceil(samples.length / 200);
  const some = samples.filter((_, at) => at % step === 0 || at === samples.length - 1);
  const times = some.map((sample) => sample.time);
  const last = some.at(-1);
  const marks = Object.values(last.events ?? {}).map((event) =>
    [Date.parse(event.time), `${event.leaf}: ${event.text}`]);
  const names = Object.keys(last.leaves ?? {}).sort().slice(0, SHADES.length);
  const balance = names.map((name, at) =>
    [name, SHADES[at], some.map((sample) => mmr(fabric, sample, name))]);
  const load = (link) => Math.max(last.links?.[link]?.ab.sent ?? 0, last.links?.[link]?.ba.sent ?? 0);
  const link = chosen ?? fabric.links.map((of) => of.a).reduce((best, a) => load(a) > load(best) ? a : best);
  const of = fabric.links.find((other) => other.a === link);
  const way = (name) => some.map((sample) => sample.links?.[link]?.[name].sent);
  const lost = (count) => some.map((sample, at) => at ? Math.max(0, count(sample) - count(some[at - 1]))
    * 1000 / (sample.time - some[at - 1].time) : 0);
  const dropped = (sample) => Object.values(sample.leaves ?? {}).reduce((all, leaf) => all + (leaf.dropped ?? 0), 0);
  const queues = some.map((sample) => Object.values(sample.links ?? {}).reduce((all, each) =>
    all + each.ab.dropped + each.ba.dropped, 0));
  place.replaceChildren(
    chart("Balance of uplinks (MMR, 1 is even)", times, balance, (value) => value.toFixed(1), 2, marks, now),
    chart(`Load of ${of.a} – ${of.b}, bit/s`, times, [[`from ${of.a}`, "l2", way("ab")],
      [`from ${of.b}`, "l4", way("ba")]], rate, 1e6, marks, now),
    chart("Frames lost a second", times, [["dropped by vtepd", "l4", lost(dropped)],
      ["dropped at interfaces", "l2", queues]], (value) => value.toFixed(0), 10, marks, now));
}
