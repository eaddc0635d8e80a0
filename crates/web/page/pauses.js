// How long packets stopped, when, and after what.

import { nameOf } from "./state.js";

/** A shorter pause of a queue pair in ms is not told: the server counts every 10 ms. */
const LEAST = 30;
/** A pause that begins so long after a cut in ms, or so long before it is noticed, belongs to it. */
const [AFTER, BEFORE] = [5000, 150];
/** The pauses that are listed. */
const LISTED = 5;
/** A host's pause counts if at least so many bits were sent meanwhile that no host got. */
const MISSED = 24000;
/** In the last ms of a pause, what ends it is on its way. */
const WAY = 200;

/** A time in ms as text. */
export const seconds = (time) => `${(time / 1000).toFixed(2)} s`;
/** A time in ms since 1970 as text, in UTC. */
export const clock = (time) => new Date(time).toISOString().slice(11, 19);

/** What a command does to traffic, as text; undefined if it does nothing to it. */
function doing(command) {
  const words = command.split(" ");
  const last = words.at(-1);
  const of = { down: `the cut of ${last}`, up: `the restoring of ${last}`, impair: `impairing ${last}` };
  if (words[1] === "link") return of[words[2]];
  return words[1] === "policy" ? `the policy ${last}` : words[0] === "kill" ? "the kill of a vtepd" : undefined;
}

/** What may stop traffic: commands that did not fail, and links that go down or up otherwise, by time. */
export function causes(sample) {
  const jobs = Object.values(sample.jobs ?? {}).filter((job) => job.ok !== false);
  const all = jobs.map((job) => ({ time: job.at, text: doing(job.command), cut: job.command.includes(" link down ") }))
    .filter(({ text }) => text);
  for (const event of Object.values(sample.events ?? {})) {
    if (event.kind !== "link") continue;
    const time = +new Date(event.time);
    // A command has its own mark.
    if (!all.some((of) => of.time <= time && time - of.time < 2000)) all.push({ time, text: `${event.text}`, cut: / down$/.test(event.text) });
  }
  return all.sort((a, b) => a.time - b.time);
}

/** The cause of a pause: the last one before it. */
function causeOf(all, { length, end }) {
  const start = end - length;
  return all.findLast(({ time }) => time <= start + BEFORE && start - time < AFTER);
}

/** The packets of a queue pair that a page looked at, as they arrived and were sent, and the pauses that have ended. */
export function arrived(samples, flow) {
  const [times, values, sent, all] = [[], [], [], []];
  for (const sample of samples) {
    for (const [time, packets, without, end, out] of sample.watched?.[nameOf(flow)]?.steps ?? []) {
      if (time <= (times.at(-1) ?? 0)) continue;
      times.push(time);
      values.push(packets);
      sent.push(out);
      if (packets) all.push({ length: without, end: end || time });
    }
  }
  // Of a slow queue pair, what is usual is no pause.
  const usual = all.map(({ length }) => length).sort((a, b) => a - b)[all.length >> 1] ?? 0;
  const pauses = all.filter(({ length }) => length >= Math.max(LEAST, 3 * usual));
  return { series: drawn(times, values, pauses), sent: { times, values: sent }, pauses };
}

/** The line is on the ground during each pause, also during those that are shorter than its steps. */
function drawn(times, values, pauses) {
  const points = times.map((time, at) => [time, values[at]]);
  for (const { length, end } of pauses) points.push([end - length, 0], [end, 0]);
  points.sort((a, b) => a[0] - b[0]);
  return { times: points.map(([time]) => time), values: points.map(([, value]) => value) };
}

/** The pauses with their causes, and the cuts that stopped nothing, the last one first. */
export function listed(pauses, all, { start, end }) {
  const of = pauses.map((pause) => ({ ...pause, cause: causeOf(all, pause) }));
  const rows = of.map(({ length, end: until, cause }) => {
    const from = until - length;
    const since = cause ? `, ${Math.max(0, (from - cause.time) / 1000).toFixed(1)} s after ${cause.text}` : "";
    return { time: from, text: `${seconds(length)} at ${clock(from)}${since}` };
  });
  const cuts = all.filter(({ cut, time }) => cut && time >= start && time + 1000 < end);
  for (const cut of cuts) {
    if (!of.some(({ cause }) => cause === cut)) rows.push({ time: cut.time, text: `no pause after ${cut.text} at ${clock(cut.time)}` });
  }
  return { rows: rows.sort((a, b) => b.time - a.time).slice(0, LISTED), result: result(of, cuts.at(-1)) };
}

/** What the last cut has done, or the longest pause if there was none. */
function result(pauses, cut) {
  const some = cut ? pauses.filter(({ cause }) => cause === cut) : pauses;
  const longest = some.reduce((most, pause) => (pause.length > (most?.length ?? 0) ? pause : most), undefined);
  if (cut) return longest ? `no packet for ${seconds(longest.length)} after ${cut.text}` : `no pause after ${cut.text}`;
  return longest ? `longest pause ${seconds(longest.length)} at ${clock(longest.end - longest.length)}` : "no pause";
}

/** What a host received in steps, by the server's times: when each ended, its length in ms, and its rate; and what no host got. */
export function received(samples, host) {
  const [times, lengths, values, missing] = [[], [], [], []];
  for (const sample of samples) {
    const [steps, ends] = [sample.hosts?.[host] ?? [], sample.steps ?? []];
    steps.forEach((value, at) => {
      if (ends[at + 1] <= (times.at(-1) ?? 0)) return;
      times.push(ends[at + 1]);
      lengths.push(ends[at + 1] - ends[at]);
      values.push(value);
      missing.push(sample.missing?.[at] ?? Infinity);
    });
  }
  return { times, lengths, values, missing };
}

/**
 * The longest time in ms between traffic and traffic with less than a tenth of the highest rate, while hosts sent more
 * than arrived. What this page has not got of the server is no part of a pause.
 */
export function pauseOf({ times, lengths, values, missing }) {
  const little = Math.max(0, ...values) / 10;
  let longest = { length: 0 };
  let from;
  values.forEach((value, at) => {
    // A step before this one is missing.
    if (at && times[at] - lengths[at] > times[at - 1]) from = undefined;
    if (value <= little) return;
    if (from !== undefined && from < at) {
      const start = times[from] - lengths[from];
      const end = times[at - 1];
      let missed = 0;
      for (let step = from; step < at; step += 1) if (times[step] <= end - WAY) missed += missing[step] * lengths[step] / 1000;
      if (end - start > longest.length && missed > MISSED) longest = { length: end - start, end };
    }
    from = at + 1;
  });
  return longest;
}
