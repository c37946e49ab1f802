"""What a symLG says, however its objects are called."""

from hmerbench.evaluation.symlg import SymLG, lg_text


def content(graph: SymLG | str) -> tuple[list[tuple[str, str]], list[tuple[str, str, str]]]:
    """The symbols and relations of a graph, or of its official text, in order and without ids."""
    text = graph if isinstance(graph, str) else lg_text(graph, "")
    rows = [line.split(", ") for line in text.split("\n") if line.startswith(("O, ", "R, "))]
    paths = {row[1]: row[4] for row in rows if row[0] == "O"}
    relations = sorted((paths[row[1]], paths[row[2]], row[3]) for row in rows if row[0] == "R")
    return sorted((row[4], row[2]) for row in rows if row[0] == "O"), relations
