"use strict";

function summarySection() {
  const cards = () => data.groups.map((group, number) => el("div", { class: "card", style: `border-top-color: var(--shade-${number % shades().length})` },
    el("div", { class: "label" }, group.label),
    el("div", { class: "number" }, `${spread(group.final)} %`),
    el("div", { class: "more" }, `last ${lastShare()} of the rounds; best ${spread(group.best)} %`),
    group.gain ? gainLine(group.gain) : null,
    group.left_out ? el("div", { class: "more" }, `${group.left_out} of ${group.models} models of clients left out of averages`) : null,
    group.partly_tested ? el("div", { class: "more" }, `rounds whose accuracy lacks the images of sites that did not answer: ${group.partly_tested}`) : null));
  const alone = "There is one method here; beside the same with objective=plain (or vhl) it gets a verdict.";
  const verdicts = () => (data.groups.length > 1 ? data.verdicts.map((text) => el("p", { class: "verdict" }, text)) : el("p", { class: "hint" }, alone));
  const target = (group) => `${Number((100 * group.target).toPrecision(3))} %`, one = () => new Set(data.groups.map(target)).size === 1;
  const rounds = (group) => {
    const reached = group.rounds ? `${group.rounds.mean.toFixed(0)}${group.rounds.count < group.seeds ? ` (${group.rounds.count} of ${group.seeds})` : ""}` : "never";
    return one() ? reached : `${reached} to ${target(group)}`;
  };
  /** A mean over the seeds that reached the target would flatter where others did not. */
  const ofAll = (group, measure) => (group[measure]?.count >= group.seeds ? group[measure].mean : null);
  const value = (measure) => (group) => group[measure]?.mean ?? null;
  const table = sortable([
    ["method", (g) => g.label],
    ["best, %", value("best"), (g) => spread(g.best)],
    [`last ${lastShare()}, %`, value("final"), (g) => spread(g.final)],
    ["gain, points", (g) => g.gain?.mean ?? null, (g) => (g.gain ? signed(100 * g.gain.mean) : "–")],
    [() => `rounds to ${one() ? target(data.groups[0]) : "the target"}`, value("rounds"), rounds],
    ["speed-up", (g) => g.speed_up, (g) => (g.speed_up ? `×${g.speed_up.toFixed(1)}` : "–")],
    ["images to it", (g) => ofAll(g, "samples"), (g) => short(ofAll(g, "samples"))],
    ["traffic to it", (g) => ofAll(g, "bytes"), (g) => { const found = ofAll(g, "bytes"); return found === null ? "–" : `${short(found)}B`; }],
    ["drift", value("drift"), (g) => g.drift?.mean.toFixed(2)],
    ["compute a step", value("compute"), (g) => `×${g.compute.mean.toFixed(2)}`],
    ["time a round", (g) => g.time, (g) => (g.time ? `×${g.time.toFixed(2)}` : "–")],
    ["seeds", (g) => g.seeds],
  ], () => data.groups, (group) => group.label, { id: "comparison", "aria-label": "comparison" });
  return section("summary", "Summary", null, renewed("div", {}, verdicts), renewed("div", { class: "cards" }, cards), table,
    el("p", { class: "hint" }, "Test accuracy; ± is the standard deviation over seeds. Compute counts multiply-adds of a step, relative to plain training. The time of a round is relative to the first method's, of rounds that had the machine to themselves."));
}

/** In colour only where the 95 % interval leaves no doubt about the sign. */
function gainLine({ mean: gain, margin }) {
  const points = `${signed(100 * gain)} points over plain training`;
  if (margin === null) return el("div", {}, `${points} (one seed)`);
  const sure = Math.abs(gain) > margin;
  return el("div", { class: sure ? (gain > 0 ? "good" : "bad") : null }, `${points} ± ${(100 * margin).toFixed(1)}${sure ? "" : ": may be chance"}`);
}

/** Counts as shades: a table of them with names. */
function grid(rows, columns, counts, label) {
  const cells = counts.flatMap((row, y) => row.map((value, x) => [x, y, value]));
  const most = cells.reduce((found, cell) => Math.max(found, cell[2]), 1);
  return {
    grid: room(104, 8, 8, 92),
    tooltip: beside({ formatter: ({ value: [x, y, count] }) => escaped(label(x, y, count)) }),
    xAxis: names(columns, 90, columns.length > 6 ? 40 : 0),
    yAxis: { ...names(rows, 92), inverse: true },
    visualMap: {
      min: 0, max: most, text: [most.toLocaleString("en"), "0"], orient: "horizontal", left: "center", bottom: 0, itemHeight: px(120), itemWidth: px(12), textStyle: { color: css("--soft"), fontSize: px(12) },
      inRange: { color: isDark() ? ["#1f2833", "#2b6d99", "#7cc4f2", "#f3fbff"] : ["#f4f8fb", "#9cc9e6", "#2f86bd", "#08385c"] },
    },
    series: [{ type: "heatmap", data: cells, label: { show: cells.length <= 220, fontSize: px(10), formatter: ({ value }) => (value[2] ? short(value[2]) : "") }, emphasis: { itemStyle: { borderColor: css("--text"), borderWidth: 1 } } }],
  };
}

const clientOf = ({ sites }, client) => sites[client] ?? `client ${client}`;

function partitionSection() {
  const most = data.look.most_clients;
  const figures = [...new Set(data.runs.map((run) => run.problem))].map((number) => {
    const problem = data.problems[number], counts = problem.counts.slice(0, most), all = problem.counts.length;
    const rows = counts.map((row, client) => `${clientOf(problem, client)}: ${total(row).toLocaleString("en")}`);
    const option = () => grid(rows, problem.classes, counts, (x, y, count) => `${problem.classes[x]} at ${clientOf(problem, y)}: ${count} images`);
    const place = chart(`partition-${number}`, `Images of each class at each client: ${problem.about}`, option, "", `${Math.min(60, Math.max(18, 8 + 1.6 * counts.length))}rem`);
    return el("figure", {}, el("h3", {}, problem.about), place, el("figcaption", {}, `${all} client${all > 1 ? "s" : ""}, ${total(problem.counts.map(total)).toLocaleString("en")} training images, ${problem.test_samples.toLocaleString("en")} test images. Heterogeneity ${problem.heterogeneity.toFixed(2)}: mean distance of a client's class shares from those of all (0: alike, 1: nothing in common).${all > most ? ` The first ${most} of ${all} clients.` : ""}`));
  });
  return section("partition", "Who has what", "Training images of each class at each client, and how many each has in all.", figures);
}

function pictureSection() {
  const seen = new Map();
  for (const run of data.runs) if (run.picture !== null && !seen.has(run.picture)) seen.set(run.picture, run);
  const natural = data.problems.filter((problem) => problem.natural);
  if (!seen.size && !natural.length) return null;
  const figure = (address, kind, of) => el("figure", {}, el("img", { src: address, alt: `${kind}, one row a class` }), el("figcaption", {}, `${kind} (${of}), one row a class`));
  return section("pictures", "What the data look like", "Virtual images are made from noise and a seed; no natural image goes into them.", el("div", { class: "row" },
    [...seen].map(([number, run]) => figure(data.pictures[number], "Virtual images", run.settings["virtual.name"])),
    natural.map((problem) => figure(problem.natural, "Natural training images", problem.about))));
}

const SYMBOLS = ["circle", "triangle", "rect", "diamond", "path://M3,0H7V3H10V7H7V10H3V7H0V3H3Z"], MARKS = ["●", "▲", "■", "◆", "✚"];

/** The server's first. */
function modelsOf(run) {
  const found = new Set(run.features.flatMap((picture) => picture.points.map((point) => point[3])));
  return [...found].sort((a, b) => (a === "server" ? -1 : b === "server" ? 1 : a < b ? -1 : 1));
}

function featureSection() {
  const shown = data.groups.map((_, group) => data.runs.find((run) => run.group === group && run.features.length)).filter((run) => run);
  if (!shown.length) return null;
  const rounds = [...new Set(shown.flatMap((run) => run.features.map((picture) => picture.round)))].sort((a, b) => a - b);
  const refresh = () => shown.forEach((run) => draw(`features-${run.group}`));
  const kinds = [...new Set(shown.flatMap((run) => modelsOf(run).map((model) => (model === "server" ? "server" : "clients"))))];
  const figures = shown.map((run) => {
    const { label } = data.groups[run.group];
    const number = data.runs.indexOf(run), option = () => scatter(data.runs[number], Number(chosen.features ?? rounds.at(-1)));
    return el("figure", {}, el("h3", {}, label), chart(`features-${run.group}`, `t-SNE of features, ${label}`, option, "square"), el("figcaption", {}, key(run)));
  });
  return section("features", "Features", "t-SNE of what the models make of test and virtual images. Where classes of different clients lie together, clients agree.",
    el("div", { class: "controls" }, choice("features", "after round", () => rounds.map((round) => [round, round]), () => rounds.at(-1), refresh),
      el("fieldset", {}, el("legend", {}, "show"), [...kinds, "virtual images"].map((kind) => toggle(`show ${kind}`, kind, refresh)))),
    el("div", { class: "row" }, figures));
}

/** Which colour is which class, and which shape which model. */
function key(run) {
  const { classes } = data.problems[run.problem], count = shades().length;
  const entry = (mark, text, style) => el("li", {}, el("span", { "aria-hidden": "true", style }, mark), ` ${text}`);
  return el("ul", { class: "key" },
    classes.slice(0, count).map((name, i) => entry("⬤", name, `color: var(--shade-${i})`)), classes.length > count ? el("li", {}, "and so on, with the colours anew") : null,
    modelsOf(run).map((model, i) => entry(MARKS[i % MARKS.length], model.replace("client", "client "))), entry("○", "a ring of any shape: a virtual image"));
}

function scatter(run, round) {
  const picture = run.features.find((found) => found.round === round);
  const { classes } = data.problems[run.problem];
  const on = (kind) => chosen[`show ${kind}`] ?? true;
  const series = modelsOf(run).flatMap((model, i) => ["test", "virtual"].filter((kind) => on(model === "server" ? "server" : "clients") && (kind === "test" || on("virtual images"))).map((kind) => ({
    type: "scatter", name: `${model}, ${kind}`, symbol: SYMBOLS[i % SYMBOLS.length], symbolSize: px(kind === "virtual" ? 9 : 6),
    data: (picture?.points ?? []).filter((point) => point[3] === model && point[4] === kind).map(([x, y, label]) => (
      { value: [x, y, label], itemStyle: kind === "virtual" ? { color: "transparent", borderColor: colour(label), borderWidth: px(1.5) } : { color: colour(label), opacity: 0.85 } })),
  })));
  return {
    grid: room(8, 8, 8, 8),
    title: { text: picture ? "" : `round ${round} was not saved`, left: "center", top: "middle", textStyle: { color: css("--soft"), fontSize: px(14), fontWeight: "normal" } },
    tooltip: beside({ formatter: (item) => escaped(`${classes[item.value[2]] ?? `virtual class ${item.value[2]}`}: ${item.seriesName}`) }),
    xAxis: { type: "value", scale: true, show: false }, yAxis: { type: "value", scale: true, show: false }, series,
  };
}

const shareAxis = () => ({ type: "value", max: 100, ...axis("Accuracy, %", { nameGap: px(38) }) });

/** Of the runs whose classes have the same names: mean over seeds. */
function classBars(classes) {
  const own = data.runs.filter((run) => run.per_class && JSON.stringify(data.problems[run.problem].classes) === JSON.stringify(classes));
  const value = (runs, i) => { const found = runs.map((run) => run.per_class[i]).filter((share) => share !== null); return found.length ? Number((100 * mean(found)).toFixed(2)) : null; };
  const groups = [...new Set(own.map((run) => run.group))].sort((a, b) => a - b).filter((group) => !hidden.has(data.groups[group].label));
  return {
    grid: room(52, 12, 12, 72),
    tooltip: beside({ trigger: "axis", formatter: (items) => `<b>${escaped(items[0].axisValue)}</b>${items.map((item) => `<div>${item.marker}${escaped(item.seriesName)}: <b>${short(item.value)} %</b></div>`).join("")}` }),
    xAxis: names(classes, 80, classes.length > 5 ? 40 : 0), yAxis: shareAxis(),
    series: groups.map((group) => ({ type: "bar", name: data.groups[group].label, color: colour(group), barGap: "10%", data: classes.map((_, i) => value(own.filter((run) => run.group === group), i)) })),
  };
}

function confusion(run) {
  const { classes } = data.problems[run.problem], count = classes.length;
  const extra = run.last.confusion[0].length > count;
  const counts = run.last.confusion.map((row) => (extra ? [...row.slice(0, count), total(row.slice(count))] : row));
  const columns = extra ? [...classes, "a virtual class"] : classes;
  return grid(classes, columns, counts, (x, y, found) => `${classes[y]} taken for ${columns[x]}: ${found}`);
}

function clientBars(run) {
  const share = (value) => (value === null ? null : Number((100 * value).toFixed(2)));
  const server = run.columns.accuracy.filter((value) => value !== null).at(-1);
  return {
    grid: room(52, 12, 12, 72),
    tooltip: beside({ formatter: (item) => escaped(`${item.name}: ${short(item.value)} %`) }),
    xAxis: names([...run.last.clients.map((client) => clientOf(data.problems[run.problem], client)), "server"], 80, 30), yAxis: shareAxis(),
    series: [{ type: "bar", data: [...run.last.client_accuracy.map((value) => ({ value: share(value), itemStyle: { color: css("--soft") } })), { value: share(server), itemStyle: { color: colour(run.group) } }] }],
  };
}

function classSection() {
  const used = data.runs.map((run) => run.problem), namesOf = (number) => JSON.stringify(data.problems[number].classes);
  const problems = used.filter((number, i) => used.findIndex((other) => namesOf(other) === namesOf(number)) === i);
  const shown = () => data.problems[problems.find((number) => namesOf(number) === chosen.classes) ?? problems[0]];
  const looked = () => data.runs.filter((run) => run.last);
  const look = () => looked().find((run) => run.name === chosen.looked) ?? looked()[0];
  const detail = looked().length ? [
    el("div", { class: "controls" }, choice("looked", "run", () => looked().map(({ name }) => [name, name]), () => looked()[0].name, () => { draw("confusion"); draw("clients"); })),
    el("div", { class: "row" },
      el("figure", {}, chart("confusion", "Confusion matrix of the server's model", () => confusion(look()), "square"), el("figcaption", {}, "Test images of each class (rows) and what the server's model takes them for (columns), after the last round")),
      el("figure", {}, chart("clients", "Accuracy of the last round's client models", () => clientBars(look()), "square"), el("figcaption", {}, "Test accuracy of each model that a client sent in the last round, and of the server's, which is their average")))] : [];
  return section("classes", "Classes and clients", "Accuracy of the server's model on each class after the last evaluated round, mean over seeds.", legend(),
    problems.length > 1 ? el("div", { class: "controls" }, choice("classes", "data", () => problems.map((number) => [namesOf(number), data.problems[number].data]), () => namesOf(problems[0]), () => draw("per-class"))) : null,
    el("figure", {}, chart("per-class", "Accuracy of each class", () => classBars(shown().classes)), el("figcaption", {}, "Accuracy of each class")), ...detail);
}

function experimentSection() {
  return section("experiments", "The experiments", "Everything that is needed to run them again.", data.runs.map((run, number) => {
    const facts = () => {
      const { columns, rounds, seed, environment: machine } = data.runs[number];
      return { seed, rounds: `${columns.round.at(-1)} of ${rounds}`, processor: machine.processor, GPU: machine.gpu ?? "none", Python: machine.python, ...machine.packages, date: machine.date };
    };
    return el("details", { open: opened.has(run.name), ontoggle: (event) => { event.target.open ? opened.add(run.name) : opened.delete(run.name); } }, el("summary", {}, run.name),
      el("h3", {}, "Command ", copyButton(run.command)), el("pre", { class: "fold" }, run.command),
      el("h3", {}, "experiment.toml ", copyButton(run.toml)), el("pre", {}, run.toml),
      renewed("dl", {}, () => Object.entries(facts()).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))])));
  }));
}
