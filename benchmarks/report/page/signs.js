"use strict"; // for all parts, which a page or its worker concatenates into one script

// How MathML has the labels of symbols and the words of networks: operators, and letters.
const SIGNS = {
  "\\lt": "<", "\\gt": ">", "<": "<", ">": ">", "-": "−", "+": "+", "=": "=", "/": "/", "!": "!", "COMMA": ",", "|": "|",
  "(": "(", ")": ")", "[": "[", "]": "]", "\\{": "{", "\\}": "}", "\\times": "×", "\\div": "÷", "\\pm": "±", "⋅": "⋅",
  "\\leq": "≤", "\\geq": "≥", "\\neq": "≠", "\\in": "∈", "\\rightarrow": "→", "\\forall": "∀", "\\exists": "∃",
  "\\sum": "∑", "\\int": "∫", "\\prime": "′", "\\ldots": "…", "⋯": "⋯", "\\cdot": "⋅", "\\cdots": "⋯",
};
const LETTERS = {
  "\\alpha": "α", "\\beta": "β", "\\gamma": "γ", "\\theta": "θ", "\\lambda": "λ", "\\mu": "μ", "\\pi": "π", "\\sigma": "σ",
  "\\phi": "ϕ", "\\Delta": "Δ", "\\Pi": "Π", "\\infty": "∞", "\\sqrt": "√",
};
const MATHML = "http://www.w3.org/1998/Math/MathML";
