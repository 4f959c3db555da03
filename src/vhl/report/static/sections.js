"use strict";

function summarySection() {
  const cards = data.groups.map((group, number) => el("div", { class: "card", "data-colour": number, style: `border-top-color:${colour(number)}` },
    el("div", { class: "label" }, group.label),
    el("div", { class: "number" }, `${spread(group.final)} %`),
    el("div", { class: "more" }, `last tenth of the rounds; best ${spread(group.best)} %`),
    group.gain ? gainLine(group.gain) : null));
  const target = `${Number((100 * data.target).toPrecision(3))} %`;
  const rounds = (group) => (group.rounds ? `${group.rounds.mean.toFixed(0)}${group.rounds.count < group.seeds ? ` (${group.rounds.count} of ${group.seeds})` : ""}` : "never");
  const value = (measure) => (group) => group[measure]?.mean ?? null;
  const table = sortable([
    ["method", (g) => g.label],
    ["best, %", value("best"), (g) => spread(g.best)],
    ["last 10 %, %", value("final"), (g) => spread(g.final)],
    ["gain, points", (g) => g.gain?.mean ?? null, (g) => (g.gain ? signed(100 * g.gain.mean) : "–")],
    [`rounds to ${target}`, value("rounds"), rounds],
    ["speed-up", (g) => g.speed_up, (g) => (g.speed_up ? `×${g.speed_up.toFixed(1)}` : "–")],
    ["images to it", value("samples"), (g) => short(g.samples?.mean)],
    ["traffic to it", value("bytes"), (g) => (g.bytes ? `${short(g.bytes.mean)}B` : "–")],
    ["drift", value("drift"), (g) => g.drift?.mean.toFixed(2)],
    ["compute a step", value("compute"), (g) => `×${g.compute.mean.toFixed(2)}`],
    ["seeds", (g) => g.seeds],
  ], () => data.groups, { id: "comparison", "aria-label": "comparison" });
  section("summary", "Summary", null, data.verdicts.map((text) => el("p", { class: "verdict" }, text)), el("div", { class: "cards" }, cards), table,
    el("p", { class: "hint" }, `Test accuracy; ± is the standard deviation over seeds. Compute counts multiply-adds of a step, relative to plain training.`));
}

/** In colour only where the 95 % interval leaves no doubt about the sign. */
function gainLine({ mean: gain, margin }) {
  const points = `${signed(100 * gain)} points over plain training`;
  if (margin === null) return el("div", {}, `${points} (one seed)`);
  const sure = Math.abs(gain) > margin;
  return el("div", { class: sure ? (gain > 0 ? "good" : "bad") : null }, `${points} ± ${(100 * margin).toFixed(1)}${sure ? "" : ": may be chance"}`);
}

function grid(rows, columns, values, label) {
  const cells = values.flatMap((row, y) => row.map((value, x) => [x, y, value]));
  return {
    grid: { left: 104, right: 8, top: 30, bottom: 92 },
    tooltip: { ...base().tooltip, formatter: ({ value: [x, y, count] }) => escaped(label(x, y, count)) },
    xAxis: { type: "category", data: columns, ...axis("", { axisLabel: { color: css("--soft"), rotate: columns.length > 6 ? 40 : 0, width: 90, overflow: "truncate", hideOverlap: true }, splitLine: { show: false } }) },
    yAxis: { type: "category", data: rows, inverse: true, ...axis("", { axisLabel: { color: css("--soft"), width: 92, overflow: "truncate", hideOverlap: true }, splitLine: { show: false } }) },
    visualMap: { min: 0, max: cells.reduce((most, cell) => Math.max(most, cell[2]), 1), orient: "horizontal", left: "center", bottom: 0, itemHeight: 120, itemWidth: 12, textStyle: { color: css("--soft") }, inRange: { color: isDark() ? ["#1f2833", "#2b6d99", "#7cc4f2", "#f3fbff"] : ["#f4f8fb", "#9cc9e6", "#2f86bd", "#08385c"] } },
    series: [{ type: "heatmap", data: cells, label: { show: rows.length * columns.length <= 220, fontSize: 10, formatter: ({ value }) => (value[2] ? short(value[2]) : "") }, emphasis: { itemStyle: { borderColor: css("--text"), borderWidth: 1 } } }],
  };
}

const MOST_CLIENTS = 200;

function partitionSection() {
  const problems = [...new Set(data.runs.map((run) => run.problem))];
  const figures = problems.map((number) => {
    const problem = data.problems[number], counts = problem.counts.slice(0, MOST_CLIENTS);
    const total = (row) => row.reduce((sum, value) => sum + value, 0);
    const names = counts.map((row, client) => `${problem.sites[client] ?? `client ${client}`}: ${total(row).toLocaleString("en")}`);
    const place = chart(`partition-${number}`, "Images of each class at each client", () => grid(names, problem.classes, counts, (x, y, count) => `${problem.classes[x]} at ${problem.sites[y] ?? `client ${y}`}: ${count} images`));
    place.style.height = `${Math.min(60, Math.max(18, 8 + 1.6 * counts.length))}rem`;
    const more = problem.counts.length > MOST_CLIENTS ? ` The first ${MOST_CLIENTS} of ${problem.counts.length} clients.` : "";
    return el("figure", {}, place, el("figcaption", {}, `${problem.counts.length} clients, ${total(problem.counts.map(total)).toLocaleString("en")} training images, ${problem.test_samples.toLocaleString("en")} test images. Heterogeneity ${problem.heterogeneity.toFixed(2)}: mean distance of a client's class shares from those of all (0: alike, 1: nothing in common).${more}`));
  });
  section("partition", "Who has what", "Training images of each class at each client, and how many each has in all.", figures);
}

function pictureSection() {
  const seen = new Map();
  for (const run of data.runs) if (run.picture !== null && !seen.has(run.picture)) seen.set(run.picture, run);
  const natural = data.problems.map((problem) => problem.natural).filter((picture) => picture);
  if (!seen.size && !natural.length) return;
  const figures = [...seen].map(([number, run]) => el("figure", {}, el("img", { src: data.pictures[number], alt: "virtual images, one row a class" }), el("figcaption", {}, `Virtual images (${run.settings["virtual.name"]}), one row a class`)));
  natural.forEach((picture) => figures.push(el("figure", {}, el("img", { src: picture, alt: "natural training images, one row a class" }), el("figcaption", {}, "Natural training images, one row a class"))));
  section("pictures", "What the data look like", "Virtual images are made from noise and a seed; no natural image goes into them.", el("div", { class: "row" }, figures));
}

const SYMBOLS = ["circle", "triangle", "rect", "diamond"];

function featureSection() {
  const shown = data.groups.map((_, group) => data.runs.find((run) => run.group === group && run.features.length)).filter((run) => run);
  if (!shown.length) return;
  const rounds = [...new Set(shown.flatMap((run) => run.features.map((picture) => picture.round)))].sort((a, b) => a - b);
  let chosen = rounds.length - 1;
  const off = new Set();
  const names = shown.map((run) => `features-${run.group}`);
  const refresh = () => names.forEach(draw);
  const models = [...new Set(shown.flatMap((run) => run.features.flatMap((picture) => picture.points.map((p) => (p[3] === "server" ? "server" : "clients")))))];
  const toggles = [...models, "virtual"].map((kind) => el("label", {}, el("input", { type: "checkbox", checked: true, onchange: (event) => { event.target.checked ? off.delete(kind) : off.add(kind); refresh(); } }), kind === "virtual" ? "virtual images" : kind));
  const figures = shown.map((run, i) => el("figure", {}, el("h3", {}, data.groups[run.group].label), chart(names[i], `t-SNE of features, ${data.groups[run.group].label}`, () => scatter(run, rounds[chosen], off), "square")));
  section("features", "Features", "t-SNE of what the models make of test and virtual images: colour is the class, shape the model (circle: server), a ring a virtual image. Where classes of different clients lie together, clients agree.",
    el("div", { class: "controls" }, choice("after round", rounds.map(String), chosen, (i) => { chosen = i; refresh(); }), el("fieldset", {}, el("legend", {}, "show"), toggles)), el("div", { class: "row" }, figures));
}

function scatter(run, round, off) {
  const picture = run.features.find((found) => found.round === round);
  const classes = data.problems[run.problem].classes;
  const models = picture ? [...new Set(picture.points.map((point) => point[3]))].sort((a, b) => (a === "server" ? -1 : b === "server" ? 1 : a < b ? -1 : 1)) : [];
  const series = models.flatMap((model, i) => ["test", "virtual"].filter((kind) => !off.has(model === "server" ? "server" : "clients") && !(kind === "virtual" && off.has("virtual"))).map((kind) => ({
    type: "scatter", name: `${model}, ${kind}`, symbol: SYMBOLS[i % SYMBOLS.length], symbolSize: kind === "virtual" ? 9 : 6,
    data: picture.points.filter((point) => point[3] === model && point[4] === kind).map(([x, y, label]) => {
      const shade = CLASSES[label % CLASSES.length];
      return { value: [x, y, label], itemStyle: kind === "virtual" ? { color: "transparent", borderColor: shade, borderWidth: 1.5 } : { color: shade, opacity: 0.85 } };
    }),
  })));
  return {
    grid: { left: 8, right: 8, top: 30, bottom: 8 },
    title: picture ? undefined : { text: `round ${round} was not saved`, left: "center", top: "middle", textStyle: { color: css("--soft"), fontSize: 14, fontWeight: "normal" } },
    tooltip: { ...base().tooltip, formatter: (item) => escaped(`${classes[item.value[2]] ?? `virtual class ${item.value[2]}`}: ${item.seriesName}`) },
    xAxis: { type: "value", scale: true, show: false }, yAxis: { type: "value", scale: true, show: false }, series,
  };
}

function classSection() {
  const classes = data.problems[data.runs[0].problem].classes;
  const same = () => data.runs.filter((run) => data.problems[run.problem].classes.length === classes.length && run.per_class);
  const perClass = () => ({
    grid: { left: 52, right: 12, top: 34, bottom: 72 },
    tooltip: { ...base().tooltip, trigger: "axis", formatter: (items) => `<b>${escaped(items[0].axisValue)}</b>${items.map((item) => `<div>${item.marker}${escaped(item.seriesName)}: <b>${short(item.value)} %</b></div>`).join("")}` },
    xAxis: { type: "category", data: classes, ...axis("", { axisLabel: { color: css("--soft"), rotate: classes.length > 5 ? 40 : 0, width: 80, overflow: "truncate", hideOverlap: true } }) },
    yAxis: { type: "value", max: 100, ...axis("Accuracy, %", { nameGap: 38 }) },
    series: data.groups.map((group, number) => [group, number]).filter(([, number]) => !hidden.has(number)).map(([group, number]) => {
      const runs = same().filter((run) => run.group === number);
      return { type: "bar", name: group.label, color: colour(number), barGap: "10%", data: classes.map((_, i) => { const found = runs.map((run) => run.per_class[i]).filter((v) => v !== null); return found.length ? Number((100 * mean(found)).toFixed(2)) : null; }) };
    }),
  });
  const found = () => data.runs.filter((run) => run.last), looked = found();
  let chosen = 0;
  const confusion = () => {
    const run = found()[chosen], own = data.problems[run.problem].classes, n = own.length;
    const extra = run.last.confusion[0].length > n;
    const values = run.last.confusion.map((row) => (extra ? [...row.slice(0, n), row.slice(n).reduce((a, b) => a + b, 0)] : row));
    const columns = extra ? [...own, "a virtual class"] : own;
    return grid(own, columns, values, (x, y, count) => `${own[y]} taken for ${columns[x]}: ${count}`);
  };
  const clients = () => {
    const run = found()[chosen], accuracies = run.columns.accuracy.filter((value) => value !== null), sites = data.problems[run.problem].sites;
    const names = run.last.clients.map((client) => sites[client] ?? `client ${client}`);
    return {
      grid: { left: 52, right: 12, top: 34, bottom: 72 },
      tooltip: { ...base().tooltip, formatter: (item) => escaped(`${item.name}: ${short(item.value)} %`) },
      xAxis: { type: "category", data: [...names, "server"], ...axis("", { axisLabel: { color: css("--soft"), rotate: 30, width: 80, overflow: "truncate", hideOverlap: true } }) },
      yAxis: { type: "value", max: 100, ...axis("Accuracy, %", { nameGap: 38 }) },
      series: [{ type: "bar", data: [...run.last.client_accuracy.map((value) => ({ value: value === null ? null : Number((100 * value).toFixed(2)), itemStyle: { color: css("--soft") } })), { value: Number((100 * accuracies.at(-1)).toFixed(2)), itemStyle: { color: colour(run.group) } }] }],
    };
  };
  const detail = looked.length ? [
    el("div", { class: "controls" }, choice("run", looked.map((run) => run.name), 0, (i) => { chosen = i; draw("confusion"); draw("clients"); })),
    el("div", { class: "row" },
      el("figure", {}, chart("confusion", "Confusion matrix of the server's model", confusion, "square"), el("figcaption", {}, "Test images of each class (rows) and what the server's model takes them for (columns), after the last round")),
      el("figure", {}, chart("clients", "Accuracy of the last round's client models", clients, "square"), el("figcaption", {}, "Test accuracy of each model that a client sent in the last round, and of the server's, which is their average")))] : [];
  section("classes", "Classes and clients", "Accuracy of the server's model on each class after the last evaluated round, mean over seeds.", legend(),
    el("figure", {}, chart("per-class", "Accuracy of each class", perClass), el("figcaption", {}, "Accuracy of each class")), ...detail);
}

function experimentSection() {
  section("experiments", "The experiments", "Everything that is needed to run them again.", data.runs.map((run) => {
    const machine = run.environment;
    const facts = { seed: run.seed, rounds: `${run.columns.round.at(-1)} of ${run.rounds}`, processor: machine.processor, GPU: machine.gpu ?? "none", Python: machine.python, ...machine.packages, date: machine.date };
    return el("details", {}, el("summary", {}, run.name),
      el("h3", {}, "Command ", copyButton(run.command)), el("pre", { class: "fold" }, run.command),
      el("h3", {}, "experiment.toml ", copyButton(run.toml)), el("pre", {}, run.toml),
      el("dl", {}, Object.entries(facts).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))])));
  }));
}

let refillIndex = () => {};

/** Many runs: a table to filter and sort, and the curves of those that are ticked. */
function indexSection() {
  const ticked = new Set(data.runs.map((run, i) => [run.best, i]).sort((a, b) => b[0] - a[0]).slice(0, 5).map(([, i]) => i));
  const filters = { text: "" };
  const keys = { data: "data.name", partition: "partition.name", algorithm: "algorithm.name", objective: "objective.name", virtual: "virtual.name" };
  const matches = (run) => Object.entries(keys).every(([name, key]) => !filters[name] || String(run.settings[key]) === filters[name])
    && filters.text.toLowerCase().split(/\s+/).every((word) => run.search.includes(word));
  const prepare = () => data.runs.forEach((run, i) => { run.number = i; run.search = [run.name, data.groups[run.group].label, ...Object.entries(run.settings).map(([key, value]) => `${key}=${value}`)].join(" ").toLowerCase(); });
  prepare();
  const count = el("span", { class: "hint", role: "status" });
  const rows = () => { const found = data.runs.filter(matches); count.textContent = `${found.length} of ${data.runs.length} runs`; return found; };
  const tick = (run) => el("input", { type: "checkbox", checked: ticked.has(run.number), "aria-label": `show ${run.name}`, onchange: (event) => { event.target.checked ? ticked.add(run.number) : ticked.delete(run.number); draw("index"); } });
  const table = sortable([
    ["run", (run) => run.name],
    ["curve", (run) => (ticked.has(run.number) ? 1 : 0), tick],
    ...Object.entries(keys).map(([name, key]) => [name, (run) => String(run.settings[key])]),
    ["seed", (run) => run.seed],
    ["rounds", (run) => run.columns.round.at(-1)],
    ["best, %", (run) => run.best, (run) => (100 * run.best).toFixed(1)],
    ["last 10 %, %", (run) => run.final, (run) => (100 * run.final).toFixed(1)],
  ], rows, { id: "runs", "aria-label": "runs" });
  refillIndex = () => { prepare(); refill(); };
  const refill = () => table.querySelector("table").refill();
  const selects = Object.entries(keys).map(([name, key]) => {
    const values = ["all", ...new Set(data.runs.map((run) => String(run.settings[key])))];
    return values.length > 2 ? choice(name, values, 0, (i) => { filters[name] = i ? values[i] : ""; refill(); }) : null;
  });
  const search = el("input", { type: "search", placeholder: "words, or training.lr=0.01", "aria-label": "filter", oninput: () => { filters.text = search.value; refill(); } });
  section("index", "Runs", "Filter, sort by a heading, tick runs to see their curves.", el("div", { class: "controls" }, search, selects, count),
    chart("index", "Test accuracy of the ticked runs", () => ({
      grid: { left: 56, right: 18, top: 34, bottom: 46 },
      xAxis: { type: "value", ...axis(AXES.round) }, yAxis: { type: "value", scale: true, ...axis("Test accuracy, %", { nameGap: 42 }) },
      dataZoom: [{ type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl" }],
      tooltip: { ...base().tooltip, trigger: "axis", formatter: (items) => `<b>Round ${items[0].value[0]}</b>${items.map((item) => `<div>${item.marker}${escaped(item.seriesName)}: <b>${short(item.value[1])} %</b></div>`).join("")}` },
      series: [...ticked].map((number, i) => { const run = data.runs[number]; return { type: "line", id: `run-${number}`, name: run.name, color: colour(i), showSymbol: false, lineStyle: { width: 2, type: i >= PALETTE.length ? "dashed" : "solid" }, data: run.columns.round.map((round, j) => [round, run.columns.accuracy[j] === null ? null : 100 * run.columns.accuracy[j]]).filter((point) => point[1] !== null) }; }),
    })), table);
}

function build() {
  document.getElementById("title").textContent = data.title;
  say();
  charts.forEach(({ instance }) => instance?.dispose());
  charts.clear();
  document.getElementById("contents").replaceChildren();
  document.getElementById("main").replaceChildren();
  if (!data.whole) indexSection();
  else [summarySection, accuracySection, trainingSection, partitionSection, pictureSection, featureSection, classSection, experimentSection].forEach((make) => make());
  drawAll();
}

/** What there is, in a line. */
function say() {
  const seeds = new Set(data.runs.map((run) => run.seed)).size;
  document.getElementById("about").textContent = `${data.runs.length} run${data.runs.length > 1 ? "s" : ""}, ${data.groups.length} method${data.groups.length > 1 ? "s" : ""}, ${seeds} seed${seeds > 1 ? "s" : ""}; vhl ${data.version}`;
}

/** While runs go on: new numbers into the figures that are there; all anew where there is more to show. */
async function renew() {
  const about = document.getElementById("about");
  try {
    const answer = await fetch("data.json");
    if (!answer.ok) return;
    const shape = (found) => JSON.stringify([found.whole, found.groups.map((group) => group.label), found.runs.map((run) => [run.name, run.features?.length, Boolean(run.last)])]);
    const before = shape(data);
    data = { ...(await answer.json()), live: true };
    window.report.data = data;
    if (shape(data) !== before) build();
    else if (data.whole) { summarySection(); experimentSection(); }
    else refillIndex();
    say();
    drawAll();
    about.classList.remove("stale");
  } catch {
    about.classList.add("stale");
    about.textContent = "The run's page is no longer served; what is shown is the last that was.";
  }
}

build();
beginTheme();
if (data.live) setInterval(renew, 3000);
new ResizeObserver(() => charts.forEach(({ instance }) => instance?.resize())).observe(document.getElementById("main"));
window.report = { data, charts, hidden };
