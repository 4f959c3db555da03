"use strict";

const charts = new Map();
/** Charts are drawn when they come near the window: a long page opens at once. */
const watch = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
  const own = charts.get(target.id.slice("chart-".length));
  own.near = isIntersecting;
  if (own.near && own.stale) paint(own);
}), { rootMargin: "50% 0%" });

/** A place for a figure; `option` makes what ECharts draws, anew whenever something changes. */
function chart(name, label, option, size = "", height = "") {
  if (!charts.has(name)) charts.set(name, begin(name));
  const own = charts.get(name);
  Object.assign(own, { option, stale: true });
  own.place.className = `chart ${size}`;
  own.place.style.height = height;
  own.place.setAttribute("aria-label", `${label}. Arrow keys go from point to point.`);
  own.frame.setAttribute("aria-label", label);
  return own.frame;
}

function begin(name) {
  const own = { instance: null, near: false, zooming: false, part: null, spot: [0, -1] };
  own.place = el("div", {
    id: `chart-${name}`, tabindex: 0, role: "application", "aria-roledescription": "chart",
    onkeydown: (event) => step(own, event), onblur: () => own.instance?.dispatchAction({ type: "hideTip" }),
  });
  const button = (text, title, onclick, more = {}) => el("button", { type: "button", title, onclick, ...more }, text);
  const zoom = button("Zoom", "drag over the part to zoom into", () => {
    own.zooming = !own.zooming;
    zoom.setAttribute("aria-pressed", String(own.zooming));
    aim(own);
  }, { "aria-pressed": "false" });
  own.frame = el("div", { role: "group" }, el("div", { class: "tools" }, zoom,
    button("Whole", "everything again", () => paint(own, true)),
    button("Save", "save as a picture", () => save(own, name))), own.place);
  watch.observe(own.place);
  return own;
}

/** The toolbox's zoom, whose own button lies outside the canvas, where no keyboard gets. */
function aim(own) {
  own.instance?.dispatchAction({ type: "takeGlobalCursor", key: "dataZoomSelect", dataZoomSelectActive: own.zooming });
}

function save(own, name) {
  const address = own.instance.getDataURL({ pixelRatio: 2, backgroundColor: css("--card") });
  el("a", { href: address, download: `${name}.png` }).click();
}

function draw(name) {
  const own = charts.get(name);
  own.stale = true;
  if (own.near) paint(own);
}

const drawAll = () => charts.forEach((_, name) => draw(name));

/** `whole`: forget what was zoomed into, as where the axis means something else. */
function paint(own, whole = false) {
  if (!own.place.isConnected) return;
  if (!own.instance) {
    own.instance = echarts.init(own.place, null, { renderer: "canvas" });
    own.instance.on("datazoom", ({ batch }) => { own.part = batch; });
  }
  const option = { ...base(), ...own.option() };
  if (whole || option.xAxis.name !== own.axis) own.part = null;
  Object.assign(own, { stale: false, axis: option.xAxis.name });
  own.instance.setOption(option, { notMerge: true });
  if (own.part) own.instance.dispatchAction({ type: "dataZoom", batch: own.part });
  if (own.zooming) aim(own);
}

const KEYS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** Arrow keys: along a curve or a row, and to the next curve or row; what is there is said too. */
function step(own, event) {
  if (event.key === "Escape") own.instance?.dispatchAction({ type: "hideTip" });
  if (!KEYS[event.key] || !own.instance) return;
  event.preventDefault();
  const [down, along] = KEYS[event.key];
  const { series, xAxis } = own.instance.getOption();
  const lists = series.map(({ data: points, tooltip, type }, index) => ({ index, type, count: tooltip?.show === false ? 0 : points.length })).filter(({ count }) => count);
  if (!lists.length) return;
  const cells = lists[0].type === "heatmap" ? xAxis[0].data.length : 0;
  const within = (value, count) => Math.min(Math.max(value, 0), count - 1);
  const list = lists[within(cells ? 0 : own.spot[0] + down, lists.length)];
  own.spot = [lists.indexOf(list), within(own.spot[1] + along + cells * down, list.count)];
  own.instance.dispatchAction({ type: "showTip", seriesIndex: list.index, dataIndex: own.spot[1] });
  document.getElementById("spoken").textContent = own.place.lastElementChild.innerText;
}

/** Pixels where a letter is as high as usual; more on a projector. */
const px = (length) => length * parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
const room = (left, right, top, bottom) => ({ left: px(left), right: px(right), top: px(top), bottom: px(bottom) });

function base() {
  const text = css("--text");
  return {
    animation: false,
    backgroundColor: "transparent",
    textStyle: { color: text, fontFamily: getComputedStyle(document.body).fontFamily },
    toolbox: { top: -99, feature: { dataZoom: { filterMode: "none" } } }, // "filter" would leave out what lies beyond the part
    tooltip: beside(),
  };
}

/** What stands beside the mouse. */
function beside(more = {}) {
  return {
    confine: true, backgroundColor: css("--card"), borderColor: css("--line"), textStyle: { color: css("--text"), fontSize: px(13) },
    extraCssText: "max-width: 90vw; white-space: normal; overflow-wrap: anywhere;", ...more,
  };
}

function axis(name, { axisLabel, ...more } = {}) {
  const soft = css("--soft"), line = css("--line");
  return {
    name, nameLocation: "middle", nameGap: px(30), nameTextStyle: { color: soft, fontSize: px(12) },
    axisLabel: { color: soft, fontSize: px(12), hideOverlap: true, ...axisLabel },
    axisLine: { lineStyle: { color: line } }, splitLine: { lineStyle: { color: line, opacity: 0.6 } }, ...more,
  };
}

/** Names, cut where they are long. */
const names = (list, width, rotate = 0) => ({ type: "category", data: list, ...axis("", { axisLabel: { width: px(width), rotate, overflow: "truncate" }, splitLine: { show: false } }) });

/** Never beyond 0 and 100; values that hardly differ have room around them. */
const percentages = {
  min: ({ min, max }) => (max - min < 0.01 ? Math.max(0, Math.floor(min - 5)) : null),
  max: ({ min, max }) => (max > 90 ? 100 : max - min < 0.01 ? Math.ceil(max + 5) : null),
};

new ResizeObserver(() => charts.forEach(({ instance }) => instance?.resize())).observe(document.getElementById("main"));
matchMedia("(min-width: 1800px)").addEventListener("change", drawAll);
addEventListener("beforeprint", () => charts.forEach((own) => { if (own.stale) paint(own); }));
