// The filters and sort orders of the browser, and their encoding in the page's address.

// The differences of an entry in words, such as "x read as X".
const phrases = (entry) => (entry.words || []).map((words) => words.replace(/^symbol \d+: /, ""));

// Whether tokens contain these words in order, with anything between them; of a longer word, a part of a token will do.
function inOrder(tokens, words) {
  let at = 0;
  return words.every((word) => {
    at = 1 + tokens.findIndex((token, i) => i >= at && (token === word || (word.length > 1 && token.includes(word))));
    return at > 0;
  });
}

// Whether a search finds a row: exactly this difference, a part of the id or of a message, or these tokens in order.
function found(row, query) {
  const entries = [chosen("a"), chosen("b")].map((run) => row.runs[run]).filter(Boolean);
  const said = entries.flatMap(phrases);
  if (query.includes(" read as ")) return said.includes(query);
  const smart = /[A-Z]/.test(query) ? (text) => text : (text) => text.toLowerCase(); // a capital: case-sensitive
  const words = query.match(/\\?[A-Za-z]{2,}|\\.|\S/g);
  const sequences = [row.truth, ...entries].map((entry) => (entry && entry.tokens) || "");
  const texts = [row.id, ...said, ...entries.map((entry) => entry.reason || "")];
  return texts.some((text) => smart(text).includes(query)) || sequences.some((text) => inOrder(smart(text).split(" "), words));
}

const VERDICTS = {
  right: (entry) => entry.exact,
  wrong: (entry) => !entry.exact,
  unconverted: (entry) => entry.status === "unconverted",
  missing: (entry) => entry.status === "missing",
  tokens: (entry) => entry.exact && entry.match === false,
};
const VERSUS = {
  "only-a": (a, b) => a.exact && !b.exact,
  "only-b": (a, b) => !a.exact && b.exact,
  changed: (a, b) => a.exact !== b.exact,
  both: (a, b) => a.exact && b.exact,
  neither: (a, b) => !a.exact && !b.exact,
  differ: (a, b) => a.tokens !== b.tokens,
};

function filters() {
  const value = (id) => $(id).value;
  const [a, b] = [chosen("a"), chosen("b")];
  const tests = [];
  if (value("set")) tests.push((row) => row.set === value("set"));
  if (value("length")) tests.push((row) => row.bucket === value("length"));
  if (value("structure")) tests.push((row) => row.kinds && row.kinds.includes(value("structure")));
  if (value("verdict")) tests.push((row) => row.runs[a] && VERDICTS[value("verdict")](row.runs[a]));
  if (value("errors")) {
    const [least, most] = value("errors").split("-").map(Number);
    tests.push((row) => row.runs[a] && row.runs[a].errors[0] >= least && row.runs[a].errors[0] <= most);
  }
  if (b && value("versus")) {
    tests.push((row) => row.runs[a] && row.runs[b] && VERSUS[value("versus")](row.runs[a], row.runs[b]));
  }
  if ($("played").checked) tests.push((row) => row.attention[a]);
  const query = value("search").trim();
  if (query) tests.push((row) => found(row, query));
  return tests;
}

// Why the list is empty: of most runs, the page has no attention at all.
function nothing() {
  const a = chosen("a");
  if (!$("played").checked || state.rows.some((row) => row.attention[a])) return "No expression passes these filters";
  const having = meta.runs.filter(({ key }) => state.rows.some((row) => row.attention[key])).map(({ name }) => name);
  const others = having.length ? `; there is that of ${having.join(", ")}` : "";
  return `Run A has no attention on this page: its weights are not in its folder, or the notes say why${others}`;
}

const SORTS = {
  set: () => 0,
  short: (x, y) => x.length - y.length,
  long: (x, y) => y.length - x.length,
  errors: (x, y) => errorsOf(y) - errorsOf(x),
};
const errorsOf = (row) => (row.runs[chosen("a")] ? row.runs[chosen("a")].errors[0] : -1);

function reset() {
  for (const id of ["set", "length", "structure", "verdict", "errors", "versus", "search"]) $(id).value = "";
  $("played").checked = false;
  applyFilters();
  writeAddress();
}

// How many of the filters are not at their first choice.
function filtering() {
  const set = CHOICES.filter((id) => !["run-a", "search", "played"].includes(id) && $(id).value !== firstChoice($(id)));
  return set.length + $("played").checked;
}

// The address is #/set/id?filter=value&..., without the filters that are at their first choice.
const CHOICES = ["run-a", "run-b", "versus", "set", "verdict", "errors", "length", "structure", "sort", "search", "played"];
const firstChoice = (element) => (element.options ? element.options[0].value : "");

function writeAddress() {
  const filters = new URLSearchParams();
  for (const id of CHOICES) {
    const value = id === "played" ? ($(id).checked ? "1" : "") : $(id).value;
    if (value !== firstChoice($(id))) filters.set(id, value);
  }
  const row = state.shown[state.at];
  const query = filters.size ? "?" + filters : "";
  history.replaceState(null, "", (row ? `#/${row.set}/${encodeURIComponent(row.id)}` : "#/") + query);
}

// A part of the address as it was written; a malformed one leads nowhere.
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}

function followAddress() {
  const [path, query] = location.hash.slice(1).split("?");
  if (query !== undefined) {
    const filters = new URLSearchParams(query);
    for (const id of CHOICES) {
      $(id).value = filters.get(id) ?? firstChoice($(id));
      if ($(id).selectedIndex === -1) $(id).value = firstChoice($(id)); // for example, a run that no longer exists
    }
    $("played").checked = filters.has("played");
    suggest();
    applyFilters();
  }
  const [, set, id] = path.split("/").map(decoded);
  const row = state.rows.find((candidate) => candidate.set === set && candidate.id === id);
  if (row) {
    if (!state.shown.includes(row)) reset();
    select(state.shown.indexOf(row));
  }
  if (row || query !== undefined) $("expressions").scrollIntoView({ block: "start" });
}
