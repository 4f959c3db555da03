"use strict";

const FILTERS = { data: "data.name", partition: "partition.name", algorithm: "algorithm.name", objective: "objective.name", virtual: "virtual.name" };
/** Runs whose curves are shown, each with the number of its colour. */
const ticked = new Map();
const lookOf = (number) => data.looks[number % data.looks.length];

/** Names alone may be the same. */
function nameRuns() {
  const seen = new Map();
  data.runs.forEach((run) => {
    seen.set(run.name, (seen.get(run.name) ?? 0) + 1);
    run.id = `${run.name} ${seen.get(run.name)}`;
    run.search = [run.name, data.groups[run.group].label, ...Object.entries(run.settings).map(([key, value]) => `${key}=${value}`)].join(" ").toLowerCase();
  });
}

/** `lr=0.01` is a setting, to the letter; other words may stand anywhere. */
function hasWord(run, word) {
  const [, key, wanted] = word.match(/^([^=]*)=(.*)$/) ?? [];
  const own = Object.entries(run.settings).filter(([name]) => name === key || name.endsWith(`.${key}`));
  return own.length ? own.some(([, value]) => String(value).toLowerCase() === wanted) : run.search.includes(word);
}

function tickRun(id) {
  const taken = new Set(ticked.values());
  let number = 0;
  while (taken.has(number)) number += 1;
  ticked.set(id, number);
}

/** A box to tick, and beside it how the curve is drawn. */
function tickBox(run) {
  const look = el("span", { class: "place" });
  const show = () => look.replaceChildren(...(ticked.has(run.id) ? [swatch(lookOf(ticked.get(run.id)))] : []));
  show();
  return el("span", { class: "tick" }, el("input", {
    type: "checkbox", checked: ticked.has(run.id), "aria-label": `show ${run.name}`,
    onchange: (event) => { event.target.checked ? tickRun(run.id) : ticked.delete(run.id); show(); showTicked(); draw("index"); },
  }), look);
}

const tickedRuns = () => [...ticked].map(([id, number]) => [data.runs.find((run) => run.id === id), number]).filter(([run]) => run);

/** The names of the curves, wherever in the table they are. */
function showTicked() {
  document.getElementById("ticked").replaceChildren(...tickedRuns().map(([run, number]) => el("li", {}, swatch(lookOf(number)), ` ${run.name}`)));
}

/** In the order in which they were ticked, each as it is drawn. */
function tickedCurves() {
  const [panel] = figureOf("index").panels;
  return painted({ ...panel, series: tickedRuns().map(([run, number]) => ({ ...panel.series[data.runs.indexOf(run)], look: lookOf(number) })) });
}

/** Many runs: a table to filter and sort, and the curves of those that are ticked. */
function indexSection() {
  const wanted = (name) => chosen[`filter-${name}`] || "";
  const matches = (run) => Object.entries(FILTERS).every(([name, key]) => !wanted(name) || String(run.settings[key]) === wanted(name))
    && search.value.toLowerCase().split(/\s+/).every((word) => hasWord(run, word));
  renewing(nameRuns);
  [...data.runs].sort((a, b) => b.best - a.best).slice(0, 5).forEach((run) => tickRun(run.id));
  const count = el("span", { class: "hint", role: "status" });
  const rows = () => { const found = data.runs.filter(matches); count.textContent = `${found.length} of ${data.runs.length} runs`; return found; };
  const search = el("input", { type: "search", placeholder: "words, or lr=0.01", "aria-label": "filter", oninput: () => refill() });
  const table = sortable([
    ["run", (run) => run.name],
    ["best, %", (run) => run.best, (run) => (100 * run.best).toFixed(1)],
    [`last ${lastShare()}, %`, (run) => run.final, (run) => (100 * run.final).toFixed(1)],
    ["curve", (run) => (ticked.has(run.id) ? 1 : 0), tickBox, "text"],
    ["method", (run) => data.groups[run.group].label, null, "words"],
    ...Object.entries(FILTERS).map(([name, key]) => [name, (run) => String(run.settings[key]), null, "text"]),
    ["seed", (run) => run.seed],
    ["rounds", (run) => run.done],
  ], rows, (run) => run.id, { id: "runs", "aria-label": "runs" });
  const refill = () => table.querySelector("table").refill();
  const selects = Object.entries(FILTERS).map(([name, key]) => {
    const found = () => [...new Set(data.runs.map((run) => String(run.settings[key])))];
    const select = choice(`filter-${name}`, name, () => [["", "all"], ...found().map((value) => [value, value])], () => "", refill);
    renewing(() => { select.hidden = found().length < 2; });
    return select;
  });
  return section("index", "Runs", "Filter, sort by a heading, tick runs to see their curves.", el("div", { class: "controls" }, search, selects, count),
    chart("index", "Test accuracy of the ticked runs", tickedCurves), el("ul", { id: "ticked", class: "key" }), table);
}
