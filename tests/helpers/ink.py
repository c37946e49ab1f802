"""InkML files whose symbols are slanted bars, which readers do not tell from handwriting."""

import zipfile
from pathlib import Path

from hmerbench.evaluation.stores import ZipStore

ELEMENTS = {r"\frac": "mfrac", r"\sqrt": "msqrt"}


def inkml(caption: str, height: float = 280, forget: str | None = None) -> str:
    """Slanted bars side by side under flat MathML, in the caption's order; `forget` omits a token from the MathML."""
    tokens = [token for token in caption.split() if token not in ("{", "}", "^", "_", r"\limits")]
    traces = groups = math = ""
    for number, token in enumerate(tokens):
        traces += f'<trace id="{number}">{500 * number} 5000, {500 * number + 100} {5000 + height}</trace>'
        label = {r"\frac": "-", "<": r"\lt"}.get(token, token).replace("<", "&lt;")
        views = f'<traceView traceDataRef="{number}"/><annotationXML href="s{number}"/>'
        groups = f'<traceGroup><annotation type="truth">{label}</annotation>{views}</traceGroup>' + groups
        if token != forget:
            math += f'<{ELEMENTS.get(token, "mi")} xml:id="s{number}"/>'
    math = f'<math xmlns="http://www.w3.org/1998/Math/MathML">{math}</math>'
    return f'<ink xmlns="http://www.w3.org/2003/InkML">{math}{traces}<traceGroup>{groups}</traceGroup></ink>'


def packed(path: Path, files: dict[str, str]) -> ZipStore:
    with zipfile.ZipFile(path, "w") as archive:
        for id_, text in files.items():
            archive.writestr(f"train/inkml/{id_}.inkml", text)
    return ZipStore(path, root="")
