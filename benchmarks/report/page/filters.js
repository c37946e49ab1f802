// The filters and sort orders of the browser, and their encoding in the page's address.

// The texts that a search covers, without spaces.
function texts(row) {
  const entries = [chosen("a"), chosen("b")].map((run) => row.runs[run]).filter(Boolean);
  const all = entries.flatMap((entry) => [entry.tokens, entry.reason, ...(entry.words || [])]);
  return [row.id, row.truth && row.truth.tokens, ...all].filter(Boolean).map((text) => text.replaceAll(" ", ""));
}

// Whether a text contains these words in order, with anything between them.
function inOrder(text, words) {
  let at = 0;
  return words.every((word) => {
    const found = text.indexOf(word, at);
    at = found + word.length;
    return found >= 0;
  });
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
  if (value("length")) {
    const bucket = $("length").selectedIndex - 1; // after "any"; a bucket spans ten lengths
    tests.push((row) => Math.min(Math.floor(Math.max(0, row.length - 1) / 10), 5) === bucket);
  }
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
  if (query) {
    const words = query.includes(" read as ") ? [query.replaceAll(" ", "")] : query.split(/\s+/);
    const exact = /[A-Z]/.test(query); // smart case: a capital letter makes the search case-sensitive
    tests.push((row) => texts(row).some((text) => inOrder(exact ? text : text.toLowerCase(), words)));
  }
  return tests;
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
  const [, set, id] = path.split("/").map(decodeURIComponent);
  const row = state.rows.find((candidate) => candidate.set === set && candidate.id === id);
  if (row) {
    if (!state.shown.includes(row)) reset();
    select(state.shown.indexOf(row));
  }
  if (row || query !== undefined) $("expressions").scrollIntoView({ block: "start" });
}
