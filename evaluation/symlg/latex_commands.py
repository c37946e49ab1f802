# ruff: noqa: SIM905  (word tables read better as text)
"""The character or name that pandoc 1.19 writes to MathML for each LaTeX command, and the symLG labels of these."""

_COMMANDS = r"""
\alpha α \beta β \chi χ \delta δ \Delta Δ \epsilon ϵ \varepsilon ε \eta η \gamma γ \Gamma Γ \iota ι
\kappa κ \lambda λ \Lambda Λ \mu μ \nu ν \omega ω \Omega Ω \phi ϕ \varphi φ \Phi Φ \pi π \Pi Π \psi ψ
\Psi Ψ \rho ρ \sigma σ \Sigma Σ \tau τ \theta θ \vartheta ϑ \Theta Θ \upsilon υ \Upsilon Υ \xi ξ \Xi Ξ
\zeta ζ \pm ± \mp ∓ \cdot ⋅ \star ⋆ \ast * \times × \div ÷ \circ ∘ \bullet • \oplus ⊕ \ominus ⊖
\otimes ⊗ \oslash ⊘ \odot ⊙ \land ∧ \wedge ∧ \lor ∨ \vee ∨ \cap ∩ \cup ∪ \mid ∣ \parallel ∥ \backslash ∖
\setminus \ \colon : \lt < \gt > \ne ≠ \neq ≠ \le ≤ \leq ≤ \leqslant ≤ \ge ≥ \geq ≥ \geqslant ≥ \equiv ≡
\ll ≪ \gg ≫ \prec ≺ \succ ≻ \subset ⊂ \supset ⊃ \subseteq ⊆ \supseteq ⊇ \sim ∼ \simeq ≃ \approx ≈
\cong ≅ \in ∈ \ni ∋ \notin ∉ \propto ∝ \vdash ⊢ \perp ⊥ \gets ← \leftarrow ← \to → \rightarrow →
\leftrightarrow ↔ \uparrow ↑ \downarrow ↓ \Leftarrow ⇐ \Rightarrow ⇒ \Leftrightarrow ⇔ \iff ⇔ \mapsto ↦
\longrightarrow → \longleftarrow ← \sum ∑ \prod ∏ \coprod ∐ \bigcap ⋂ \bigcup ⋃ \int ∫ \iint ∬ \iiint ∭
\oint ∮ \prime ′ \dots … \ldots … \cdots ⋯ \vdots ⋮ \ddots ⋱ \forall ∀ \exists ∃ \Re ℜ \Im ℑ \aleph ℵ
\hbar ℏ \ell ℓ \wp ℘ \emptyset ∅ \infty ∞ \partial ∂ \nabla ∇ \triangle △ \therefore ∴ \angle ∠
\diamond ⋄ \neg ¬ \lnot ¬ \bot ⊥ \top ⊤ \cdotp · \$ $ \% % \& & \_ _ \# # \^ ^
""".split()
_FUNCTIONS = (
    "arccos arcsin arctan arg cos cosh cot coth csc deg det dim exp gcd hom inf ker lg lim liminf limsup "
    "ln log max min Pr sec sin sinh sup tan tanh"
).split()
_BRACKETS = (
    r"( ( ) ) [ [ ] ] \{ { \} } \lbrack [ \lbrace { \rbrack ] \rbrace } | | \| ∥ \vert | \lvert | \rvert | "
    r"\Vert ‖ \lVert ∥ \rVert ∥ \langle ⟨ \rangle ⟩ \lfloor ⌊ \rfloor ⌋ \lceil ⌈ \rceil ⌉"
).split()
BRACKETS: dict[str, str] = dict(zip(_BRACKETS[::2], _BRACKETS[1::2], strict=True))
SYMBOLS: dict[str, str] = dict(zip(_COMMANDS[::2], _COMMANDS[1::2], strict=True))
SYMBOLS |= {"\\" + name: name for name in _FUNCTIONS}
SYMBOLS |= {character: character for character in "+*,.;:?><!=/"} | {":=": ":=", "-": "−"}
SYMBOLS |= {"'": "′", "''": "″", "'''": "‴", "''''": "⁗"}
# What is an argument without braces; the brackets of two pairs are not.
ARGUMENTS = BRACKETS | SYMBOLS | {r"\sqrt": "√", r"\surd": "√"}
for _bracket in (r"\lvert", r"\rvert", r"\lVert", r"\rVert"):
    del ARGUMENTS[_bracket]
SPACES = frozenset([r"\!", r"\,", r"\>", r"\:", r"\;", "\\ ", r"\quad", r"\qquad", "~"])
ACCENTS: dict[str, str] = {
    r"\hat": "^", r"\widehat": "ˆ", r"\tilde": "\u0303", r"\widetilde": "˜", r"\bar": "‾", r"\overline": "¯",
    r"\vec": "\u20d7", r"\overrightarrow": "\u20d7", r"\overleftarrow": "\u20d6", r"\dot": "\u0307",
    r"\ddot": "\u0308", r"\acute": "´", r"\grave": "`", r"\breve": "˘", r"\check": "ˇ", r"\mathring": "°",
}  # fmt: skip
ANGLES = {"<": "⟨", ">": "⟩"}  # after \left and \right, since pandoc 2.17
# Environment -> its brackets.
ENVIRONMENTS = dict.fromkeys("array matrix smallmatrix aligned align split gathered gather eqnarray".split(), ("", ""))
ENVIRONMENTS |= {"pmatrix": ("(", ")"), "bmatrix": ("[", "]"), "Bmatrix": ("{", "}"), "cases": ("{", "")}
ENVIRONMENTS |= {"vmatrix": ("∣", "∣"), "Vmatrix": ("∥", "∥")}
# Commands that the conversion drops with their content (mstyle, mtext, mphantom, menclose in MathML).
STYLES = frozenset(
    r"\mathrm \mathup \mbox \mathbf \mathbfup \mathit \mathtt \texttt \mathsf \mathsfup \mathbb \mathcal "
    r"\mathscr \mathfrak \mathbfit \mathsfit".split()
)
TEXTS = frozenset(r"\textrm \text \textbf \textit \textsf".split())
LEFT_OUT = frozenset([r"\phantom", r"\boxed"])
FRACTIONS = frozenset([r"\frac", r"\dfrac", r"\tfrac"])
STACKED = {r"\overset": "mover", r"\stackrel": "mover", r"\underset": "munder"}
SCALES = frozenset(rf"\{size}{side}" for size in ("big", "Big", "bigg", "Bigg") for side in ("", "l", "r"))

# Labels in the ground truth of MathML's characters and names; all others are their own labels.
_NAMES = "rightarrow sum int pi leq sin cos tan lim geq infty prime times alpha beta pm log } {"
_CHARACTERS = r"""
÷ \div × \times ± \pm ∑ \sum π \pi ∫ \int θ \theta ∞ \infty … \ldots β \beta → \rightarrow ≤ \leq ≥ \geq < \lt
> \gt σ \sigma ϕ \phi ′ \prime Γ \gamma γ \gamma μ \mu λ \lambda Δ \Delta ∃ \exists ∀ \forall ∈ \in ∂ \partial
≠ \neq α \alpha − -
""".split()
LABELS: dict[str, str] = {name: "\\" + name for name in _NAMES.split()}
LABELS |= dict(zip(_CHARACTERS[::2], _CHARACTERS[1::2], strict=True))
