"""Attention for the report's error browser: where a run looked at each token of what it read.

Maps of all expressions would make the page too large, so a part of each set gets them: so many evenly spaced, and as
many evenly spaced among the wrong ones. Values are bytes on the network's own grid of cells.
"""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.progress import track

from benchmarks.data.archive import Archive
from benchmarks.data.samples import evenly
from benchmarks.errors import UserError
from benchmarks.printing import aside
from benchmarks.report.page.browser import Json, TestSet, key, title
from benchmarks.runs.folder import RunFolder
from models.errors import CheckpointError


def add_attention(
    sets: Sequence[TestSet], archive: Archive, runs: Sequence[RunFolder], count: int, notes: list[str]
) -> None:
    """Fills `attention` of the sets. A run without weights becomes a note."""
    from models.weights import load_weights

    for run in runs if count else ():
        mine = [one for one in sets if key(run) in one.runs]
        try:
            model = load_weights(run.weights, run.settings.model) if mine else None
        except CheckpointError as error:
            notes.append(f"no attention: {error}")
            continue
        for one in mine:
            pairs = zip(one.ids, one.runs[key(run)], strict=True)
            read = {id_: entry for id_, entry in pairs if entry is not None and entry.get("tokens")}
            wrong = [id_ for id_, entry in read.items() if not entry["exact"]]
            wanted = {*evenly(list(read), count), *evenly(wrong, count)}
            chosen, words = [id_ for id_ in read if id_ in wanted], f"  attention of {title(run)} on {one.name}"
            shown = track(chosen, words, console=aside, transient=True)
            maps = {id_: _maps(model, run, archive.image(one.name, id_), read[id_]["tokens"].split()) for id_ in shown}
            one.attention[key(run)] = {id_: found for id_, found in maps.items() if found}
        if mine:
            n = sum(len(one.attention[key(run)]) for one in mine)
            how = "ATTENTION=n: n evenly spaced of each set, and n of the wrong ones"
            notes.append(f"{title(run)}: attention playback for {n} of its expressions ({how})")


def _maps(model: Any, run: RunFolder, image: np.ndarray, tokens: list[str]) -> Json | None:
    """One byte a cell and step; None for what the network cannot be made to read."""
    from benchmarks.recognition.attention import trace

    try:
        attention = trace(model, run.settings, image, tokens)
    except (UserError, ValueError):
        return None
    looked_Thw, suppressed_Thw = attention.looked_Thw, attention.suppressed_Thw
    maps = {"attention": _bytes(looked_Thw / looked_Thw.max((1, 2), keepdims=True))}
    if suppressed_Thw is not None:
        maps["refinement"] = _bytes(suppressed_Thw / max(float(suppressed_Thw.max()), 1e-9))
    _, rows, columns = looked_Thw.shape
    return {"rows": rows, "columns": columns, "cell": [round(side, 3) for side in attention.cell], "maps": maps}


def _bytes(values_Thw: np.ndarray) -> list[str]:
    return [base64.b64encode(step.tobytes()).decode() for step in (values_Thw * 255).round().astype(np.uint8)]
