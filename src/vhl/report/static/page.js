"use strict";

let data = JSON.parse(document.getElementById("data").textContent);
const PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8c8c8c", "#882255"];
const ON_DARK = ["#4AA8E0", "#F58A4B", "#35C79A", "#E7A3CB", "#F2BC45", "#9AD6F7", "#BDBDBD", "#D87BA2"];
const CLASSES = [...PALETTE, "#44AA99", "#999933"];
const hidden = new Set();
const charts = new Map();

/** An element with attributes and children; strings become text, never markup. */
function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const escaped = (text) => String(text).replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
const percent = (value, digits = 1) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)} %`);
const signed = (value, digits = 1) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
const isDark = () => document.documentElement.dataset.theme === "dark";
const colour = (group) => (isDark() ? ON_DARK : PALETTE)[group % PALETTE.length];

/** Three digits and a prefix: 1.23 M. */
function short(value) {
  if (value === null || value === undefined) return "–";
  for (const prefix of ["", " k", " M", " G"]) {
    if (Math.abs(value) < 999.5) return `${Number(value.toPrecision(3))}${prefix}`;
    value /= 1000;
  }
  return `${Number(value.toPrecision(3))} T`;
}

function spread(found, digits = 1) {
  if (!found) return "–";
  const mean = (100 * found.mean).toFixed(digits);
  return found.count > 1 ? `${mean} ± ${(100 * found.std).toFixed(digits)}` : mean;
}

/** A titled part of the page, with an entry in the contents. */
function section(id, title, hint, ...children) {
  const old = document.getElementById(id);
  const made = el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), hint ? el("p", { class: "hint" }, hint) : null, ...children);
  if (old) old.replaceWith(made);
  else {
    document.getElementById("contents").append(el("a", { href: `#${id}` }, title));
    document.getElementById("main").append(made);
  }
}

/** A place for a figure; `option` makes what ECharts draws, anew whenever something changes. */
function chart(name, label, option, size = "") {
  const place = el("div", { class: `chart ${size}`, id: `chart-${name}`, role: "img", "aria-label": label });
  charts.set(name, { place, option, instance: null });
  return place;
}

function draw(name) {
  const own = charts.get(name);
  if (!own || !own.place.isConnected) return;
  own.instance ??= echarts.init(own.place, null, { renderer: "canvas" });
  own.instance.setOption({ ...base(), ...own.option() }, { notMerge: true });
}

const drawAll = () => charts.forEach((_, name) => draw(name));

function base() {
  const text = css("--text"), soft = css("--soft");
  return {
    animation: false,
    backgroundColor: "transparent",
    textStyle: { color: text, fontFamily: getComputedStyle(document.body).fontFamily },
    toolbox: {
      right: 4, top: 0, itemSize: 14, iconStyle: { borderColor: soft },
      feature: { dataZoom: { title: { zoom: "zoom into a part", back: "back" } }, restore: { title: "whole" }, saveAsImage: { title: "save as a picture", pixelRatio: 2, backgroundColor: css("--card") } },
    },
    tooltip: { confine: true, backgroundColor: css("--card"), borderColor: css("--line"), textStyle: { color: text, fontSize: 13 }, extraCssText: "max-width: 90vw; white-space: normal; overflow-wrap: anywhere;" },
  };
}

function axis(name, more = {}) {
  const soft = css("--soft");
  return {
    name, nameLocation: "middle", nameGap: 30, nameTextStyle: { color: soft }, axisLabel: { color: soft, hideOverlap: true },
    axisLine: { lineStyle: { color: css("--line") } }, splitLine: { lineStyle: { color: css("--line"), opacity: 0.6 } }, ...more,
  };
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
  document.querySelectorAll("[data-colour]").forEach((element) => { element.style.borderTopColor = colour(Number(element.dataset.colour)); });
  drawAll();
}

function beginTheme() {
  let stored = null;
  try { stored = localStorage.getItem("vhl-theme"); } catch { /* as above */ }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const button = document.getElementById("theme");
  button.setAttribute("aria-label", "switch between light and dark");
  button.addEventListener("click", () => {
    setTheme(isDark() ? "light" : "dark");
    try { localStorage.setItem("vhl-theme", document.documentElement.dataset.theme); } catch { /* a page from disk may not store anything */ }
  });
  setTheme(stored ?? (dark ? "dark" : "light"));
}

/** Buttons that hide and show a group in every figure. */
function legend() {
  return el("div", { class: "legend", role: "group", "aria-label": "show and hide" }, data.groups.map((group, number) =>
    el("button", {
      type: "button", "aria-pressed": String(!hidden.has(number)), "data-group": number,
      onclick: () => {
        hidden.has(number) ? hidden.delete(number) : hidden.add(number);
        document.querySelectorAll(`.legend [data-group="${number}"]`).forEach((b) => b.setAttribute("aria-pressed", String(!hidden.has(number))));
        drawAll();
      },
    }, el("span", { class: `swatch${group.plain ? " plain" : ""}`, "data-colour": number, style: `border-top-color:${colour(number)}` }), group.label)));
}

function choice(label, options, chosen, onchange) {
  const select = el("select", { onchange: () => onchange(Number(select.value)) },
    options.map((text, number) => el("option", { value: number, selected: number === chosen }, text)));
  if (!label) select.setAttribute("aria-label", "which");
  return el("label", {}, label, select);
}

function radios(label, options, chosen, onchange) {
  const name = `choice-${label.replace(/\W+/g, "-")}`;
  return el("fieldset", {}, el("legend", {}, label), Object.entries(options).map(([value, text]) =>
    el("label", {}, el("input", { type: "radio", name, value, checked: value === chosen, onchange: () => onchange(value) }), text)));
}

/** By which column each table is sorted: a table that is made anew stays so. */
const orders = {};

/** A table whose columns sort; a column is [heading, value of a row, text of a row]. */
function sortable(columns, rows, attributes = {}) {
  const body = el("tbody");
  const state = orders[attributes.id] ??= { sorted: null, down: true };
  const ordered = () => {
    if (state.sorted === null) return rows();
    const key = (row) => { const v = columns[state.sorted][1](row); return v === null || v === undefined ? -Infinity : v; };
    return [...rows()].sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (state.down ? -1 : 1));
  };
  const fill = () => body.replaceChildren(...ordered().map((row) => el("tr", {}, columns.map(([, value, text]) => {
    const shown = text ? text(row) : value(row);
    return el("td", {}, shown instanceof Node ? shown : String(shown ?? "–"));
  }))));
  const heads = columns.map(([heading, value], number) => {
    const head = el("th", { scope: "col", "aria-sort": state.sorted === number ? (state.down ? "descending" : "ascending") : "none" }, el("button", {
      type: "button",
      onclick: () => {
        state.down = state.sorted === number ? !state.down : true;
        state.sorted = number;
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
        fill();
      },
    }, heading));
    return head;
  });
  fill();
  const table = el("table", attributes, el("thead", {}, el("tr", {}, heads)), body);
  table.refill = fill;
  return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": attributes["aria-label"] ?? "table" }, table);
}

function copyButton(text) {
  const button = el("button", {
    type: "button",
    onclick: async () => {
      try { await navigator.clipboard.writeText(text); } catch {
        const area = el("textarea", {}, text); document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    },
  }, "Copy");
  return button;
}
