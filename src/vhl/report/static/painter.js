"use strict";

/** What ECharts is told of a panel; `how`: the axis, the window, whether every round is shown, which points. */
const painted = (panel, how = {}) => ({ curves, bars, heat, points })[panel.kind](panel, how);

const figureOf = (name) => data.figures.find((figure) => figure.name === name);
/** Those whose names begin so. */
const figuresOf = (start) => data.figures.filter(({ name }) => name.startsWith(start));

function lineOf(look, width) {
  const strokes = look.strokes.map((length) => px(width * length));
  return { type: "line", color: colour(look), lineStyle: { width: px(width), type: strokes.length ? strokes : "solid" } };
}

/** What a place on an axis is called. */
const PLACES = {
  round: (value) => `Round ${value}`,
  samples: (value) => `${short(value)} images`,
  seconds: (value) => `${short(value)} seconds`,
};

/** Lines on their axes. One that has a swatch is one to read values from. */
function curves({ y, axes, series, percent, ...usual }, how) {
  const x = how.axis ?? Object.keys(axes)[0], window = how.window ?? usual.window, every = window > 1 && (how.every ?? true);
  const drawn = series.filter(({ label }) => !hidden.has(label)).flatMap((own) => linesOf(own, x, window, every));
  return {
    grid: room(60, 18, 12, 46),
    xAxis: { type: "value", min: 0, max: "dataMax", minInterval: x === "round" ? 1 : 0, ...axis(axes[x], { axisLabel: { formatter: (value) => (x === "round" ? value.toLocaleString("en") : short(value, 6)) } }) },
    yAxis: { type: "value", scale: true, ...(percent ? percentages : {}), ...axis(y, { nameGap: px(44), axisLabel: { formatter: (value) => short(value, 6) } }) },
    tooltip: beside({ trigger: "axis", formatter: ([{ axisValue }]) => values(axisValue, drawn.filter((own) => own.look), x, percent ? " %" : "") }),
    series: drawn,
  };
}

/** Bold the mean, faint every round, and a band from the lowest to the highest seed. */
function linesOf({ label, look, places, bands, marked }, x, window, every) {
  const at = places[x], { mean, low, high } = bands[window];
  const line = { ...lineOf(look, 2.5), showSymbol: marked, symbolSize: px(5) };
  const made = [{ ...line, name: label, z: 4, look, data: at.map((place, i) => [place, mean[i], places.round[i], low?.[i], high?.[i]]) }];
  if (every) made.push({ ...line, name: `${label}, every round`, silent: true, z: 2, showSymbol: false, lineStyle: { width: px(1), opacity: 0.3 }, data: at.map((place, i) => [place, bands[1].mean[i]]), tooltip: { show: false } });
  if (low) made.push(band(label, look, at, low, high));
  return made;
}

/** One shape, drawn with its first point; the axis knows of all. */
function band(label, look, at, low, high) {
  return {
    type: "custom", name: `${label}, all seeds`, silent: true, z: 1, clip: true, tooltip: { show: false },
    data: at.map((place, i) => [place, low[i], high[i]]), encode: { x: 0, y: [1, 2] },
    renderItem: ({ dataIndex }, api) => {
      const edge = (values) => at.map((place, i) => api.coord([place, values[i]]));
      return dataIndex ? null : { type: "polygon", shape: { points: [...edge(high), ...edge(low).reverse()] }, style: { fill: colour(look), opacity: 0.16 } };
    },
  };
}

/** What each curve is nearest to a place: runs take their rounds after different images and times. */
function values(place, lines, x, unit) {
  const away = (point) => Math.abs(point[0] - place);
  return el("div", {}, el("b", {}, PLACES[x](place)), lines.map(({ name, look, data: found }) => {
    const [at, value, round, low, high] = found.reduce((best, point) => (away(point) < away(best) ? point : best));
    const when = x === "round" && at === place ? "" : ` in round ${round}`;
    return el("div", {}, swatch(look), ` ${name}: `, el("b", {}, `${short(value)}${unit}`), low === undefined ? "" : ` (${short(low)} to ${short(high)})`, when);
  }));
}

function bars({ names: list, bars: all, y }) {
  const shown = all.filter(({ label }) => !hidden.has(label)), hundredths = (value) => (value === null ? null : Number(value.toFixed(2)));
  return {
    grid: room(52, 12, 12, 72),
    tooltip: beside({ trigger: "axis", formatter: (items) => el("div", {}, el("b", {}, items[0].axisValue), items.map((item) => el("div", {}, el("span", { style: `color: ${item.color}` }, "■"), ` ${item.seriesName}: `, el("b", {}, `${short(item.value)} %`)))) }),
    xAxis: names(list, 80, list.length > 5 ? 40 : 0), yAxis: { type: "value", max: 100, ...axis(y, { nameGap: px(38) }) },
    series: shown.map(({ label, look, values: heights, grey }) => ({
      type: "bar", name: label, color: colour(look), barGap: "10%",
      data: heights.map((height, i) => ({ value: hundredths(height), itemStyle: i < grey ? { color: css("--soft") } : {} })),
    })),
  };
}

/** Counts as shades: a table of them with names. */
function heat({ rows, columns, counts, of }) {
  const cells = counts.flatMap((row, y) => row.map((value, x) => [x, y, value]));
  const most = cells.reduce((found, cell) => Math.max(found, cell[2]), 1);
  const label = ([x, y, count]) => { const found = { row: rows[y], column: columns[x], count }; return of.replace(/\{(\w+)\}/g, (_, name) => found[name]); };
  return {
    grid: room(104, 8, 8, 92),
    tooltip: beside({ formatter: ({ value }) => escaped(label(value)) }),
    xAxis: names(columns, 90, columns.length > 6 ? 40 : 0),
    yAxis: { ...names(rows, 92), inverse: true },
    visualMap: {
      min: 0, max: most, text: [most.toLocaleString("en"), "0"], orient: "horizontal", left: "center", bottom: 0, itemHeight: px(120), itemWidth: px(12), textStyle: { color: css("--soft"), fontSize: px(12) },
      inRange: { color: isDark() ? ["#1f2833", "#2b6d99", "#7cc4f2", "#f3fbff"] : ["#f4f8fb", "#9cc9e6", "#2f86bd", "#08385c"] },
    },
    series: [{ type: "heatmap", data: cells, label: { show: cells.length <= 220, fontSize: px(10), formatter: ({ value }) => (value[2] ? short(value[2]) : "") }, emphasis: { itemStyle: { borderColor: css("--text"), borderWidth: 1 } } }],
  };
}

const SYMBOLS = ["circle", "triangle", "rect", "diamond", "path://M3,0H7V3H10V7H7V10H3V7H0V3H3Z"], MARKS = ["●", "▲", "■", "◆", "✚"];
const shadeOf = (label) => colour({ colour: label % shades().length });

/** A colour for each class, a shape for each model; `on` says whether a kind of samples is shown. */
function points({ models, clouds, classes, note }, { on }) {
  return {
    grid: room(8, 8, 8, 8),
    title: { text: note, left: "center", top: "middle", textStyle: { color: css("--soft"), fontSize: px(14), fontWeight: "normal" } },
    tooltip: beside({ formatter: ({ value, seriesName }) => escaped(`${classes[value[2]] ?? `virtual class ${value[2]}`}: ${seriesName}`) }),
    xAxis: { type: "value", scale: true, show: false }, yAxis: { type: "value", scale: true, show: false },
    series: clouds.filter(on).map(({ model, virtual, x, y, classes: own }) => ({
      type: "scatter", name: `${model}, ${virtual ? "virtual" : "test"}`, symbol: SYMBOLS[models.indexOf(model) % SYMBOLS.length], symbolSize: px(virtual ? 9 : 6),
      data: own.map((label, i) => ({ value: [x[i], y[i], label], itemStyle: virtual ? { color: "transparent", borderColor: shadeOf(label), borderWidth: px(1.5) } : { color: shadeOf(label), opacity: 0.85 } })),
    })),
  };
}
