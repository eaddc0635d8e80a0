// An experiment: how far it is, and its results so far.

import { h } from "./state.js";
import { Rows } from "./tables.js";

const place = document.getElementById("experiment");
const [bar, text] = [h("progress", { "aria-label": "Runs that are complete" }), h("p", { role: "status" })];
let rows;
let shown = [];

/** A number with three digits or more. */
const digits = (value) => value === undefined || value === null ? "–" : value >= 100 ? value.toFixed(0) : `${+value.toPrecision(3)}`;

/** Shows the experiment of a state, if it has one. */
export function experiment({ experiment: of, progress }) {
  if (!of && progress === undefined) return;
  if (of === shown[0] && progress === shown[1]) return;
  shown = [of, progress];
  place.hidden = false;
  if (!rows) {
    const number = (name) => h("th", { class: "number" }, name);
    rows = new Rows("experiment", ["fabric", "runs of", "dataplane", number("runs"), number("mean"), number("± 95 %")]);
    place.querySelector("h2").after(bar, text);
  }
  if (!of) {
    bar.removeAttribute("value");
    text.textContent = progress;
    return;
  }
  place.querySelector("h2").textContent = of.title;
  bar.max = of.complete + of.left;
  bar.value = of.complete;
  bar.hidden = !of.left && !of.ended;
  const runs = `${of.complete} runs are complete${of.left ? `, at most ${of.left} are to go` : ""}`;
  text.textContent = of.ended ? `${runs}. ${of.ended.ok ? "The experiment has ended" : "The experiment was ended"}: ${of.ended.text}`
    : of.now ? `${runs}. Now: ${of.now}. ${progress ?? ""}` : `${runs}.`;
  text.className = of.ended && !of.ended.ok ? "bad" : "";
  rows.heads[4].textContent = of.measure;
  rows.show([...of.rows.keys()], (at) => {
    const row = of.rows[at];
    return [[row.fabric || "–", row.point, row.dataplane, row.runs, digits(row.mean), digits(row.half)]];
  });
}
