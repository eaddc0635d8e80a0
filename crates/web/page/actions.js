// The panel of the selected node, link or queue pair, with its actions.

import { h, rate, run } from "./state.js";
import { circuit } from "./map.js";

const POLICIES = ["qp-pin", "qp-hash", "qp-bins", "five-tuple"];

function choice(name, values) {
  return h("select", { name, "aria-label": name }, values.map((value) => h("option", { value }, value || `default ${name}`)));
}

function input(name, hint, value = "", type = "text") {
  return h("label", {}, h("span", { class: "dim" }, name === "time" ? "for " : `${hint.split(" ")[0] === name ? name : hint} `),
    h("input", { name, type, placeholder: hint.replace(`${name} `, ""), value }));
}

/** A form whose fields, with `fixed`, are an action. */
function action(label, fixed, fields, done) {
  const result = h("div", { role: "status" });
  const form = h("form", { onsubmit: async (event) => {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(form));
    for (const name of ["queue_pairs", "rate", "seconds"]) {
      if (fixed.action === "send" && name in values) values[name] = Number(values[name]);
    }
    if (values.datapath === "") delete values.datapath;
    button.disabled = true;
    result.textContent = "running …";
    const answer = await run({ ...fixed, ...values }).catch((error) => ({ error: error.message }));
    button.disabled = false;
    const text = answer.error ?? (answer.running ? "goes on: see Commands" : answer.ok ? "done" : answer.output);
    result.replaceChildren(h("span", { class: answer.error || answer.ok === false ? "bad" : "dim" }, text));
    if (answer.command) result.append(h("br"), h("code", {}, answer.command));
    done?.(answer);
  } });
  const button = h("button", { type: "submit" }, label);
  form.append(...fields, button);
  return h("div", {}, form, result);
}

function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** What the state says about the selection; it is shown anew with each state. */
export function figures(fabric, state, chosen) {
  if (chosen.link) {
    const link = fabric.links.find((of) => of.a === chosen.link);
    const now = state.links?.[link.a];
    if (!link || !now) return [];
    const way = (name, from, to) => [[`${from} → ${to}`, `${rate(now[name].sent)} bit/s sent, ${rate(now[name].received)} received, ${now[name].dropped} dropped/s`],
      ...link.circuit ? [["circuit", circuit(now[name].circuit)]] : []];
    return [["link", now.up ? "up" : "down"], ...link.circuit ? [["name", link.circuit]] : [],
      ...way("ab", link.a, link.b), ...way("ba", link.b, link.a)];
  }
  if (chosen.pair) {
    const pair = state.pairs?.[chosen.pair];
    if (!pair) return [["queue pair", "is no longer placed"]];
    return [["queue pair", `0x${pair.qp.toString(16)}`], ["from", pair.source], ["to", pair.destination],
      ["leaf", `${pair.leaf}, uplink ${pair.uplink}, source port ${pair.port}`], ["routers", pair.routers.join(", ")],
      ["rate", `${rate(pair.rate)} bit/s`], ["state", `${pair.state}, ${pair.moves} moves`],
      ["other direction", pair.partner === undefined ? "unknown" : `0x${pair.partner.toString(16)}, same links: ${pair.same}`]];
  }
  const leaf = state.leaves?.[chosen.node];
  if (!leaf) return [];
  if (!leaf.vtepd) return [["vtepd", "does not answer: kernel VXLAN forwards"], ["why", leaf.why ?? ""]];
  return [["vtepd", `process ${leaf.pid}`],
    ...Object.entries(leaf.vnis).map(([vni, of]) => [`VNI ${vni}`, `${of.datapath}, ${of.policy}`]),
    ...Object.entries(leaf.drops).map(([reason, frames]) => [`drops: ${reason}`, `${frames}`])];
}

/** The panel of a selection, made once; `refresh(state)` brings its figures up to date. */
export function panel(fabric, state, chosen, actions) {
  const place = document.getElementById("panel");
  const live = h("div", {});
  const name = chosen.link ? `Link ${chosen.link}` : chosen.node ? `Node ${chosen.node}` : chosen.pair ? "Queue pair" : `Fabric ${fabric.name}`;
  place.replaceChildren(h("h2", {}, name), live);
  if (!chosen.link && !chosen.node && !chosen.pair) {
    place.append(h("p", { class: "dim" }, "Select a link, a node or a queue pair. Escape comes back."));
  }
  if (actions) place.append(...forms(fabric, state, chosen));
  return (now) => live.replaceChildren(facts(figures(fabric, now, chosen)));
}

function forms(fabric, state, chosen) {
  const time = () => input("time", "10s", "10s");
  if (chosen.link) {
    const link = fabric.links.find((of) => of.a === chosen.link);
    const own = { link: link.a };
    const all = [h("h3", {}, "Actions"), action("Cut", { action: "down", ...own }, [time()]), action("Restore", { action: "up", ...own }, [])];
    if (link.circuit) {
      all.push(h("h3", {}, "Impair the circuit"), action("Impair", { action: "impair", ...own }, [
        input("delay", "delay 20ms"), input("jitter", "jitter 1ms"), input("loss", "loss 1%"),
        input("rate", "rate 100mbit"), choice("direction", ["both", "a-to-b", "b-to-a"]), time()]));
    }
    return all;
  }
  const hosts = Object.keys(fabric.hosts);
  if (chosen.node && state.leaves?.[chosen.node]) {
    const leaf = chosen.node;
    const vnis = Object.keys(state.leaves[leaf].vnis ?? {});
    return [h("h3", {}, "Actions"), ...vnis.map((vni) => action(`Policy of VNI ${vni}`,
      { action: "leaf-policy", leaf, vni: Number(vni) }, [choice("policy", POLICIES)])),
    action("Kill vtepd", { action: "kill", leaf }, [])];
  }
  if (chosen.pair || (chosen.node && !hosts.includes(chosen.node))) return [];
  const from = chosen.node ? [chosen.node] : hosts;
  const others = hosts.filter((host) => host !== chosen.node);
  const to = choice("to", chosen.node ? others : [...others].reverse());
  return [h("h3", {}, "All leaves; starts vtepd where it does not run"), action("Set policy", { action: "policy" }, [
    choice("policy", [...POLICIES, "kernel"]), choice("datapath", ["", "auto", "offload", "userspace", "kernel"])]),
  h("h3", {}, "RoCE stream"), action("Send", { action: "send" }, [choice("from", from), to,
    input("queue_pairs", "queue pairs", "32", "number"), input("rate", "frames a second", "10000", "number"),
    input("seconds", "seconds", "60", "number")])];
}
