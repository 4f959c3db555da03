"use strict";

/** Values of a column by round, for every seed of a group. */
function seedsOf(group, column) {
  return data.runs.filter((run) => run.group === group).map((run) => {
    const columns = run.columns, values = column(columns) ?? [];
    return columns.round.map((round, i) => ({ round, value: values[i] ?? null, samples: columns.samples[i], seconds: columns.seconds[i] }))
      .filter((point) => point.value !== null);
  }).filter((points) => points.length);
}

/** Centred running mean over a window of rounds. */
function smoothed(points, window) {
  if (window <= 1) return points;
  const half = Math.floor(window / 2), made = [];
  let start = 0, end = 0, sum = 0;
  for (const point of points) {
    while (end < points.length && points[end].round <= point.round + half) sum += points[end++].value;
    while (points[start].round < point.round - half) sum -= points[start++].value;
    made.push({ ...point, value: sum / (end - start) });
  }
  return made;
}

/** Seeds side by side, in the rounds that all of them have. */
function together(seeds) {
  const by = seeds.map((points) => new Map(points.map((point) => [point.round, point])));
  return seeds[0].filter((point) => by.every((rounds) => rounds.has(point.round))).map((point) => by.map((rounds) => rounds.get(point.round)));
}

function lineOf(number, plain, width) {
  const strokes = dashes(number, plain).map((length) => px(width * length));
  return { type: "line", color: colour(number), lineStyle: { width: px(width), type: strokes.length ? strokes : "solid" } };
}

/** What ECharts draws of one group: every round faintly, smoothed, and from the lowest to the highest seed. */
function seriesOf(group, column, settings) {
  const { label, plain } = data.groups[group];
  const seeds = hidden.has(label) ? [] : seedsOf(group, column);
  if (!seeds.length) return [];
  const scale = settings.percent ? 100 : 1, at = (points) => mean(points.map((point) => point[settings.x]));
  const raw = together(seeds), smooth = together(seeds.map((points) => smoothed(points, settings.window)));
  const line = { ...lineOf(group, plain, 2.5), showSymbol: raw.length < 3, symbolSize: px(5) };
  const made = [{
    ...line, name: label, id: `group-${group}`, z: 4, swatch: [group, plain],
    data: smooth.map((points) => {
      const values = points.map((point) => scale * point.value);
      return [at(points), mean(values), points[0].round, Math.min(...values), Math.max(...values), values.length];
    }),
  }];
  if (settings.raw && settings.window > 1) {
    made.push({ ...line, name: `${label}, every round`, id: `raw-${group}`, silent: true, z: 2, showSymbol: false, lineStyle: { width: px(1), opacity: 0.3 }, data: raw.map((points) => [at(points), scale * mean(points.map((p) => p.value))]), tooltip: { show: false } });
  }
  if (seeds.length > 1) made.push(band(group, smooth, at, scale));
  return made;
}

function band(group, smooth, at, scale) {
  const values = smooth.map((points) => points.map((point) => scale * point.value)), places = smooth.map(at);
  return {
    type: "custom", id: `band-${group}`, name: `${data.groups[group].label}, all seeds`, silent: true, z: 1, clip: true, tooltip: { show: false },
    renderItem: (_, api) => {
      const upper = places.map((place, i) => api.coord([place, Math.max(...values[i])]));
      const lower = places.map((place, i) => api.coord([place, Math.min(...values[i])]));
      return { type: "polygon", shape: { points: [...upper, ...lower.reverse()] }, style: { fill: colour(group), opacity: 0.16 } };
    },
    data: places.length ? [[places[0], values[0][0]]] : [],
    encode: { x: 0, y: 1 },
  };
}

const AXES = {
  round: { name: "Communication round", text: (value) => value.toLocaleString("en"), title: (value) => `Round ${value}` },
  samples: { name: "Images trained on, natural and virtual", text: (value) => short(value, 6), title: (value) => `${short(value)} images` },
  seconds: { name: "Wall time, seconds", text: (value) => short(value, 6), title: (value) => `${short(value)} seconds` },
};

/** Curves on their axes. A series that has a swatch is one to read values from. */
function plane(title, series, { x, percent }) {
  const along = AXES[x], unit = percent ? " %" : "";
  return {
    grid: room(60, 18, 12, 46),
    xAxis: { type: "value", min: 0, max: "dataMax", minInterval: x === "round" ? 1 : 0, ...axis(along.name, { axisLabel: { formatter: along.text } }) },
    yAxis: { type: "value", scale: true, ...(percent ? percentages : {}), ...axis(title, { nameGap: px(44), axisLabel: { formatter: (value) => short(value, 6) } }) },
    tooltip: beside({ trigger: "axis", formatter: ([{ axisValue }]) => values(axisValue, series.filter((own) => own.swatch), along, unit) }),
    series,
  };
}

function curves(title, column, settings) {
  return plane(title, data.groups.flatMap((_, group) => seriesOf(group, column, settings)), settings);
}

/** What each curve is nearest to a place: runs take their rounds after different images and times. */
function values(place, series, along, unit) {
  const away = (point) => Math.abs(point[0] - place);
  return el("div", {}, el("b", {}, along.title(place)), series.map(({ name, swatch: look, data: points }) => {
    const [at, value, round, low, high, seeds] = points.reduce((best, point) => (away(point) < away(best) ? point : best));
    const when = along === AXES.round && at === place ? "" : ` in round ${round}`;
    return el("div", {}, swatch(...look), ` ${name}: `, el("b", {}, `${short(value)}${unit}`), seeds > 1 ? ` (${short(low)} to ${short(high)})` : "", when);
  }));
}

function accuracySection() {
  const settings = () => ({ x: chosen.against ?? "round", window: Number(chosen.window ?? data.windows.accuracy), raw: chosen.every ?? true, percent: true });
  const refresh = () => draw("accuracy");
  const windows = () => {
    const rounds = Math.max(...data.runs.map((run) => run.columns.round.length));
    const fitting = [...new Set([1, 3, 5, 11, 25, 51, data.windows.accuracy])].filter((window) => window <= Math.max(3, rounds / 2));
    return fitting.sort((a, b) => a - b).map((window) => [window, window === 1 ? "no rounds" : `${window} rounds`]);
  };
  return section("accuracy", "Accuracy", "Of the server's model on the test set. Bold: running mean over rounds; faint: every round; band: from the lowest to the highest seed.",
    legend(),
    el("div", { class: "controls" },
      radios("against", "against", { round: "rounds", samples: "images", seconds: "wall time" }, "round", refresh),
      choice("window", "mean over", windows, () => data.windows.accuracy, refresh),
      toggle("every", "every round", refresh)),
    chart("accuracy", "Test accuracy, one curve for each method", () => curves("Test accuracy, %", (c) => c.accuracy, settings())));
}

/** What a small figure may show: a text, a title, a column, and whether that is a share. */
const CLIENTS = [
  ["distance from their average", "Client drift", (c) => c.drift],
  ["learning rate", "Learning rate", (c) => c.learning_rate],
];
const ACCURACIES = [
  ["on virtual data, while training", "Accuracy, %", (c) => c.virtual_accuracy, true],
  ["on the clients' own data, while training", "Accuracy, %", (c) => c.train_accuracy, true],
  ["of the server's model on the validation set", "Accuracy, %", (c) => c.validation_accuracy, true],
  ["of the server's model on the test set, natural outputs alone", "Accuracy, %", (c) => c.natural_accuracy, true],
];

/** A small figure of one of these columns, to be chosen from those that have values; nothing where none has. */
function chosenCurves(name, label, all, window) {
  const columns = () => all.filter(([, , column]) => data.runs.some((run) => column(run.columns)?.some((value) => value !== null)));
  const first = () => columns()[0][0], options = () => columns().map(([text]) => [text, text]);
  const option = () => {
    const [, title, column, percent] = columns().find(([text]) => text === (chosen[name] ?? first())) ?? columns()[0];
    return curves(title, column, { x: "round", window: window(), raw: true, percent });
  };
  return columns().length ? el("figure", {}, chart(name, label, option, "small"), el("figcaption", {}, `${label}: `, choice(name, label, options, first, () => draw(name), { "aria-label": label }))) : null;
}

function trainingSection() {
  const terms = [...new Set(data.runs.flatMap((run) => Object.keys(run.columns.loss)))].map((term) => [term, "Loss", (c) => c.loss[term]]);
  const figure = (name, label, all) => chosenCurves(name, label, all, () => data.windows.training);
  return section("training", "Training", "How far clients' models drift apart in a round, what they minimise, and how well they know the data.", legend(), el("div", { class: "row" },
    figure("drift", "Clients' models, mean", CLIENTS),
    figure("loss", "Loss while training, mean over the clients' steps", terms),
    figure("accuracies", "Accuracy", ACCURACIES)));
}

const MARGINS = [
  ["of natural test images", "Margin", (c) => c.theory.margin_natural],
  ["of virtual images, held out", "Margin", (c) => c.theory.margin_virtual],
  ["of virtual images, trained on", "Margin", (c) => c.theory.margin_virtual_train],
  ["of natural images at least, by the theorem", "Lower bound", (c) => c.theory.lower_bound],
];
const DISTANCES = [
  ["of features of length 1", "Distance", (c) => c.theory.normalised_distance],
  ["the same of halves of one kind", "Distance", (c) => c.theory.normalised_floor],
  ["of features as they are", "Distance", (c) => c.theory.distance],
  ["the same of halves of one kind, as they are", "Distance", (c) => c.theory.distance_floor],
];

const MERGED = [
  ["natural and virtual class merged", "Accuracy, %", (c) => c.theory.merged_accuracy?.map((value) => value === null ? null : 100 * value)],
  ["as it is", "Accuracy, %", (c) => c.theory.accuracy?.map((value) => value === null ? null : 100 * value)],
];

/** What `vhl theory` measured, where it was called. */
function theorySection() {
  const margins = chosenCurves("margins", "Margin of the server's classifier", MARGINS, () => 1);
  if (!margins) return null;
  return section("theory", "Theory", "The paper's theorem: a model whose natural features lie near the virtual ones of their class, and which separates those well, separates natural classes.", legend(),
    el("div", { class: "row" }, margins,
      chosenCurves("distances", "Wasserstein distance of natural and virtual features", DISTANCES, () => 1),
      chosenCurves("merged", "Test accuracy", MERGED, () => 1)));
}
