"use strict";

let data = JSON.parse(document.getElementById("data").textContent);
/** Labels of the methods that are not shown. */
const hidden = new Set();
/** What the reader chose, by control: it stays when a part of the page is made anew. */
const chosen = {};
/** Names of the experiments that lie open. */
const opened = new Set();
/** What is to be done when there are new numbers. */
const renewals = [];

const SVG = new Set(["svg", "line"]);

/** An element with attributes and children; strings become text, never markup. */
function el(tag, attributes = {}, ...children) {
  const element = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const escaped = (text) => String(text).replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
const signed = (value, digits = 1) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
/** Share of the rounds that methods are judged by. */
const lastShare = () => `${Number((100 * data.last).toPrecision(3))} %`;
const isDark = () => document.documentElement.dataset.theme === "dark";
const shades = () => (isDark() ? data.colours.dark : data.colours.light);
const colour = (look) => shades()[look.colour];

/** A few digits and a prefix: 1.23 M. */
function short(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  for (const prefix of ["", " k", " M", " G"]) {
    if (Math.abs(value) < 999.5) return `${Number(value.toPrecision(digits))}${prefix}`;
    value /= 1000;
  }
  return `${Number(value.toPrecision(digits))} T`;
}

function spread(found, digits = 1) {
  if (!found) return "–";
  const middle = (100 * found.mean).toFixed(digits);
  return found.count > 1 ? `${middle} ± ${(100 * found.std).toFixed(digits)}` : middle;
}

// --- parts that renew themselves ---------------------------------------------------------------------

/** Do this now and whenever there are new numbers. */
function renewing(update) {
  renewals.push(update);
  update();
}

/** An element that is made anew with the numbers; where they are the same it stays, with what is marked in it. */
function renewed(tag, attributes, make) {
  const place = el(tag, attributes);
  renewing(() => {
    const made = el(tag, attributes, make());
    if (!place.isEqualNode(made)) place.replaceChildren(...made.childNodes);
  });
  return place;
}

/** Change the page; what had the keyboard's attention has it afterwards too. */
function keepingFocus(change) {
  const sign = (element) => [element.closest("section")?.id, element.id, element.name, element.value, element.getAttribute("aria-label") ?? element.textContent].join("\n");
  const held = document.activeElement, own = sign(held);
  change();
  if (held === document.activeElement) return;
  const again = held.isConnected ? held : [...document.querySelectorAll(held.tagName)].find((element) => sign(element) === own);
  again?.focus({ preventScroll: true });
}

/** A titled part of the page. */
function section(id, title, hint, ...children) {
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), hint ? el("p", { class: "hint" }, hint) : null, ...children);
}

/** Links to the sections, in their order. */
function contents() {
  const titles = [...document.querySelectorAll("section > h2")];
  document.getElementById("contents").replaceChildren(...titles.map((title) => el("a", { href: `#${title.parentElement.id}` }, title.textContent)));
}

// --- controls ------------------------------------------------------------------------------------------

/** A piece of a curve as it is drawn. */
function swatch(look) {
  return el("svg", { class: "swatch", "aria-hidden": "true", style: `stroke: var(--shade-${look.colour})` },
    el("line", { x1: 0, x2: "100%", y1: "50%", y2: "50%", "stroke-width": 4, "stroke-dasharray": look.strokes.map((length) => 4 * length).join(" ") }));
}

/** Buttons that hide and show a method in every figure. */
function legend() {
  return el("div", { class: "legend", role: "group", "aria-label": "show and hide" }, data.groups.map(({ label, look }, number) =>
    el("button", {
      type: "button", "aria-pressed": String(!hidden.has(label)), "data-group": number,
      onclick: () => {
        hidden.has(label) ? hidden.delete(label) : hidden.add(label);
        document.querySelectorAll(`.legend [data-group="${number}"]`).forEach((button) => button.setAttribute("aria-pressed", String(!hidden.has(label))));
        drawAll();
      },
    }, swatch(look), label)));
}

/** A list to choose from: `options` gives values and texts, which may become more while runs go on. */
function choice(key, label, options, usual, onchange, attributes = {}) {
  const select = el("select", { id: `choose-${key}`, onchange: () => { chosen[key] = select.value; onchange(); }, ...attributes });
  let shown = "";
  renewing(() => {
    const now = String(chosen[key] ?? usual()), listed = options();
    if (shown === (shown = JSON.stringify([listed, now]))) return;
    select.replaceChildren(...listed.map(([value, text]) => el("option", { value, selected: String(value) === now }, text)));
  });
  return attributes["aria-label"] ? select : el("label", {}, label, select);
}

function radios(key, label, options, usual, onchange) {
  return el("fieldset", {}, el("legend", {}, label), Object.entries(options).map(([value, text]) =>
    el("label", {}, el("input", { type: "radio", name: key, value, checked: value === (chosen[key] ?? usual), onchange: () => { chosen[key] = value; onchange(); } }), text)));
}

/** Something that is on until it is switched off. */
function toggle(key, label, onchange) {
  return el("label", {}, el("input", { type: "checkbox", name: key, checked: chosen[key] ?? true, onchange: (event) => { chosen[key] = event.target.checked; onchange(); } }), label);
}

/** A table whose columns sort; a column is [heading, value of a row, text or element of a row, class]. */
function sortable(columns, rows, keyOf, attributes) {
  const body = el("tbody"), made = new Map();
  const state = chosen[attributes.id] ??= { sorted: null, down: true };
  const ordered = () => {
    if (state.sorted === null) return rows();
    const key = (row) => columns[state.sorted][1](row) ?? -Infinity;
    return [...rows()].sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (state.down ? -1 : 1));
  };
  const lineOf = (row) => {
    if (!made.has(keyOf(row))) made.set(keyOf(row), el("tr", {}, columns.map(([, , , kind]) => el("td", { class: kind }))));
    const line = made.get(keyOf(row));
    columns.forEach(([, value, text], number) => {
      const shown = text ? text(row) : value(row), cell = line.cells[number];
      if (!(shown instanceof Node)) cell.textContent = String(shown ?? "–");
      else if (!cell.hasChildNodes()) cell.append(shown);
    });
    return line;
  };
  const heads = columns.map(([, , , kind], number) => el("th", { scope: "col", class: kind }, el("button", {
    type: "button",
    onclick: () => {
      state.down = state.sorted === number ? !state.down : true;
      state.sorted = number;
      fill();
    },
  })));
  const fill = () => {
    heads.forEach((head, number) => {
      const [heading] = columns[number];
      head.setAttribute("aria-sort", state.sorted !== number ? "none" : state.down ? "descending" : "ascending");
      head.firstChild.textContent = typeof heading === "function" ? heading() : heading;
    });
    const lines = ordered().map(lineOf);
    const same = lines.length === body.children.length && lines.every((line, i) => line === body.children[i]);
    if (!same) keepingFocus(() => body.replaceChildren(...lines));
  };
  renewing(fill);
  const table = el("table", attributes, el("thead", {}, el("tr", {}, heads)), body);
  table.refill = fill;
  return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": attributes["aria-label"] }, table);
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

// --- light and dark ------------------------------------------------------------------------------------

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
  shades().forEach((shade, number) => document.documentElement.style.setProperty(`--shade-${number}`, shade));
  drawAll();
}

function beginTheme() {
  let stored = null;
  try { stored = localStorage.getItem("vhl-theme"); } catch { /* a page from disk may not */ }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const button = document.getElementById("theme");
  button.setAttribute("aria-label", "switch between light and dark");
  button.addEventListener("click", () => {
    setTheme(isDark() ? "light" : "dark");
    try { localStorage.setItem("vhl-theme", document.documentElement.dataset.theme); } catch { /* as above */ }
  });
  setTheme(stored ?? (dark ? "dark" : "light"));
}
