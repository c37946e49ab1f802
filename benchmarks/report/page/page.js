// The error browser. Its data are in the page: meta (JSON) and set-KEY (base64 of gzipped JSON; see browser.py).
// They are inserted as text, never as HTML.

const ROW = 58; // px, height of a list entry
const STATUS = { missing: "no prediction", unconverted: "not LaTeX" };

const $ = (id) => document.getElementById(id);
const meta = JSON.parse($("meta").textContent);
const state = { rows: [], shown: [], at: 0, playing: null };

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function bytes(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

async function unpack(id) {
  const stream = new Blob([bytes($(id).textContent)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

// ---- data -----------------------------------------------------------------------------------------------------

const played = (rows) => rows.some((row) => Object.keys(row.attention).length > 0);
const label = (key) => meta.sets.find((set) => set.key === key).label;
const runName = (key) => meta.runs.find((run) => run.key === key).name;
const chosen = (side) => $("run-" + side).value;

// ---- filtering -------------------------------------------------------------------------------------------------

function applyFilters(keep = state.shown[state.at]) {
  const tests = filters();
  state.shown = state.rows.filter((row) => tests.every((test) => test(row)));
  state.shown.sort(SORTS[$("sort").value]);
  $("versus").disabled = !chosen("b");
  $("more").textContent = filtering() ? `filters (${filtering()})` : "filters"; // those that a phone hides
  $("count").textContent = summary();
  $("spacer").style.height = state.shown.length * ROW + "px";
  $("list").scrollTop = 0;
  select(Math.max(0, state.shown.indexOf(keep)), false);
}

function summary() {
  const [a, b] = [chosen("a"), chosen("b")];
  const known = state.shown.filter((row) => row.runs[a]);
  const right = known.filter((row) => row.runs[a].exact).length;
  const parts = [`${state.shown.length.toLocaleString("en")} of ${state.rows.length.toLocaleString("en")} expressions`];
  if (known.length) parts.push(`${right} right (${((100 * right) / known.length).toFixed(1)} %)`);
  const pairs = b ? known.filter((row) => row.runs[b]) : [];
  if (pairs.length) {
    const count = (name) => pairs.filter((row) => VERSUS[name](row.runs[a], row.runs[b])).length;
    const [onlyA, onlyB] = [count("only-a"), count("only-b")];
    parts.push(`only A right ${onlyA}, only B right ${onlyB}, both ${count("both")}, neither ${count("neither")}`);
    parts.push(`McNemar p ${probability(mcnemar(onlyA, onlyB))}`);
  }
  return parts.join(" · ");
}

const probability = (p) => (p < 0.001 ? "< 0.001" : "= " + p.toFixed(3));

// Two-sided p value of the exact McNemar test.
function mcnemar(onlyA, onlyB) {
  const n = onlyA + onlyB;
  let [sum, term] = [0, -n * Math.LN2];
  for (let k = 0; k <= Math.min(onlyA, onlyB); k++) {
    if (k) term += Math.log((n - k + 1) / k);
    sum += Math.exp(term);
  }
  return Math.min(1, 2 * sum);
}

// Offers the most frequent differences as search terms.
function suggest() {
  const counts = new Map();
  for (const row of state.rows) {
    const entry = row.runs[chosen("a")];
    for (const phrase of entry ? phrases(entry) : []) {
      if (/^\S+ read as \S+$/.test(phrase)) counts.set(phrase, (counts.get(phrase) || 0) + 1);
    }
  }
  const common = [...counts].sort((x, y) => y[1] - x[1]).slice(0, 25);
  $("common").replaceChildren(...common.map(([phrase, n]) => make("option", { value: phrase }, `${n}×`)));
}

// ---- list -----------------------------------------------------------------------------------------------------

function drawList() {
  const list = $("list");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
  const last = Math.min(state.shown.length, first + Math.ceil(list.clientHeight / ROW) + 9);
  const options = [];
  for (let index = first; index < last; index++) options.push(option(index));
  if (state.rows.length && !options.length) options.push(make("p", { class: "empty" }, nothing() + "."));
  $("rows").replaceChildren(...options);
}

function option(index) {
  const row = state.shown[index];
  const sides = [chosen("a"), chosen("b")].filter(Boolean);
  const verdicts = sides.map((run) => badge(row.runs[run]));
  return make(
    "div",
    {
      id: "option-" + index, role: "option", class: "entry", "aria-selected": String(index === state.at),
      "aria-posinset": index + 1, "aria-setsize": state.shown.length,
      style: `top:${index * ROW}px;height:${ROW}px`, onclick: () => (select(index), show("detail")),
    },
    row.image ? make("img", { src: picture(row), alt: "", class: "ink", loading: "lazy" }) : make("span", { class: "snippet" }, snippet(row)),
    make("span", { class: "who" }, make("b", {}, row.id), make("small", {}, `${label(row.set)} · ${row.length} tokens`)),
    make("span", { class: "verdicts" }, ...verdicts),
  );
}

const picture = (row) => "data:image/webp;base64," + row.image;
const snippet = (row) => ((row.truth || row.runs[chosen("a")] || {}).tokens || "").slice(0, 40);

// A sign to see, and words for screen readers.
function badge(entry) {
  const signed = (kind, sign, words) =>
    make("span", { class: "badge " + kind, title: words }, sign, make("span", { class: "hidden" }, " " + words));
  if (!entry) return signed("none", "–", "not scored");
  if (entry.exact) return signed("right", "✓", "right");
  if (entry.status !== "converted") return signed("wrong", "✗ –", "wrong, " + STATUS[entry.status]);
  return signed("wrong", "✗ " + entry.errors[0], entry.errors[0] === 1 ? "error" : "errors");
}

function select(index, remember = true) {
  stop();
  state.at = index;
  const list = $("list");
  const top = index * ROW;
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
  drawList();
  const row = state.shown[index];
  if (row) list.setAttribute("aria-activedescendant", "option-" + index);
  else list.removeAttribute("aria-activedescendant");
  drawDetail(row);
  if (remember) writeAddress();
}

// On a phone, list and expression are below each other: brings one of them into view.
function show(id) {
  if (matchMedia("(max-width: 760px)").matches) $(id).scrollIntoView({ block: "start" });
}

function move(by) {
  if (state.shown.length) select(Math.min(state.shown.length - 1, Math.max(0, state.at + by)));
}

// ---- one expression ---------------------------------------------------------------------------------------------

function drawDetail(row) {
  const detail = $("detail");
  if (!row) {
    detail.replaceChildren(make("p", { class: "empty" }, state.rows.length ? nothing() + ": reset them with the button or the key x." : meta.empty));
    return;
  }
  const facts = [label(row.set), `${row.length} tokens`, ...(row.kinds || [])];
  const sides = [["a", chosen("a")], ["b", chosen("b")]].filter(([, run]) => run);
  const cards = [truthCard(row, sides), ...sides.map(([side, run]) => predictionCard(row, side, run))];
  const chips = facts.map((fact) => make("span", { class: "chip" }, fact));
  const back = make("button", { type: "button", class: "back", onclick: () => show("list") }, "↑ list");
  detail.replaceChildren(make("header", {}, make("h3", {}, row.id), ...chips, back), figure(row), ...cards.filter(Boolean));
  detail.scrollTop = 0;
}

function figure(row) {
  if (!row.image) return make("p", { class: "empty" }, row.prepared ? `The image cannot be read: ${row.prepared}.` : meta.noImages);
  const image = make("img", { src: picture(row), alt: "handwritten expression " + row.id, class: "ink" });
  const stack = make("div", { class: "stack" }, image, make("canvas", { id: "heat", "aria-hidden": true }));
  image.addEventListener("load", () => {
    stack.style.width = image.naturalWidth * Math.min(1.6, 240 / image.naturalHeight) + "px";
  });
  const before = row.before && make("img", { src: "data:image/webp;base64," + row.before, alt: "the picture before", class: "before" });
  const done = row.prepared && make("figcaption", { class: "fine" }, `Before it was read: ${row.prepared}.`);
  return make("figure", {}, ...[before, stack, done].filter(Boolean));
}

// The truth is marked for the first chosen run that is wrong and could be aligned.
function truthCard(row, sides) {
  if (!row.truth) return null;
  const [side, run] = sides.find(([, key]) => row.runs[key] && row.runs[key].truth_marks) || [];
  const title = side && sides.length > 1 ? `Ground truth (marks: what ${side.toUpperCase()} got wrong)` : "Ground truth";
  return card(title, null, row.truth, run && row.runs[run].truth_marks, "truth");
}

function predictionCard(row, side, run) {
  const entry = row.runs[run];
  const title = `${chosen("b") ? side.toUpperCase() + ": " : ""}${runName(run)}`;
  if (!entry) return card(title, make("span", { class: "badge none" }, "not scored on this expression"), null, null, side);
  const element = card(title, verdict(entry), entry, entry.marks, side);
  if (entry.reason) element.append(make("p", { class: "reason" }, `Not drawn: ${entry.reason}.`));
  if (entry.words && entry.words.length) {
    element.append(make("ul", { class: "words" }, ...entry.words.map((words) => make("li", {}, words))));
  }
  if (row.attention[run]) element.append(player(row, entry, row.attention[run], element));
  else if (played(state.rows.filter(({ set }) => set === row.set))) {
    element.append(make("p", { class: "fine" }, "No attention was stored for this expression."));
  }
  return element;
}

function verdict(entry) {
  const [all, symbols, relations] = entry.errors;
  const plural = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
  if (entry.exact) return make("span", { class: "badge right" }, entry.match === false ? "✓ right, with other tokens" : "✓ right");
  const why = STATUS[entry.status] ? STATUS[entry.status] + ": " : "";
  return make("span", { class: "badge wrong" }, `✗ wrong: ${why}${plural(all, "error")} (${plural(symbols, "symbol")}, ${plural(relations, "relation")})`);
}

function card(title, badge, entry, marks, side) {
  const element = make("section", { class: "card", "data-side": side, "aria-label": title });
  element.append(make("header", {}, make("h4", {}, title), badge));
  if (!entry || entry.tokens === undefined) return element;
  if (entry.graph) {
    const drawn = drawTree(entry.graph, marks);
    element.symbols = drawn.elements;
    element.append(make("div", { class: "math", tabindex: 0, role: "group", "aria-label": title + ", drawn" }, drawn.math));
  }
  const tokens = entry.tokens.split(" ").filter(Boolean);
  element.tokens = tokens.map((token, index) => {
    const symbol = entry.symbols ? entry.symbols[index] : -1;
    const mark = marks && symbol >= 0 && marks[symbol] !== "." ? "mark-" + marks[symbol] : "";
    return make("span", { class: mark }, token);
  });
  element.append(make("code", { class: "tokens" }, ...element.tokens.flatMap((token) => [token, " "])));
  return element;
}

// ---- keys -------------------------------------------------------------------------------------

const KEYS = {
  j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1),
  PageDown: () => move(10), PageUp: () => move(-10), Home: () => move(-1e9), End: () => move(1e9),
  ArrowRight: () => stepAttention(1), ArrowLeft: () => stepAttention(-1), p: toggleAttention,
  "/": () => $("search").focus(), "?": () => $("help").showModal(), x: () => reset(),
};
const ONLY_IN_LIST = ["ArrowDown", "ArrowUp", "PageDown", "PageUp", "Home", "End"]; // elsewhere they scroll

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.key === "Escape" && event.target === $("search")) return $("list").focus();
  if (event.target.closest("input, select, textarea, .math")) return;
  if (event.key.startsWith("Arrow") && event.target.closest(".wide")) return; // a table, which they scroll
  if (ONLY_IN_LIST.includes(event.key) && !event.target.closest("#list")) return;
  if (!(event.key in KEYS)) return;
  event.preventDefault();
  if (event.key !== "?") $("expressions").scrollIntoView({ block: "start" });
  KEYS[event.key]();
}

async function start() {
  document.addEventListener("keydown", onKey);
  $("list").addEventListener("scroll", drawList, { passive: true });
  $("filters").addEventListener("input", (event) => {
    if (event.target.id === "run-a") suggest();
    applyFilters();
    writeAddress();
  });
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  $("reset").addEventListener("click", reset);
  $("more").addEventListener("click", () => $("more").setAttribute("aria-expanded", $("filters").classList.toggle("open")));
  $("keys").addEventListener("click", () => $("help").showModal());
  window.addEventListener("hashchange", followAddress);
  window.addEventListener("resize", drawList);
  state.rows = (await Promise.all(meta.sets.map(({ key }) => unpack("set-" + key)))).flat();
  $("structure").disabled = !state.rows.some((row) => row.kinds);
  $("played").disabled = !played(state.rows);
  suggest();
  applyFilters();
  followAddress();
  document.body.dataset.ready = "true";
}

start().catch((error) => {
  $("count").textContent = "The data in this page cannot be read: " + error.message;
  throw error;
});
