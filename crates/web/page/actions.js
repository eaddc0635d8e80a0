// The panel of the selected node, link or queue pair, with its actions.

import { ask, h, nameOf, rate, shell, unit } from "./state.js";
import { circuit } from "./map.js";
import { stop } from "./tables.js";

const POLICIES = ["qp-pin", "spray", "qp-hash", "qp-bins", "five-tuple"];
const DATAPATHS = ["", "auto", "offload", "userspace", "kernel"];
const COLLECTIVES = ["all-reduce-ring", "all-reduce-halving-doubling", "reduce-scatter", "all-gather",
  "all-to-all", "parameter-server", "permutation"];
const NUMBERS = ["queue_pairs", "rate", "seconds", "iterations"];

function choice(name, values, chosen = values[0]) {
  return h("label", {}, h("span", { class: "dim" }, `${name} `), h("select", { name }, values.map((value) =>
    h("option", { value, selected: value === chosen }, value || "default"))));
}

function field(name, label, value, hint = "", type = "text") {
  return h("label", {}, h("span", { class: "dim" }, `${label} `), h("input", { name, type, placeholder: hint, value,
    min: type === "number" ? "1" : undefined, class: name === "hosts" || name === "numbers" ? "wider" : undefined, autocomplete: "off" }));
}

/** What of a failed command's output tells why: all of it is in the list of commands. */
function short(output) {
  const lines = output.trim().split("\n");
  const error = lines.find((line) => /^(error|lab)\b.*:/.test(line)) ?? lines.at(-1);
  return error || "failed: see Commands";
}

/** A form whose fields, with `fixed`, are an action. `lacks` tells what is missing in the fields. */
function action(label, fixed, fields, lacks = () => undefined) {
  const result = h("div", { role: "status" });
  const wanted = () => {
    const values = Object.fromEntries(new FormData(form));
    for (const name of NUMBERS) if (form.elements[name]?.type === "number") values[name] = Number(values[name]);
    if (values.datapath === "") delete values.datapath;
    if ("hosts" in values) values.hosts = values.hosts.split(/[\s,]+/).filter(Boolean);
    return { ...fixed, ...values };
  };
  const say = (answer) => {
    const text = answer.error ?? (answer.ok === undefined ? (answer.running ? "goes on: see Commands" : "")
      : answer.ok ? "done" : short(answer.output));
    const bad = answer.error || answer.ok === false;
    result.replaceChildren(h("span", { class: bad ? "bad" : "dim" }, `${text} `), ...answer.command ? [shell(answer.command)] : []);
  };
  const post = (place) => ask(place, wanted()).catch((error) => ({ error: error.message }));
  const form = h("form", { onsubmit: async (event) => {
    event.preventDefault();
    const missing = lacks(wanted());
    if (missing) return say({ error: missing });
    button.disabled = true;
    result.textContent = "running …";
    const focused = document.activeElement === button;
    say(await post("run"));
    button.disabled = false;
    if (focused && document.activeElement === document.body) button.focus();
    return undefined;
  } });
  const button = h("button", { type: "submit" }, label);
  const show = h("button", { type: "button", class: "small", title: `Show the command of “${label}”`,
    "aria-label": `Show the command of ${label}`, onclick: async () => say(await post("command")) }, "$");
  form.append(...fields, h("span", { class: "together" }, button, show));
  return h("div", {}, form, result);
}

/** What the state says about the selection. */
function figures(fabric, state, chosen) {
  if (chosen.link) {
    const link = fabric.links.find((of) => of.a === chosen.link);
    const now = state.links?.[link?.a];
    if (!link || !now) return [];
    const way = (name, from, to) => [[`${from} → ${to}`, `${rate(now[name].sent)} ${unit} sent, ${rate(now[name].received)} received, ${now[name].dropped} dropped/s`],
      ...link.circuit ? [["circuit", circuit(now[name].circuit)]] : []];
    return [["link", now.up ? "up" : "down"], ...link.circuit ? [["name", link.circuit]] : [],
      ...way("ab", link.a, link.b), ...way("ba", link.b, link.a)];
  }
  if (chosen.flow && !chosen.node && !chosen.pair) {
    return [["from", chosen.flow.from], ["to", chosen.flow.to], ["arrive", arrival(state, chosen.flow)],
      ...lossOf(state, chosen.flow), ["placed", Object.keys(state.pairs ?? {}).length ? "not by qp-pin: its path is that of its hash" : "not yet: it has sent nothing through qp-pin"]];
  }
  if (chosen.pair) {
    const pair = state.pairs?.[chosen.pair];
    if (!pair) return [["queue pair", "is no longer placed"]];
    const [from, to] = [pair.source, pair.destination].map((address) => {
      const host = Object.keys(fabric.hosts).find((name) => fabric.hosts[name] === address);
      return host ? `${host}, ${address}` : address;
    });
    return [["from", from], ["to", to],
      ["leaf", `${pair.leaf}, uplink ${pair.uplink}, source port ${pair.port}`],
      ...sprayed(state, pair), ["rate", `${rate(pair.rate)} bit/s`], ["arrive", arrival(state, chosen.flow)], ...lossOf(state, chosen.flow), ["state", `${stateOf(pair)}; ${pair.moves} moves`],
      ["PSN gaps", `${pair.gaps} on the way to its leaf; not what the fabric loses`],
      ["other direction", pair.partner === undefined ? "unknown" : `0x${pair.partner.toString(16)}, same links: ${pair.same}`]];
  }
  if (!chosen.node && state.run) return state.run.facts;
  if (chosen.node && fabric.hosts[chosen.node]) return [["address", fabric.hosts[chosen.node]]];
  const leaf = state.leaves?.[chosen.node];
  if (!leaf) return [];
  if (!leaf.vtepd) return [["vtepd", "does not answer: kernel VXLAN forwards"], ["why", leaf.why ?? ""]];
  return [["vtepd", `process ${leaf.pid}`],
    ...Object.entries(leaf.vnis).map(([vni, of]) => [`VNI ${vni}`, `${of.datapath}, ${of.policy}`]),
    ...Object.entries(leaf.drops).map(([reason, frames]) => [`drops: ${reason}`, `${frames}`])];
}

/** More paths of a sprayed queue pair are shown by uplink. */
const MOST_PATHS = 16;
/** By VTEP, the packets of its paths as its leaf answered last, and the time before. */
const answers = new Map();

/**
 * The paths of a sprayed queue pair: the share of each among all packets to its VTEP since the last answer of the
 * leaf, and in all; what became of them; and the penalty.
 */
function sprayed(state, pair) {
  const paths = pair.paths ? state.leaves?.[pair.leaf]?.sprayed?.[pair.vtep] ?? [] : [];
  const key = `${pair.leaf} ${pair.vtep}`;
  if (answers.get(key)?.now !== paths) answers.set(key, { now: paths, before: answers.get(key)?.now });
  const before = new Map(answers.get(key).before?.map(([uplink, port, ...counts]) => [`${uplink} ${port}`, counts]));
  const rows = paths.map(([uplink, port, sent, marked, lost, wait, over]) => {
    const counts = [sent, marked, lost];
    const newly = counts.map((count, at) => count - (before.get(`${uplink} ${port}`)?.[at] ?? NaN));
    return { uplink, ports: [port], counts, newly, down: +(wait === null), over: +over, wait: wait ?? 0 };
  });
  // Source ports have the routes in turns if there are more.
  const shown = rows.length > MOST_PATHS ? byUplink(rows) : rows;
  const sum = (of) => rows.reduce((all, row) => all + of(row)[0], 0);
  const [all, recent] = [sum((row) => row.counts), sum((row) => row.newly)];
  return shown.map(({ uplink, ports, counts, newly, down, over, wait }) => {
    const share = (part, whole) => `${(part * 100 / Math.max(1, whole)).toFixed(1)} %`;
    const now = recent > 0 ? `${share(newly[0], recent)} of the packets now, ${share(counts[0], all)} in all` : `${share(counts[0], all)} of the packets`;
    const [marked, lost] = [1, 2].map((at) => `${counts[at]}${newly[at] > 0 ? ` (+${newly[at]})` : ""}`);
    const some = (number) => (ports.length > 1 ? `${number} of them ` : "");
    const waits = wait ? `packets would wait ${(wait / 1000).toFixed(1)} ms` : "no penalty";
    const penalty = down ? `${some(down)}down: probes are lost` : over ? `${some(over)}passed over: ${waits}` : waits;
    return [`path ${uplink}, ${ports.length > 1 ? `${ports.length} source ports` : ports[0]}`, `${now}; ${marked} marked, ${lost} lost; ${penalty}`];
  });
}

/** The paths of each uplink as one. */
function byUplink(rows) {
  const all = new Map();
  for (const row of rows) {
    const of = all.get(row.uplink);
    const add = (name) => row[name].map((count, at) => count + of[name][at]);
    all.set(row.uplink, of ? { ...of, ports: [...of.ports, ...row.ports], counts: add("counts"), newly: add("newly"),
      down: of.down + row.down, over: of.over + row.over, wait: Math.max(of.wait, row.wait) } : row);
  }
  return [...all.values()];
}

/** How many packets of a queue pair arrive now. */
function arrival(state, flow) {
  const of = flow && state.watched?.[nameOf(flow)];
  const [, packets, pause] = of?.steps?.at(-1) ?? [];
  if (packets === undefined) return of?.why ?? "not counted";
  return packets ? `${rate(packets)} packets/s at ${flow.to}` : pause ? `no packet at ${flow.to} for ${(pause / 1000).toFixed(1)} s`
    : `no packet at ${flow.to} yet`;
}

/** The packets of a queue pair that did not arrive since it is followed. */
function lossOf(state, flow) {
  const [arrived, sent] = (flow && state.watched?.[nameOf(flow)]?.all) ?? [];
  return sent ? [["lost", `about ${Math.max(0, sent - arrived)} of ${sent} packets, since it is followed`]] : [];
}

const STATES = {
  hashed: "hashed: no path was known when it began, so its hash chose one. It moves if that makes the load more even",
  moving: "moving: it takes a better path after the next pause in its traffic",
};
const stateOf = (pair) => STATES[pair.state] ?? pair.state;

/** What decides which actions there are. */
function kindOf(state, chosen) {
  return JSON.stringify(Object.keys(state.leaves?.[chosen.node]?.vnis ?? {}));
}

/** The panel of a selection, made once; the result brings it up to date with a state. */
export function panel(fabric, start, chosen, actions, onselect) {
  const place = document.getElementById("panel");
  const name = chosen.link ? `Link ${chosen.link}` : chosen.node ? `Node ${chosen.node}` : chosen.pair ? `Queue pair 0x${chosen.pair.split("0x").at(-1)}` : chosen.flow ? `Queue pair 0x${chosen.flow.qp.toString(16)}` : `Fabric ${fabric.name}`;
  const list = h("dl", { class: "facts" });
  const does = h("div", {});
  const note = h("p", { class: "panel-note", hidden: true, role: "status" }, "The page shows the past. Actions work after Live.");
  const runs = h("ul", { class: "running", "aria-label": "Commands that run" });
  place.replaceChildren(h("h2", {}, name), list, h("div", { id: "hops" }), note, runs, does);
  const { flow } = chosen;
  if (flow && (chosen.link || chosen.node)) {
    const stop = h("button", { type: "button", class: "small", onclick: () => onselect({ ...chosen, alone: true }) }, "Stop");
    list.before(h("p", { class: "follows" }, "Follows ", h("button", { type: "button", class: "link", onclick: () => onselect({ flow }) },
      `queue pair 0x${flow.qp.toString(16)}`), ` from ${flow.from} to ${flow.to}: see `, h("a", { href: "#charts" }, "the first chart"), " ", stop));
  }
  if (!chosen.link && !chosen.node && !flow) {
    list.after(h("p", { class: "dim" }, "Select a link or a node in the map",
      ...fabric.runs ? [". "] : [", or a ", h("a", { href: "#pairs" }, "queue pair"), " below. "], "Escape comes back."));
  }
  const kept = new Map();
  let shown;
  let kind;
  let ran;
  return (state, live = state, past = false) => {
    if (actions) {
      note.hidden = !past;
      does.inert = past;
      if (live.jobs !== ran) running(runs, ran = live.jobs);
    }
    const pairs = figures(fabric, state, chosen);
    const text = JSON.stringify(pairs);
    if (text !== shown) list.replaceChildren(...pairs.flatMap(([of, value]) => [h("dt", {}, of), h("dd", {}, value)]));
    shown = text;
    const now = kindOf(state, chosen);
    if (actions && now !== kind && !does.contains(document.activeElement)) {
      kind = now;
      const all = forms(fabric, state, chosen, onselect, kept);
      const told = [...kept.values()].filter((form) => form.querySelector("[role=status]").textContent && !all.includes(form));
      does.replaceChildren(...all, ...told);
    }
  };
}

/** Lists the commands that run, with buttons that end them. */
function running(place, jobs) {
  const all = Object.entries(jobs ?? {}).filter(([, job]) => job.running);
  place.replaceChildren(...all.map(([number, { command }]) => h("li", {},
    h("button", { type: "button", class: "small", "aria-label": `End ${command}`, onclick: () => stop(number) }, "Stop"),
    h("code", { title: command }, command.replace(/^\S*\/lab /, "lab ")))));
}

/** Lists the links of a queue pair's path, in the panel. */
export function hops(fabric, [there, back], command, onselect, why) {
  const other = new Map(fabric.links.flatMap((link) => [[link.a, [link.b, link]], [link.b, [link.a, link]]]));
  const list = (ends) => h("ol", {}, ends.filter((end) => other.has(end)).map((end) => {
    const [to, link] = other.get(end);
    return h("li", {}, h("button", { type: "button", class: "link", onclick: () => onselect({ link: link.a }) }, `${end} → ${to}`));
  }));
  const place = document.getElementById("hops");
  const text = JSON.stringify([there, back, command, why]);
  // A button that somebody aims at stays.
  if (!place || place.shown === text) return;
  place.shown = text;
  place.replaceChildren(h("h3", {}, "Path"), there.length ? list(there) : h("p", { class: "dim" }, "not known"),
    ...why ? [h("p", { class: "dim" }, why)] : [],
    ...back.length ? [h("h3", {}, "Path of the other direction"), list(back)] : [],
    ...command ? [shell(command)] : []);
}

/** A form that follows a queue pair by hosts and number, whoever forwards it. */
function byNumber(from, others, first, onselect) {
  const form = h("form", { onsubmit: (event) => {
    event.preventDefault();
    const of = Object.fromEntries(new FormData(form));
    onselect({ flow: { from: of.from, to: of.to, qp: Number(of.number) } });
  } }, choice("from", from), choice("to", others, first),
  h("label", {}, h("span", { class: "dim" }, "number "), h("input", { name: "number", value: "0x11",
    pattern: "0[xX][0-9a-fA-F]{1,6}|[0-9]{1,8}", required: true, autocomplete: "off" })), h("button", { type: "submit" }, "Follow"));
  return [h("h3", {}, "Path and pauses of a queue pair, also without qp-pin"), form];
}

/** The hosts in the network of a host, taken as one of 256 addresses: others may not be reachable without a router. */
function near(fabric, host) {
  const of = (name) => fabric.hosts[name]?.replace(/\.[0-9]+$/, "");
  return Object.keys(fabric.hosts).filter((other) => of(other) === of(host));
}

/** A rate of each host in bit/s that two CPU cores carry, and the slowest circuit if all hosts send through it. */
function modest(state, hosts) {
  const limits = Object.values(state.links ?? {}).flatMap(({ ab, ba }) => [ab, ba].map((way) => way.circuit?.rate_kilobits)).filter(Boolean);
  return `${Math.max(1, Math.floor(Math.min(20000, ...limits.map((limit) => limit / Math.max(1, hosts))) / 1000))}Mbit`;
}

/** The forms of a selection. Those in `kept` stay, with what was written in them and what is told of their commands. */
function forms(fabric, state, chosen, onselect, kept) {
  const form = (label, fixed, fields, lacks) => {
    const key = JSON.stringify([label, fixed]);
    if (!kept.has(key)) kept.set(key, action(label, fixed, fields, lacks));
    return kept.get(key);
  };
  const time = () => field("time", "for", "10s", "for good");
  if (chosen.link) {
    const link = fabric.links.find((of) => of.a === chosen.link);
    const own = { link: link.a };
    const all = [h("h3", {}, "Actions"), form("Cut", { action: "down", ...own }, [time()]), form("Restore", { action: "up", ...own }, [])];
    if (link.circuit) {
      all.push(h("h3", {}, "Impair the circuit; what is empty stays"), form("Impair", { action: "impair", ...own }, [
        field("delay", "delay", "", "20ms"), field("jitter", "jitter", "", "1ms"), field("loss", "loss", "", "1%"),
        field("rate", "rate", "", "100mbit"), choice("direction", ["both", "a-to-b", "b-to-a"]), time()],
      ({ delay, jitter, loss, rate: most }) => (delay || jitter || loss || most ? undefined : "Give a delay, a jitter, a loss or a rate.")));
    }
    return all;
  }
  const hosts = Object.keys(fabric.hosts);
  const policy = () => [choice("policy", [...POLICIES, "kernel"]), choice("datapath", DATAPATHS)];
  if (fabric.nodes[chosen.node]?.leaf) {
    const leaf = chosen.node;
    const vnis = Object.keys(state.leaves?.[leaf]?.vnis ?? {});
    return [h("h3", {}, "Policy of this leaf; starts vtepd, or ends it for kernel"),
      form("Set policy", { action: "policy", leaf }, policy()),
      ...vnis.length > 1 ? vnis.map((vni) => form(`Policy of VNI ${vni}`, { action: "vni-policy", leaf, vni: Number(vni) },
        [choice("policy", POLICIES)])) : [],
      ...vnis.length ? [form("Kill vtepd", { action: "kill", leaf }, [])] : []];
  }
  if ((chosen.flow && !chosen.node) || (chosen.node && !hosts.includes(chosen.node))) return [];
  const from = chosen.node ? [chosen.node] : hosts;
  const others = hosts.filter((host) => host !== chosen.node);
  const [first] = from;
  const to = near(fabric, first).filter((host) => host !== first).at(-1) ?? others.at(-1);
  const stream = [h("h3", {}, "RoCE stream"), form("Send", { action: "send" }, [choice("from", from),
    choice("to", others, to), field("numbers", "queue pairs", "0x11 0x12 0x13 0x14", "0x11 0x12"),
    field("queue_pairs", "or, if empty, so many", "32", "", "number"),
    field("rate", "frames/s", "10000", "", "number"), field("seconds", "seconds", "60", "", "number")])];
  stream.push(...byNumber(from, others, to, onselect));
  if (chosen.node) return stream;
  const most = hosts.map((host) => near(fabric, host)).reduce((all, some) => (some.length > all.length ? some : all), []);
  return [h("h3", {}, "Policy of all leaves; starts vtepd, or ends it for kernel"),
    form("Set policy", { action: "policy" }, policy()), ...stream,
    h("h3", {}, "Collective operation"), form("Run", { action: "workload" }, [choice("collective", COLLECTIVES),
      field("hosts", "hosts", most.join(" ")), field("bytes", "bytes", "1MiB"),
      field("queue_pairs", "queue pairs", "4", "", "number"), field("rate", "rate", modest(state, most.length), "no limit"),
      field("iterations", "iterations", "20", "", "number")])];
}
