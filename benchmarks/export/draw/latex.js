// LaTeX of the network's words: which of it is complete, and as MathML. Grammar: complete_latex.py.
class Incomplete extends Error {}

const MARKS = new Set(["}", "\\limits", "<pad>", "<sos>", "<eos>"]);

// A tree of [tag, ...children]; leaves are [tag, text]. Throws Incomplete.
function parseLatex(tokens) {
  let at = 0;
  const next = () => {
    if (at >= tokens.length) throw new Incomplete();
    return tokens[at++];
  };

  function row(closer) {
    const parts = [];
    while (at < tokens.length || closer) {
      if (at >= tokens.length) throw new Incomplete();
      if (tokens[at] === closer) { at++; break; }
      parts.push(scripts(atom()));
    }
    return parts.length === 1 ? parts[0] : ["mrow", ...parts];
  }

  function scripts(base) {
    const limits = tokens[at] === "\\limits";
    if (limits) at++;
    const mark = tokens[at];
    if (mark !== "_" && mark !== "^") return base;
    at++;
    let script = atom();
    const other = mark === "_" ? "^" : "_";
    if (tokens[at] === other) {
      at++;
      const second = atom(), [low, high] = mark === "_" ? [script, second] : [second, script];
      return [limits ? "munderover" : "msubsup", base, low, high];
    }
    script = scripts(script);
    return [(limits ? { _: "munder", "^": "mover" } : { _: "msub", "^": "msup" })[mark], base, script];
  }

  function atom() {
    const token = next();
    if (token === "{") return row("}");
    if (token === "_" || token === "^") { at--; return scripts(["mrow"]); }
    if (token === "\\frac") return ["mfrac", argument(), argument()];
    if (token === "\\sqrt") {
      if (at >= tokens.length) throw new Incomplete();
      const index = tokens[at] === "[" ? (at++, row("]")) : null;
      return index ? ["mroot", argument(), index] : ["msqrt", argument()];
    }
    if (MARKS.has(token)) throw new Incomplete();
    return leaf(token);
  }

  function argument() {
    const token = next();
    if (token === "{") return row("}");
    if (token === "[" && closes()) return row("]");
    if (MARKS.has(token) || token === "\\frac") throw new Incomplete();
    return leaf(token);
  }

  function closes() {
    let depth = 0;
    for (const token of tokens.slice(at)) {
      depth += (token === "{") - (token === "}");
      if (depth < 0) return false;
      if (token === "]" && depth === 0) return true;
    }
    return false;
  }

  if (!tokens.length) throw new Incomplete();
  return row("");
}

function isComplete(tokens) {
  try {
    parseLatex(tokens);
    return true;
  } catch (error) {
    if (error instanceof Incomplete || error instanceof RangeError) return false;
    throw error;
  }
}

function leaf(token) {
  if (/^[0-9.]$/.test(token)) return ["mn", token];
  if (token in LETTERS) return ["mi", LETTERS[token]];
  if (/^[A-Za-z]$/.test(token)) return ["mi", token];
  return ["mo", SIGNS[token] ?? token.replace(/^\\/, "")];
}

const escaped = (text) => text.replace(/[&<>]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);

// <math> as text; the text of tokens is escaped.
function toMathML(tokens) {
  const element = ([tag, ...children]) => (
    `<${tag}>${typeof children[0] === "string" ? escaped(children[0]) : children.map(element).join("")}</${tag}>`
  );
  return `<math xmlns="${MATHML}" display="block">${element(parseLatex(tokens))}</math>`;
}
