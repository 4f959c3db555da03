"use strict";

function summarySection() {
  const cards = () => data.groups.map((group) => el("div", { class: "card", style: `border-top-color: var(--shade-${group.look.colour})` },
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

function accuracySection() {
  const panel = () => figureOf("accuracy").panels[0], refresh = () => draw("accuracy");
  const option = () => painted(panel(), { axis: chosen.against, window: chosen.window, every: chosen.every });
  const windows = () => panel().windows.map((window) => [window, window === 1 ? "no rounds" : `${window} rounds`]);
  return section("accuracy", "Accuracy", "Of the server's model on the test set. Bold: running mean over rounds; faint: every round; band: from the lowest to the highest seed.",
    legend(),
    el("div", { class: "controls" },
      radios("against", "against", { round: "rounds", samples: "images", seconds: "wall time" }, "round", refresh),
      choice("window", "mean over", windows, () => panel().window, refresh),
      toggle("every", "every round", refresh)),
    chart("accuracy", "Test accuracy, one curve for each method", option));
}

/** A small figure: one of the panels, to be chosen where there are several; nothing where there is none. */
function chosenPanel(name, label, panels) {
  const texts = () => panels().map(([text]) => [text, text]), first = () => panels()[0][0];
  const option = () => painted((panels().find(([text]) => text === chosen[name]) ?? panels()[0])[1]);
  const pick = () => [`${label}: `, choice(name, label, texts, first, () => draw(name), { "aria-label": label })];
  return panels().length ? el("figure", {}, chart(name, label, option, "small"), el("figcaption", {}, panels().length > 1 ? pick() : first())) : null;
}

/** Panels of these figures, each with what it is called. */
const panelsOf = (...names) => names.map(figureOf).filter((found) => found).flatMap(({ title, panels }) => panels.map((panel) => [panel.title || title, panel]));

function trainingSection() {
  return section("training", "Training", "How far clients' models drift apart in a round, what they minimise, and how well they know the data.", legend(), el("div", { class: "row" },
    chosenPanel("drift", "Clients' models", () => panelsOf("drift")),
    chosenPanel("loss", "Loss while training, mean over the clients' steps", () => panelsOf("loss")),
    chosenPanel("learning-rate", "Learning rate", () => panelsOf("learning-rate")),
    chosenPanel("accuracies", "Accuracy", () => panelsOf("virtual-accuracy", "train-accuracy", "validation-accuracy", "natural-accuracy"))));
}

/** What `vhl theory` measured, where it was called. */
function theorySection() {
  if (!figureOf("theory")) return null;
  const figure = (name, label, y) => chosenPanel(name, label, () => panelsOf("theory").filter(([, panel]) => panel.y === y));
  return section("theory", "Theory", "The paper's theorem: a model whose natural features lie near the virtual ones of their class, and which separates those well, separates natural classes.", legend(), el("div", { class: "row" },
    figure("margins", "Margin of the server's classifier", "margin"),
    figure("distances", "Wasserstein distance of natural and virtual features", "distance"),
    figure("merged", "Test accuracy", "accuracy (%)")));
}

function partitionSection() {
  const figures = figuresOf("partition-").map(({ name, subtitle, panels: [{ title, rows }] }) => {
    const option = () => painted(figureOf(name).panels[0]);
    const place = chart(name, `Images of each class at each client: ${title}`, option, "", `${Math.min(60, Math.max(18, 8 + 1.6 * rows.length))}rem`);
    return el("figure", {}, el("h3", {}, title), place, el("figcaption", {}, subtitle));
  });
  return section("partition", "Who has what", "Training images of each class at each client, and how many each has in all.", figures);
}

function pictureSection() {
  const figures = data.figures.filter(({ panels: [{ kind }] }) => kind === "picture").map(({ title, subtitle, panels: [{ address }] }) => (
    el("figure", {}, el("img", { src: address, alt: `${title}, ${subtitle}` }), el("figcaption", {}, `${title}, ${subtitle}`))));
  return figures.length ? section("pictures", "What the data look like", "Virtual images are made from noise and a seed; no natural image goes into them.", el("div", { class: "row" }, figures)) : null;
}

function featureSection() {
  const saved = () => figuresOf("features-"), latest = () => saved().at(-1).name;
  if (!saved().length) return null;
  const shown = () => figureOf(chosen.features ?? latest()).panels;
  const refresh = () => shown().forEach((_, number) => draw(`features-${number}`));
  const kindOf = (model) => (model === "server" ? "server" : "clients"), isOn = (kind) => chosen[`show ${kind}`] ?? true;
  const on = ({ model, virtual }) => isOn(kindOf(model)) && (!virtual || isOn("virtual images"));
  const kinds = [...new Set(saved().flatMap(({ panels }) => panels.flatMap(({ models }) => models.map(kindOf))))];
  const figures = shown().map(({ title, classes }, number) => {
    const models = [...new Set(saved().flatMap(({ panels }) => panels[number].models))];
    return el("figure", {}, el("h3", {}, title), chart(`features-${number}`, `t-SNE of features, ${title}`, () => painted(shown()[number], { on }), "square"), el("figcaption", {}, key(classes, models)));
  });
  return section("features", "Features", "t-SNE of what the models make of test and virtual images. Where classes of different clients lie together, clients agree.",
    el("div", { class: "controls" }, choice("features", "", () => saved().map(({ name, title }) => [name, title]), latest, refresh, { "aria-label": "round" }),
      el("fieldset", {}, el("legend", {}, "of"), [...kinds, "virtual images"].map((kind) => toggle(`show ${kind}`, kind, refresh)))),
    el("div", { class: "row" }, figures));
}

/** Which colour is which class, and which shape which model. */
function key(classes, models) {
  const count = shades().length;
  const entry = (mark, text, style) => el("li", {}, el("span", { "aria-hidden": "true", style }, mark), ` ${text}`);
  return el("ul", { class: "key" },
    classes.slice(0, count).map((name, i) => entry("⬤", name, `color: var(--shade-${i})`)), classes.length > count ? el("li", {}, "and so on, with the colours anew") : null,
    models.map((model, i) => entry(MARKS[i % MARKS.length], model.replace("client", "client "))), entry("○", "a ring of any shape: a virtual image"));
}

function classSection() {
  const all = () => figuresOf("per-class"), runs = () => figuresOf("run-");
  const shown = () => figureOf(chosen.classes) ?? all()[0], looked = () => figureOf(chosen.looked) ?? runs()[0];
  const accuracies = all().length ? [legend(),
    all().length > 1 ? el("div", { class: "controls" }, choice("classes", "data", () => all().map(({ name, panels: [{ title }] }) => [name, title]), () => all()[0].name, () => draw("per-class"))) : null,
    el("figure", {}, chart("per-class", "Accuracy of each class", () => painted(shown().panels[0])), el("figcaption", {}, "Accuracy of each class"))] : [];
  const detail = (name, label, number) => el("figure", {}, chart(name, label, () => painted(looked().panels[number]), "square"), el("figcaption", {}, looked().panels[number].title));
  const details = runs().length ? [
    el("div", { class: "controls" }, choice("looked", "run", () => runs().map(({ name, title }) => [name, title]), () => runs()[0].name, () => { draw("confusion"); draw("clients"); })),
    el("div", { class: "row" }, detail("confusion", "Confusion matrix of the server's model", 0), detail("clients", "Accuracy of the last round's client models", 1))] : [];
  if (!all().length && !runs().length) return null;
  return section("classes", "Classes and clients", "Accuracy of the server's model on each class after the last evaluated round, mean over seeds.", accuracies, details);
}

function experimentSection() {
  return section("experiments", "The experiments", "Everything that is needed to run them again.", data.runs.map((run, number) => {
    const facts = () => {
      const { done, rounds, seed, environment: machine } = data.runs[number];
      return { seed, rounds: `${done} of ${rounds}`, processor: machine.processor, GPU: machine.gpu ?? "none", Python: machine.python, ...machine.packages, date: machine.date };
    };
    return el("details", { open: opened.has(run.name), ontoggle: (event) => { event.target.open ? opened.add(run.name) : opened.delete(run.name); } }, el("summary", {}, run.name),
      el("h3", {}, "Command ", copyButton(run.command)), el("pre", { class: "fold" }, run.command),
      el("h3", {}, "experiment.toml ", copyButton(run.toml)), el("pre", {}, run.toml),
      renewed("dl", {}, () => Object.entries(facts()).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))])));
  }));
}
