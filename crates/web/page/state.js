// The state of the fabric, as the server sends it, and that of the last ten minutes.

const MINUTES = 10;

/** Makes an element. Children that are no nodes become text, never markup. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (typeof value === "boolean") element.toggleAttribute(name, value);
    else if (value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null));
  return element;
}

/** The value with a merge patch (RFC 7396). What does not change is the same object. */
export function merged(value, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const result = value !== null && typeof value === "object" && !Array.isArray(value)
    ? { ...value } : {};
  for (const [name, change] of Object.entries(patch)) {
    if (change === null) delete result[name];
    else result[name] = merged(result[name], change);
  }
  return result;
}

/** The merge patch from one value to another; undefined if they are equal. */
export function difference(before, after) {
  if (before === after) return undefined;
  const plain = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  if (!plain(before) || !plain(after)) {
    return JSON.stringify(before) === JSON.stringify(after) ? undefined : after;
  }
  const patch = {};
  for (const name of Object.keys(after)) {
    const change = difference(before[name], after[name]);
    if (change !== undefined) patch[name] = change;
  }
  for (const name of Object.keys(before)) if (!(name in after)) patch[name] = null;
  return Object.keys(patch).length ? patch : undefined;
}

/** All samples, one a second. */
export class History {
  samples = [];

  add(state) {
    // At first, not all parts are known.
    if (!state.time || !state.links || !state.leaves) return;
    const last = this.samples.at(-1);
    if (last && state.time - last.time < 1000) return;
    this.samples.push(state);
    while (state.time - this.samples[0].time > MINUTES * 60000) this.samples.shift();
  }

  /** The samples as changes, for a file. */
  file(fabric) {
    const changes = this.samples.map((state, at) =>
      at ? difference(this.samples[at - 1], state) ?? {} : state);
    return JSON.stringify({ format: "lab-web-1", fabric, changes });
  }

  static from(file) {
    const history = new History();
    let state = {};
    for (const change of file.changes) {
      state = merged(state, change);
      history.samples.push(state);
    }
    return history;
  }
}

/** The number of this page, for the server. */
const own = crypto.getRandomValues(new Uint32Array(1))[0];

/** Tells the server which queue pair this page looks at, so that it counts its packets; undefined: none. */
export function lookAt(flow) {
  const at = flow && { from: flow.from, to: flow.to, queue_pair: flow.qp };
  return fetch("look", { method: "POST", body: JSON.stringify({ page: own, at }) }).catch(() => {});
}

/** What the server calls a queue pair that is looked at. */
export const nameOf = ({ from, to, qp }) => `${from} ${to} 0x${qp.toString(16)}`;

/** Follows the server. `onstate` gets each state, `onstatus` whether it answers. Returns the source. */
export function follow(onstate, onstatus) {
  let state = {};
  const source = new EventSource(`state/${own}`);
  // The first message after each connection is the whole state.
  let fresh = true;
  source.onopen = () => { fresh = true; onstatus(true); };
  source.onerror = () => { onstatus(false); };
  source.onmessage = (message) => {
    state = merged(fresh ? {} : state, JSON.parse(message.data));
    fresh = false;
    onstate(state);
  };
  return source;
}

/** The unit of loads of links. */
export let unit = "bit/s";

/** Loads are in this unit. */
export function measureIn(other) {
  unit = other ?? unit;
}

/** A rate in bits per second with three digits: 12.3M. */
export function rate(value) {
  for (const [scale, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= 0.9995 * scale) return `${+(value / scale).toPrecision(3)}${unit}`;
  }
  return `${Math.round(value)}`;
}

/** Posts an action: to `run` it, or to get its `command`. Returns the answer. */
export async function ask(place, action) {
  const answer = await fetch(place, { method: "POST", body: JSON.stringify(action) });
  return answer.json();
}

/** A command, with a button that copies it. */
export function shell(command) {
  const copy = h("button", { type: "button", class: "small", onclick: async () => {
    await navigator.clipboard.writeText(command).catch(() => {});
    copy.textContent = "Copied";
  } }, "Copy");
  return h("span", { class: "shell" }, h("code", {}, command), copy);
}
