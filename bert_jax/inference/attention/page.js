// The page: its state, its controls, and what is redrawn when they change.

const main = document.querySelector("main");
const data = JSON.parse(document.querySelector("script[type='application/json']").textContent);
const $ = (selector) => main.querySelector(selector);
const controls = Object.fromEntries([...main.querySelectorAll("[name]")].map((control) => [control.name, control]));
const PAIRS = ["all", "ab", "ba", "aa", "bb"];
const length = data.tokens.length;
const fine = data.weights.levels > 255;
const shownWeight = (weight) => weight.toFixed(fine ? 4 : 3);
const thumbs = new Map(); // "layer,head" -> button

const state = {
  layer: 0, head: Math.max(0, data.hasHead[0].indexOf(1)), average: false, special: false, normalise: false, pair: "all",
  kept: null, // {side: "from" or "to", token} or {side: "cell", token, other}, by a click
  pointed: null, // the same, by the pointer or the keyboard
};
let weights, map, lists = "", heat = { margin: 0, cell: 1 }, colours = palette(), drawnThumb = 0;

const headsOf = (layer) => data.hasHead[layer].flatMap((there, head) => there ? [layer * data.heads + head] : []);
const selection = () => state.average ? headsOf(state.layer)
  : data.hasHead[state.layer][state.head] ? [state.layer * data.heads + state.head] : [];
const filtered = () => state.special || state.pair !== "all";

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// A token's text in an element of its own, so that right-to-left text does not reorder its surroundings.
const quoted = (i) => element("bdi", { textContent: visible(data.tokens[i]) });
// Control characters are shown as their code points, because they would move or hide other characters. Joiners are not,
// because emoji and Persian need them.
const CONTROLS = /[\u0000-\u001f\u007f-\u009f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const visible = (token) => token.replace(CONTROLS, (c) => c === "\n" ? "↵" : c === "\t" ? "⇥"
  : `‹${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}›`) || "∅";

// The state, and its copy in the page's address

function readHash() {
  const said = new URLSearchParams(location.hash.slice(1));
  const number = (name, below) => {
    const value = /^\d+$/.test(said.get(name) ?? "") ? Number(said.get(name)) : -1;
    return value >= 0 && value < below ? value : null;
  };
  state.layer = number("layer", data.layers) ?? state.layer;
  state.head = number("head", data.heads) ?? state.head;
  if (!data.hasHead[state.layer][state.head]) state.head = Math.max(0, data.hasHead[state.layer].indexOf(1));
  if (said.has("average")) state.average = said.get("average") === "1";
  if (said.has("special")) state.special = said.get("special") === "hide";
  if (said.has("normalise")) state.normalise = said.get("normalise") === "1";
  if (PAIRS.includes(said.get("pair")) && data.texts.length === 2) state.pair = said.get("pair");
  const [token, other] = [number("token", length), number("other", length)];
  if (token !== null) {
    state.kept = other === null ? { side: said.get("side") === "to" ? "to" : "from", token } : { side: "cell", token, other };
  }
}

function writeHash() {
  const said = { layer: state.layer, head: state.head };
  if (state.average) said.average = 1;
  if (state.special) said.special = "hide";
  if (state.normalise) said.normalise = 1;
  if (state.pair !== "all") said.pair = state.pair;
  if (state.kept) Object.assign(said, state.kept);
  try {
    history.replaceState(null, "", `#${new URLSearchParams(said)}`);
  } catch {
    // A frame in a notebook has no address.
  }
}

function change(changes) {
  Object.assign(state, changes);
  writeHash();
  render("special" in changes || "normalise" in changes || "pair" in changes);
}

// Selects the next head that was not pruned: among all heads, or among those in the same column. This leaves the mean.
function walk(layers, heads) {
  const here = state.layer * data.heads + state.head;
  const line = data.hasHead.flatMap((_, layer) => headsOf(layer))
    .filter((place) => heads || place % data.heads === state.head);
  const next = layers + heads > 0 ? line.find((place) => place > here) ?? line[0]
    : line.findLast((place) => place < here) ?? line.at(-1);
  if (next === undefined) return;
  change({ layer: Math.floor(next / data.heads), head: next % data.heads, average: state.average && !heads });
}

// The overview

function makeOverview() {
  const grid = $(".grid");
  grid.style.gridTemplateColumns = `22px repeat(${data.heads}, minmax(0, 1fr))`;
  const label = (textContent) => element("span", { className: "label", textContent, ariaHidden: "true" });
  grid.append(label(""), ...[...Array(data.heads).keys()].map(label));
  data.hasHead.forEach((row, layer) => {
    grid.append(label(layer));
    row.forEach((there, head) => {
      const name = `Layer ${layer}, head ${head}${there ? "" : ", pruned"}`;
      const button = element("button", { type: "button", title: name, disabled: !there }, element("canvas"));
      button.setAttribute("aria-label", name);
      button.addEventListener("click", () => change({ layer, head, average: false }));
      button.addEventListener("keydown", (event) => {
        const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
        if (!step) return;
        event.preventDefault();
        event.stopPropagation();
        walk(...step);
        thumbs.get(`${state.layer},${state.head}`).focus();
      });
      thumbs.set(`${layer},${head}`, button);
      grid.append(button);
    });
  });
}

// The device pixels of a head in the overview; a picture with more of them would lose some rows and columns.
const thumbPixels = () => Math.max(1, Math.floor($(".grid canvas").getBoundingClientRect().width * devicePixelRatio));

function drawOverview() {
  drawnThumb = thumbPixels();
  const tokens = shownTokens(data, state);
  thumbs.forEach((button, name) => {
    const [layer, head] = name.split(",").map(Number);
    if (button.disabled) return;
    const found = mapOf(weights, length, [layer * data.heads + head], tokens, filtered() && state.normalise);
    paint(button.firstChild, found, colours, drawnThumb);
  });
}

// One head

function makeTokens(list, side, tokens) {
  list.replaceChildren(...tokens.map((i) => {
    const option = element("div", { className: "token", role: "option", tabIndex: -1 });
    option.append(quoted(i), element("span", { className: "weight" }));
    option.title = `${visible(data.tokens[i])} (token ${i})`;
    option.dataset.token = i;
    option.classList.toggle("special", Boolean(data.special[i]));
    option.style.setProperty("--c", data.segments[i] ? "var(--b)" : "var(--a)");
    const point = () => { state.pointed = { side, token: i }; renderTokens(); };
    const leave = () => { state.pointed = null; renderTokens(); };
    option.addEventListener("pointerenter", point);
    option.addEventListener("pointerleave", leave);
    option.addEventListener("focus", () => {
      for (const other of list.children) other.tabIndex = other === option ? 0 : -1;
      point();
    });
    option.addEventListener("blur", leave);
    option.addEventListener("click", () => keep({ side, token: i }));
    return option;
  }));
  if (list.firstChild) list.firstChild.tabIndex = 0;
}

const isKept = (side, token) => state.kept !== null
  && (state.kept.side === "cell" ? token === (side === "from" ? state.kept.token : state.kept.other)
    : state.kept.side === side && state.kept.token === token);

function keep(place) {
  const same = JSON.stringify(state.kept) === JSON.stringify(place);
  state.kept = same ? null : place;
  if (same) state.pointed = null;
  writeHash();
  renderTokens();
}

function tokenKey(event) {
  const here = event.target.closest(".token");
  if (!here) return;
  const others = [...here.parentNode.children];
  const goTo = {
    ArrowUp: here.previousElementSibling, ArrowDown: here.nextElementSibling, Home: others[0], End: others.at(-1),
  }[event.key];
  if (goTo) goTo.focus();
  else if (event.key === "Enter" || event.key === " ") here.click();
  if (["ArrowUp", "ArrowDown", "Home", "End", "Enter", " "].includes(event.key)) event.preventDefault();
}

function render(filtersChanged) {
  const tokens = shownTokens(data, state);
  map = mapOf(weights, length, selection(), tokens, filtered() && state.normalise);
  for (const name of ["layer", "head", "pair"]) controls[name].value = state[name];
  for (const name of ["average", "special", "normalise"]) controls[name].checked = state[name];
  [...controls.head.options].forEach((option, head) => { option.disabled = !data.hasHead[state.layer][head]; });
  controls.head.disabled = state.average;
  controls.normalise.disabled = !filtered();
  controls.normalise.parentNode.classList.toggle("off", !filtered());
  const chosen = thumbs.get(`${state.layer},${state.head}`);
  const reached = chosen.disabled ? [...thumbs.values()].find((button) => !button.disabled) : chosen;
  thumbs.forEach((button, name) => {
    const [layer, head] = name.split(",").map(Number);
    const here = layer === state.layer && (head === state.head || state.average) && !button.disabled;
    button.setAttribute("aria-pressed", String(here));
    button.tabIndex = button === reached ? 0 : -1;
  });
  $(".name").textContent = `Layer ${state.layer}, ${state.average ? "mean of its heads" : `head ${state.head}`}`;
  if (filtersChanged) drawOverview();
  const asked = JSON.stringify([tokens.rows, tokens.columns]);
  if (asked !== lists) {
    lists = asked;
    const most = Math.max(tokens.rows.length, tokens.columns.length);
    const row = most > 200 ? 15 : most > 60 ? 18 : 22;
    $(".lines").style.setProperty("--row", `${row}px`);
    $(".lines").style.setProperty("--size", `${Math.min(13, row - 4)}px`);
    state.pointed = null;
    makeTokens($(".from"), "from", tokens.rows);
    makeTokens($(".to"), "to", tokens.columns);
  }
  renderTokens();
}

// The selected token or cell, if it is visible: {row, column}, indices in the map; -1 is none.
function focused() {
  const { side, token, other } = state.pointed ?? state.kept ?? {};
  const row = side === "from" || side === "cell" ? map.rows.indexOf(token) : -1;
  const column = side === "to" ? map.columns.indexOf(token) : side === "cell" ? map.columns.indexOf(other) : -1;
  return { row, column };
}

function renderTokens() {
  const { row, column } = focused();
  const at = (r, c) => map.weights[r * map.columns.length + c];
  const paintToken = (option, side, weight, chosen) => {
    const [r, g, b] = colours.sides[data.segments[option.dataset.token]];
    option.querySelector(".weight").textContent = weight === null ? "" : shownWeight(weight);
    option.style.backgroundColor = weight === null || chosen ? "" : `rgb(${r} ${g} ${b} / ${(0.55 * weight).toFixed(3)})`;
    option.classList.toggle("weighed", weight !== null);
    option.setAttribute("aria-selected", String(chosen));
    option.classList.toggle("kept", isKept(side, Number(option.dataset.token)));
  };
  [...$(".from").children].forEach((option, r) =>
    paintToken(option, "from", column >= 0 && (row < 0 || row === r) ? at(r, column) : null, r === row));
  [...$(".to").children].forEach((option, c) =>
    paintToken(option, "to", row >= 0 && (column < 0 || column === c) ? at(row, c) : null, c === column));
  tell(row, column, at);
  draw(row, column);
}

function tell(row, column, at) {
  const readout = $(".readout");
  const list = (places, tokens, weightOf) => places
    .map((place) => [weightOf(place), tokens[place]])
    .sort((one, two) => two[0] - one[0])
    .slice(0, 5)
    .flatMap(([weight, token], n) => [
      n ? ", " : "", element("span", { className: "pair" }, quoted(token), ` (${token}) ${shownWeight(weight)}`)]);
  if (row >= 0 && column >= 0) {
    readout.replaceChildren(quoted(map.rows[row]), ` (${map.rows[row]}) attends to `, quoted(map.columns[column]),
      ` (${map.columns[column]}): `, element("b", { textContent: shownWeight(at(row, column)) }));
  } else if (row >= 0) {
    const sum = filtered() ? [`. Shown tokens get ${shownWeight(map.sums[row])} of 1`,
      state.normalise ? ", scaled to 1." : "."] : ["."];
    readout.replaceChildren(quoted(map.rows[row]), ` (${map.rows[row]}) attends most to `,
      ...list([...map.columns.keys()], map.columns, (c) => at(row, c)), ...sum);
  } else if (column >= 0) {
    readout.replaceChildren(quoted(map.columns[column]), ` (${map.columns[column]}) gets most attention from `,
      ...list([...map.rows.keys()], map.rows, (r) => at(r, column)), ".");
  } else if (!map.rows.length || !map.columns.length) {
    readout.textContent = "Nothing to show: every token is hidden.";
  } else if (!selection().length) {
    readout.textContent = "Every head of this layer was pruned.";
  } else {
    const found = habits(weights, length, selection(), data.special);
    readout.textContent = `On average, a token of the text gives ${shownWeight(found.special)} of its attention to special ` +
      `tokens, ${shownWeight(found.previous)} to the token before it, ${shownWeight(found.itself)} to itself, ` +
      `${shownWeight(found.next)} to the next one.`;
  }
}

function draw(row, column) {
  const rowHeight = parseFloat($(".lines").style.getPropertyValue("--row")) || 22;
  drawLines($(".links"), map, rowHeight, (token) => colours.sides[data.segments[token]], { row, column });
  heat = drawHeat($(".map"), map, data.tokens.map(visible), colours, { row, column });
}

function cellUnder(event) {
  const box = $(".map").getBoundingClientRect();
  const place = (offset) => Math.floor((offset - heat.margin) / heat.cell);
  const [column, row] = [place(event.clientX - box.left), place(event.clientY - box.top)];
  if (row < 0 || column < 0 || row >= map.rows.length || column >= map.columns.length) return null;
  return { side: "cell", token: map.rows[row], other: map.columns[column] };
}

function recolour() {
  colours = palette();
  const every = Float32Array.from({ length: 256 }, (_, step) => (step / 255) ** 2);
  paint($(".legend canvas"), { weights: every, rows: [0], columns: [...every.keys()] }, colours);
  render(true);
}

function makeControls() {
  const options = (count) => [...Array(count).keys()].map((i) => element("option", { value: i, textContent: i }));
  controls.layer.append(...options(data.layers));
  controls.head.append(...options(data.heads));
  controls.layer.addEventListener("change", () => {
    const layer = Number(controls.layer.value);
    const head = data.hasHead[layer][state.head] ? state.head : Math.max(0, data.hasHead[layer].indexOf(1));
    change({ layer, head });
  });
  controls.head.addEventListener("change", () => change({ head: Number(controls.head.value) }));
  controls.pair.addEventListener("change", () => change({ pair: controls.pair.value }));
  for (const name of ["average", "special", "normalise"]) {
    controls[name].addEventListener("change", () => change({ [name]: controls[name].checked }));
  }
  for (const list of [$(".from"), $(".to")]) list.addEventListener("keydown", tokenKey);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      state.pointed = null;
      change({ kept: null });
    } else if ((event.key === "ArrowLeft" || event.key === "ArrowRight") && !event.target.closest?.("select")) {
      event.preventDefault();
      walk(0, event.key === "ArrowLeft" ? -1 : 1);
    }
  });
  $(".map").addEventListener("pointermove", (event) => { state.pointed = cellUnder(event); renderTokens(); });
  $(".map").addEventListener("pointerleave", () => { state.pointed = null; renderTokens(); });
  $(".map").addEventListener("click", (event) => {
    const cell = cellUnder(event);
    if (cell) keep(cell);
  });
}

async function start() {
  main.classList.toggle("alone", data.texts.length < 2);
  $(".texts").append(...data.texts.map((text, i) => element("span", {},
    ...(data.texts.length < 2 ? [] : [element("b", { textContent: "AB"[i] })]),
    element("bdi", { textContent: visible(text) }))));
  $(".model").textContent = `Model: ${data.model}. ${data.layers} layers, ${data.heads} heads, ${length} tokens.`;
  $(".precision").textContent = fine
    ? "Weights are stored in 16 bits; the error is less than 0.00001. The page loads nothing and sends nothing."
    : "Weights are stored in 8 bits; the error is at most 0.004 near 1 and 0.0004 below 0.01. The page loads nothing " +
      "and sends nothing.";
  weights = await decoded(data.weights);
  makeControls();
  makeOverview();
  readHash();
  main.hidden = false;
  recolour();
  let width = 0;
  const fit = () => {
    if ($(".one").clientWidth === width) return;
    width = $(".one").clientWidth;
    const bar = getComputedStyle($(".bar")).position === "sticky" ? $(".bar").offsetHeight : 0;
    main.style.setProperty("--bar", `${bar}px`);
    main.style.setProperty("--told", `${$(".head").offsetHeight}px`);
    if (thumbPixels() !== drawnThumb) drawOverview();
    renderTokens();
  };
  // Wait for the next frame: browsers report an error if an observer changes what it observes.
  new ResizeObserver(() => requestAnimationFrame(fit)).observe($(".one"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  addEventListener("hashchange", () => { readHash(); render(true); });
}

start().catch((error) => {
  document.body.prepend(element("p", { role: "alert", textContent: `This page could not be drawn: ${error.message}` }));
});
