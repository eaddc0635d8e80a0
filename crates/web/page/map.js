// The map: the picture of `lab graph`, whose lines and numbers change in place.

import { h, rate, unit } from "./state.js";

const SCALES = [1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10];
const HEIGHTS = ["h2", "h3", "h5", "h7", "h8"];

/** The first round rate that is not below the highest load, as `lab graph` has it. */
function scaleOf(highest) {
  const least = Math.max(highest, unit === "bit/s" ? 1e6 : 1e3);
  const power = 10 ** Math.floor(Math.log10(least));
  return SCALES.map((step) => step * power).find((step) => step >= least * 0.999999) ?? least;
}

/** Writes a text, if it differs. */
function write(element, text) {
  if (element.textContent === text) return false;
  element.textContent = text;
  return true;
}

export class Map_ {
  halves = new Map();
  nodes = new Map();
  circuits = new Map();
  #scale = 0;
  #chosen;

  constructor(fabric, onselect) {
    this.fabric = fabric;
    const place = document.getElementById("picture");
    if (!fabric.links.length) return place.replaceChildren(h("p", { class: "dim" }, "No fabric is up yet. The page shows the next one."));
    // The page has its own style.
    const plain = fabric.picture.replace(/<style>[^<]*<\/style>/, "");
    const parsed = new DOMParser().parseFromString(plain, "image/svg+xml");
    parsed.querySelectorAll("style, script, foreignObject").forEach((element) => element.remove());
    const svg = document.importNode(parsed.documentElement, true);
    const body = svg.querySelector("g[transform]:not(.frame)");
    place.replaceChildren(svg);
    const drawn = body.getBBox();
    const [, left, top] = /translate\(([-\d.]+) ([-\d.]+)\)/.exec(body.getAttribute("transform"));
    svg.setAttribute("viewBox", [+left + drawn.x - 12, +top + drawn.y - 12, drawn.width + 24, drawn.height + 24].join(" "));
    // A large fabric is scrolled.
    svg.style.minWidth = `${drawn.width * 0.6}px`;
    const linkOf = new Map(fabric.links.flatMap((link) => [[link.a, link], [link.b, link]]));
    const choose = (element, chosen, label) => {
      element.setAttribute("tabindex", "0");
      element.setAttribute("role", "button");
      element.setAttribute("aria-label", label);
      element.addEventListener("click", () => onselect(chosen));
      element.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); onselect(chosen); }
      });
    };
    for (const group of svg.querySelectorAll("[data-from]")) {
      const { from, to } = group.dataset;
      const link = linkOf.get(from);
      const corners = group.querySelector(".tip").getAttribute("points").split(" ")
        .map((corner) => corner.split(",").map(Number));
      this.halves.set(from, { from, group, link, corners, way: link.a === from ? "ab" : "ba",
        title: group.querySelector("title"), line: group.querySelector(".load"),
        tip: group.querySelector(".tip"), to });
      choose(group, { link: link.a }, `link ${from} to ${to}`);
    }
    for (const group of svg.querySelectorAll("[data-rate-from]")) {
      const half = this.halves.get(group.dataset.rateFrom);
      half.text = group.querySelector("text");
    }
    for (const group of svg.querySelectorAll("[data-node]")) {
      const name = group.dataset.node;
      const node = { group, title: group.querySelector("title") };
      if (fabric.nodes[name]?.leaf) {
        // Two more lines, for the policy, and for datapath and drops.
        const [text, box] = [group.querySelector("text"), group.querySelector("rect")];
        const move = (element, name, by) => element.setAttribute(name, Number(element.getAttribute(name)) + by);
        node.box = { box, width: Number(box.getAttribute("width")), middle: Number(text.getAttribute("x")) };
        node.lines = ["policy", "datapath"].map((shade, at) => {
          const line = text.cloneNode();
          line.classList.add(shade);
          move(line, "y", 2 + at * 11);
          group.append(line);
          return line;
        });
        move(text, "y", -10.5);
        move(box, "y", -7);
        move(box, "height", 14);
      }
      this.nodes.set(name, node);
      choose(group, { node: name }, `node ${name}`);
    }
    for (const group of svg.querySelectorAll("[data-circuit]")) {
      const circle = group.querySelector("circle");
      // Below it, where lines rarely are, what it does to packets.
      const text = document.createElementNS(svg.namespaceURI, "text");
      for (const [name, value] of [["class", "properties"], ["data-properties", group.dataset.circuit], ["text-anchor", "middle"], ["x", circle.getAttribute("cx")],
        ["y", Number(circle.getAttribute("cy")) + 16]]) text.setAttribute(name, value);
      body.append(text);
      this.circuits.set(group.dataset.circuit, { title: group.querySelector("title"), text });
      group.addEventListener("click", () => onselect({ link: group.dataset.circuit }));
    }
  }

  update(state) {
    if (!this.halves.size) return;
    const links = state.links ?? {};
    const loads = Object.values(links).flatMap((link) => [link.ab.sent, link.ba.sent]);
    const scale = scaleOf(Math.max(0, ...loads));
    const anew = scale !== this.#scale;
    if (anew) this.#legend(scale);
    for (const half of this.halves.values()) this.#half(half, links[half.link.a], scale, anew);
  }

  /** Writes all texts. Nobody reads numbers that change ten times a second, and laying them out is slow. */
  texts(state) {
    const links = state.links ?? {};
    for (const [from, half] of this.halves) this.#text(from, half, links[half.link.a]);
    for (const [name, node] of this.nodes) this.#node(name, node, state.leaves?.[name]);
    for (const [a, { title, text }] of this.circuits) {
      const both = ["ab", "ba"].map((way) => links[a]?.[way]?.circuit);
      write(title, `circuit: ${both.map(circuit).join("; back: ")}`);
      write(text, brief(both));
    }
  }

  #node(name, node, leaf) {
    if (leaf === node.shown || !leaf) return;
    node.shown = leaf;
    node.group.classList.toggle("lost", !leaf.vtepd);
    const vnis = Object.values(leaf.vnis ?? {});
    const all = (of) => [...new Set(vnis.map(of))].join(", ");
    const [policy, datapath] = leaf.vtepd ? [all((vni) => vni.policy), all((vni) => vni.datapath)] : ["kernel VXLAN", "no vtepd"];
    write(node.title, leaf.vtepd ? `${name}: ${policy}, datapath ${datapath}, ${leaf.dropped} frames dropped` : `${name}: no vtepd`);
    if (!node.lines) return;
    const texts = [policy, `${datapath}${leaf.dropped ? `, ${rate(leaf.dropped)} dropped` : ""}`];
    if (!node.lines.map((line, at) => write(line, texts[at])).some(Boolean)) return;
    const { box, width, middle } = node.box;
    const wide = Math.max(width, ...node.lines.map((line) => line.getComputedTextLength() + 10));
    box.setAttribute("width", wide);
    box.setAttribute("x", middle - wide / 2);
  }

  #half(half, link, scale, anew) {
    if (!link) return;
    const { sent } = link[half.way];
    const share = Math.min(1, sent / scale);
    const level = share < 0.01 ? 0 : Math.max(1, Math.ceil(share * 4 - 1e-9));
    const width = 1.5 + 6.5 * share;
    // Only what differs is written, so that nothing is laid out without need.
    const shown = `${level} ${width.toFixed(1)} ${link.up}`;
    // The number beside a colour or a panel is of the same time.
    if (anew || `${level} ${link.up}` !== half.colour || half.link.a === this.#chosen) this.#text(half.from, half, link);
    if (shown === half.shown) return;
    half.colour = `${level} ${link.up}`;
    half.shown = shown;
    for (let at = 0; at <= 4; at += 1) half.group.classList.toggle(`l${at}`, at === level);
    half.group.classList.toggle("broken", !link.up);
    half.line.setAttribute("stroke-width", width.toFixed(1));
    const [point, one, other] = half.corners;
    const wide = (2 + width * 0.75) / 7.5;
    const side = (corner) => [0, 1].map((axis) => {
      const middle = (one[axis] + other[axis]) / 2;
      return (middle + (corner[axis] - middle) * wide).toFixed(1);
    });
    half.tip.setAttribute("points", [point, side(one), side(other)].join(" "));
  }

  #text(from, half, link) {
    if (!link) return;
    const { sent, received } = link[half.way];
    const title = `${from} to ${half.to}: ${rate(sent)} ${unit} sent, ${rate(received)} ${unit} received`;
    const text = link.up ? rate(sent) : "down";
    if (half.text) write(half.text, text);
    write(half.title, title);
  }

  #legend(scale) {
    this.#scale = scale;
    const entries = [0, 1, 2, 3, 4].map((level) => h("span", {},
      h("span", { class: `swatch l${level} ${HEIGHTS[level]}` }),
      level ? `up to ${rate(scale * level / 4)} ${unit}` : `below ${rate(scale / 100)} ${unit}`));
    document.getElementById("legend").replaceChildren(...entries, "each half: what its end sends");
  }

  select(chosen) {
    this.#chosen = chosen.link;
    for (const half of this.halves.values()) {
      half.group.classList.toggle("chosen", half.link.a === chosen.link);
    }
    for (const [name, node] of this.nodes) node.group.classList.toggle("chosen", name === chosen.node);
  }

  /** Marks the directions that begin at these ends, and those of the way back; as a path of the past if it `was` one. */
  path(there = [], back = [], was = false) {
    for (const [from, half] of this.halves) {
      half.group.classList.toggle("path", there.includes(from));
      half.group.classList.toggle("back", back.includes(from));
      half.group.classList.toggle("was", Boolean(was) && [...there, ...back].includes(from));
    }
  }
}

/** The properties of one direction of a circuit. */
export function circuit(of) {
  if (!of) return "no answer";
  const limit = of.rate_kilobits ? `${rate(of.rate_kilobits * 1000)} bit/s` : "no rate limit";
  return `${of.delay_milliseconds} ms ± ${of.jitter_milliseconds} ms, loss ${of.loss_percent} %, ${limit}`;
}

/** The properties of both directions of a circuit in a few characters. Two values are those of the directions. */
function brief(both) {
  if (both.some((of) => !of)) return "no answer";
  const of = (value, unit, none) => {
    const values = [...new Set(both.map(value))];
    return values.every((each) => each === none) ? [] : [`${values.join("/")}${unit}`];
  };
  return [...of((way) => way.delay_milliseconds, " ms", 0), ...of((way) => way.loss_percent, " % loss", 0),
    ...of((way) => (way.rate_kilobits ? rate(way.rate_kilobits * 1000) : "∞"), " bit/s", "∞")].join(", ");
}
