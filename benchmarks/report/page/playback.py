"""Attention maps for the report's error browser: where a network looks at each token of its prediction.

Maps of all expressions would make the page too large, so only a sample of each set gets them: a number of evenly spaced
expressions, and as many of the wrong ones. Values are bytes on the network's own grid of cells.
"""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.progress import track

from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.samples import evenly
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.printing import counted, err_console
from hmerbench.benchmarks.report.page.browser import Json, TestSet, key, title
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.models.files import CheckpointError


def add_attention(
    sets: Sequence[TestSet], archive: Archive, runs: Sequence[RunFolder], count: int, notes: list[str]
) -> None:
    """Fill in `attention` of the sets, for `count` expressions and `count` wrong ones per set and run.

    Damaged weights become a note, and all runs without weights become one together.
    """
    from hmerbench.models.weights import load_weights

    of_run = {run: [test_set for test_set in sets if key(run) in test_set.runs] for run in runs if count}
    if weightless := [title(run) for run, scored in of_run.items() if scored and not run.has_weights]:
        others = f" and {counted(more, 'other')}" if (more := len(weightless) - 1) else ""
        notes.append(f"There is no attention playback for {weightless[0]}{others}, whose weights are not here.")
    for run, scored in of_run.items():
        if not (scored and run.has_weights):
            continue
        try:
            model = load_weights(run.weights, run.settings.model)
        except CheckpointError as error:
            notes.append(f"no attention: {error}")
            continue
        for test_set in scored:
            pairs = zip(test_set.ids, test_set.runs[key(run)], strict=True)
            entries = {id_: entry for id_, entry in pairs if entry is not None and entry.get("tokens")}
            wrong = [id_ for id_, entry in entries.items() if not entry["exact"]]
            sample = {*evenly(list(entries), count), *evenly(wrong, count)}
            maps: dict[str, Json] = {}
            if not err_console.is_terminal:  # which shows no bar
                err_console.print(f"  attention of {title(run)} on {test_set.name}")
            label = f"  attention of {title(run)} on {test_set.name}"
            for id_ in track([id_ for id_ in entries if id_ in sample], label, console=err_console, transient=True):
                tokens = entries[id_]["tokens"].split()
                if found := _maps(model, run, archive.image(test_set.name, id_), tokens):
                    maps[id_] = found
            test_set.attention[key(run)] = maps
        n = sum(len(test_set.attention[key(run)]) for test_set in scored)
        how = "--attention n: n evenly spaced of each set, and n of the wrong ones"
        notes.append(f"{title(run)}: attention playback for {n} of its expressions ({how})")


def _maps(model: Any, run: RunFolder, image: np.ndarray, tokens: list[str]) -> Json | None:
    """One byte per cell and step; None if the network cannot be fed this image or these tokens."""
    from hmerbench.benchmarks.recognition.attention import trace

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
