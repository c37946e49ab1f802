"""Symbol layout trees: the graph, its text format, and the way to it from LaTeX."""

from hmerbench.evaluation.symlg.editions import EDITIONS, PAPER, READINGS, Rules, rules
from hmerbench.evaluation.symlg.formula import body_of, formula_in
from hmerbench.evaluation.symlg.graph import EMPTY_GRAPH, UNREADABLE, SymLG, Unconverted, lg_text, with_paths
from hmerbench.evaluation.symlg.latex import from_latex

__all__ = ["EDITIONS", "EMPTY_GRAPH", "PAPER", "READINGS", "UNREADABLE", "Rules", "SymLG", "Unconverted"]
__all__ += ["body_of", "formula_in", "from_latex", "lg_text", "rules", "with_paths"]
