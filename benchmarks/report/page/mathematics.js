// Draws a symLG tree, which is what the scorer compares, as MathML in which every symbol can carry a mark.
// Text only ever becomes text nodes; no string is parsed as HTML.
function mathElement(tag, ...children) {
  const element = document.createElementNS(MATHML, tag);
  element.append(...children.filter((child) => child !== null));
  return element;
}

// One symbol. A label may name several symbols with the same path, which the scorer counts as one.
function leaf(label) {
  const several = label.split(" ");
  if (several.length > 1) return mathElement("mrow", ...several.map(leaf));
  if (label in SIGNS) {
    const sign = mathElement("mo", SIGNS[label]);
    if ("∑∫".includes(SIGNS[label])) sign.setAttribute("movablelimits", "false"); // keeps limits above and below in fractions
    if ("()[]|{}".includes(SIGNS[label])) sign.setAttribute("stretchy", "false");
    if ("|!".includes(SIGNS[label])) ["lspace", "rspace"].forEach((side) => sign.setAttribute(side, "0"));
    return sign;
  }
  if (/^[0-9.]$/.test(label)) return mathElement("mn", label);
  return mathElement("mi", LETTERS[label] ?? label.replace(/^\\(?=[a-z]+$)/, ""));
}

// <math> for a tree {labels, parents, relations}; `marks` has one letter per symbol. Returns that element, and the
// element of each symbol for highlighting.
function drawTree(tree, marks) {
  const below = tree.labels.map(() => ({}));
  const roots = [];
  tree.parents.forEach((parent, index) => {
    if (parent < 0) roots.push(index);
    else below[parent][tree.relations[index]] = index;
  });
  const elements = [];

  function marked(index, element) {
    element.classList.add("symbol");
    if (marks && marks[index] !== ".") element.classList.add("mark-" + marks[index]);
    elements[index] = element;
    return element;
  }

  function row(first) {
    const members = [];
    for (let at = first; at !== undefined; at = below[at].R) members.push(symbol(at));
    return members.length === 1 ? members[0] : mathElement("mrow", ...members);
  }

  function symbol(index) {
    const { A: above, B: under, I: inside, S: sub, P: sup } = below[index];
    const label = tree.labels[index];
    let base;
    let limits = above !== undefined || under !== undefined;
    if (label === "-" && above !== undefined && under !== undefined) {
      base = marked(index, mathElement("mfrac", row(above), row(under)));
      base.classList.add("bar");
      limits = false;
    } else if (label === "\\sqrt" && inside !== undefined) {
      const indexed = above !== undefined && under === undefined;
      base = marked(index, indexed ? mathElement("mroot", row(inside), row(above)) : mathElement("msqrt", row(inside)));
      base.classList.add("bar");
      limits = limits && !indexed;
    } else {
      base = marked(index, leaf(label));
      if (inside !== undefined) base = mathElement("mrow", base, row(inside));
    }
    if (limits) base = scripted(base, under, above, "munder", "mover", "munderover");
    if (sub !== undefined || sup !== undefined) base = scripted(base, sub, sup, "msub", "msup", "msubsup");
    return base;
  }

  function scripted(base, low, high, lowTag, highTag, bothTag) {
    if (low === undefined) return mathElement(highTag, base, row(high));
    if (high === undefined) return mathElement(lowTag, base, row(low));
    return mathElement(bothTag, base, row(low), row(high));
  }

  const math = mathElement("math", ...roots.map(row));
  math.setAttribute("display", "block");
  return { math, elements };
}
