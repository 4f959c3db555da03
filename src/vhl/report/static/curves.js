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

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** What ECharts draws of one group: every round faintly, smoothed, and from the lowest to the highest seed. */
function seriesOf(group, column, settings) {
  const seeds = seedsOf(group, column);
  if (!seeds.length || hidden.has(group)) return [];
  const scale = settings.scale ?? 1, at = (points) => mean(points.map((point) => point[settings.x]));
  const raw = together(seeds), smooth = together(seeds.map((points) => smoothed(points, settings.window)));
  const { label, plain } = data.groups[group];
  const line = { type: "line", showSymbol: raw.length < 3, symbolSize: 5, color: colour(group), silent: true, z: 2 };
  const made = [{
    ...line, name: label, id: `group-${group}`, silent: false, z: 4,
    lineStyle: { width: 2.5, type: plain ? [8, 5] : "solid" },
    data: smooth.map((points) => [at(points), scale * mean(points.map((p) => p.value)), points[0].round, scale * Math.min(...points.map((p) => p.value)), scale * Math.max(...points.map((p) => p.value)), points.length]),
  }];
  if (settings.raw && settings.window > 1) {
    made.push({ ...line, name: `${label}, every round`, id: `raw-${group}`, showSymbol: false, lineStyle: { width: 1, opacity: 0.3 }, data: raw.map((points) => [at(points), scale * mean(points.map((p) => p.value))]), tooltip: { show: false } });
  }
  if (seeds.length > 1) made.push(band(group, smooth, settings.x, scale));
  return made;
}

function band(group, smooth, x, scale) {
  const values = smooth.map((points) => points.map((point) => scale * point.value));
  const at = smooth.map((points) => mean(points.map((point) => point[x])));
  return {
    type: "custom", id: `band-${group}`, name: `${data.groups[group].label}, all seeds`, silent: true, z: 1, clip: true, tooltip: { show: false },
    renderItem: (_, api) => {
      const upper = at.map((place, i) => api.coord([place, Math.max(...values[i])]));
      const lower = at.map((place, i) => api.coord([place, Math.min(...values[i])]));
      return { type: "polygon", shape: { points: [...upper, ...lower.reverse()] }, style: { fill: colour(group), opacity: 0.16 } };
    },
    data: at.length ? [[at[0], values[0][0]]] : [],
    encode: { x: 0, y: 1 },
  };
}

const AXES = { round: "Communication round", samples: "Images trained on, natural and virtual", seconds: "Wall time, seconds" };

function curves(title, column, settings) {
  const series = data.groups.flatMap((_, group) => seriesOf(group, column, settings));
  const unit = settings.unit ?? "";
  return {
    grid: { left: 56, right: 18, top: 34, bottom: 46 },
    xAxis: { type: "value", min: 0, max: "dataMax", ...axis(AXES[settings.x], { axisLabel: { color: css("--soft"), formatter: (v) => short(v), hideOverlap: true } }) },
    yAxis: { type: "value", scale: true, ...axis(title, { nameGap: 42 }) },
    dataZoom: [{ type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl" }],
    tooltip: { ...base().tooltip, trigger: "axis", formatter: (items) => tooltip(items, unit) },
    series,
  };
}

function tooltip(items, unit) {
  const shown = items.filter((item) => item.value.length > 2);
  if (!shown.length) return "";
  const lines = shown.map((item) => {
    const [, value, , low, high, seeds] = item.value;
    const range = seeds > 1 ? ` (${short(low)} to ${short(high)})` : "";
    return `<div>${item.marker}${escaped(item.seriesName)}: <b>${short(value)}${unit}</b>${range}</div>`;
  });
  return `<b>Round ${shown[0].value[2]}</b>${lines.join("")}`;
}

function accuracySection() {
  const rounds = Math.max(...data.runs.map((run) => run.columns.round.length));
  const settings = { x: "round", window: rounds >= 20 ? Math.max(3, Math.floor(rounds / 40) * 2 + 1) : 1, raw: true, scale: 100, unit: " %" };
  const refresh = () => draw("accuracy");
  const choices = [...new Set([1, 3, 5, 11, 25, 51, settings.window])].filter((w) => w <= Math.max(3, rounds / 2)).sort((a, b) => a - b);
  section("accuracy", "Accuracy", "Of the server's model on the test set. Bold: running mean over rounds; faint: every round; band: from the lowest to the highest seed. Drag with the zoom tool, or scroll with Ctrl.",
    legend(),
    el("div", { class: "controls" },
      radios("against", { round: "rounds", samples: "images", seconds: "wall time" }, "round", (x) => { settings.x = x; refresh(); }),
      choice("mean over", choices.map((w) => (w === 1 ? "no rounds" : `${w} rounds`)), choices.indexOf(settings.window), (i) => { settings.window = choices[i]; refresh(); }),
      el("label", {}, el("input", { type: "checkbox", checked: true, onchange: (event) => { settings.raw = event.target.checked; refresh(); } }), "every round")),
    chart("accuracy", "Test accuracy against rounds, one curve for each method", () => curves("Test accuracy, %", (c) => c.accuracy, settings)));
}

function trainingSection() {
  const rounds = Math.max(...data.runs.map((run) => run.columns.round.length));
  const settings = { x: "round", window: rounds >= 40 ? Math.max(3, Math.floor(rounds / 40) * 2 + 1) : 1, raw: true };
  const terms = [...new Set(data.runs.flatMap((run) => Object.keys(run.columns.loss)))];
  let term = 0;
  const figure = (name, title, caption, column, more = {}) => el("figure", {}, chart(name, caption, () => curves(title, column, { ...settings, ...more }), "small"), el("figcaption", {}, caption));
  const virtual = data.runs.some((run) => run.columns.virtual_accuracy.some((value) => value !== null));
  section("training", "Training", "How far clients' models drift apart in a round, what they minimise, and how well they know the virtual data.", legend(), el("div", { class: "row" },
    figure("drift", "Client drift", "Mean distance of the clients' models from their average", (c) => c.drift),
    el("figure", {}, chart("loss", "A term of the loss", () => curves("Loss", (c) => c.loss[terms[term]], settings), "small"),
      el("figcaption", {}, "Loss while training, mean over the clients' steps: ", choice("", terms, 0, (i) => { term = i; draw("loss"); }))),
    virtual ? figure("virtual-accuracy", "Accuracy, %", "Training accuracy on the virtual data", (c) => c.virtual_accuracy, { scale: 100, unit: " %" }) : null));
}
