// The panel of the selected node, link or queue pair, with its actions.

import { ask, h, nameOf, rate, shell, unit } from "./state.js";
import { circuit } from "./map.js";

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

/** A form whose fields, with `fixed`, are an action. */
function action(label, fixed, fields) {
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
      : answer.ok ? "done" : answer.output);
    const bad = answer.error || answer.ok === false;
    result.replaceChildren(h("span", { class: bad ? "bad" : "dim" }, `${text} `), ...answer.command ? [shell(answer.command)] : []);
  };
  const post = (place) => ask(place, wanted()).catch((error) => ({ error: error.message }));
  const form = h("form", { onsubmit: async (event) => {
    event.preventDefault();
    button.disabled = true;
    result.textContent = "running …";
    say(await post("run"));
    button.disabled = false;
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
      ["placed", "not by qp-pin: its path is that of its hash"]];
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
      ...sprayed(state, pair), ["rate", `${rate(pair.rate)} bit/s`], ["arrive", arrival(state, chosen.flow)], ["state", `${pair.state}, ${pair.moves} moves`],
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
  place.replaceChildren(h("h2", {}, name), list, h("div", { id: "hops" }), does);
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
  return (state) => {
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

/** Lists the links of a queue pair's path, in the panel. */
export function hops(fabric, [there, back], command, onselect, why) {
  const other = new Map(fabric.links.flatMap((link) => [[link.a, [link.b, link]], [link.b, [link.a, link]]]));
  const list = (ends) => h("ol", {}, ends.filter((end) => other.has(end)).map((end) => {
    const [to, link] = other.get(end);
    return h("li", {}, h("button", { type: "button", class: "link", onclick: () => onselect({ link: link.a }) }, `${end} → ${to}`));
  }));
  document.getElementById("hops")?.replaceChildren(h("h3", {}, "Path"), there.length ? list(there) : h("p", { class: "dim" }, "not known"),
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

/** The forms of a selection. Those in `kept` stay, with what was written in them and what is told of their commands. */
function forms(fabric, state, chosen, onselect, kept) {
  const form = (label, fixed, fields) => {
    const key = JSON.stringify([label, fixed]);
    if (!kept.has(key)) kept.set(key, action(label, fixed, fields));
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
        field("rate", "rate", "", "100mbit"), choice("direction", ["both", "a-to-b", "b-to-a"]), time()]));
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
      field("hosts", "hosts", most.join(" ")), field("bytes", "bytes", "16MiB"),
      field("queue_pairs", "queue pairs", "4", "", "number"), field("rate", "rate", "100Mbit", "no limit"),
      field("iterations", "iterations", "20", "", "number")])];
}
