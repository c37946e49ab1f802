"""Nested formulas: the committed predictions on MNE's N1 and N2, which are test images of CROHME, and by depth.

MNE (Guan et al., PosFormer, ECCV 2024) sorts test images of CROHME by how deep their structures are nested, and adds a
set N3 of its own. Images are told by their pixels, so that what was read of CROHME is scored on N1 and N2 unread. What
was read of N3, by `evaluate --years N3`, is in results/nested/.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.passport import pixels
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.printing import counted
from hmerbench.benchmarks.report.documents import from_template, write_texts
from hmerbench.benchmarks.report.presets import preset_labels
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation import csv_text
from hmerbench.evaluation.scoring.inputs import read_predictions
from hmerbench.evaluation.scoring.metrics import nesting
from hmerbench.evaluation.scoring.stats import Images, rate
from hmerbench.evaluation.symlg.formula import tokens_of

TAKEN = ("N1", "N2")  # sets of MNE that are CROHME's images
NEW = "N3"  # the set of other images
REPORTED = {"PosFormer": ("60.59", "38.82", "34.08"), "CoMER": ("–", "–", "about 24")}  # token match on N1, N2, N3 in %
DEEPEST = 3  # depths from here on are counted together
Place = tuple[str, str]  # test set and id of an expression of CROHME


def taken_from(mne: Archive, crohme: Archive) -> dict[str, list[Place]]:
    """Where the images of N1 and N2 are in CROHME, by set. Raises UserError for one that is not there."""
    every = [(split, id_) for split in crohme.tests for id_ in crohme.captions(split)]
    places = {pixels(crohme.image(*place)): place for place in every}
    found: dict[str, list[Place]] = {}
    for name in TAKEN:
        digests = {id_: pixels(mne.image(name, id_)) for id_ in mne.captions(name)}
        if strange := [id_ for id_, digest in digests.items() if digest not in places]:
            fix = "import MNE with --as-is"
            raise UserError(f"{mne.path}: {len(strange)} images of {name} are not CROHME's ({strange[0]}, …); {fix}")
        found[name] = [places[digest] for digest in digests.values()]
    return found


def nested_rows(crohme: Archive, mne: Archive, results: Path) -> list[dict[str, str]]:
    """Token match on N1 and N2, and ExpRate by depth on all of CROHME's test images, for every committed row."""
    places = taken_from(mne, crohme)
    by_depth: dict[int, list[Place]] = {}
    for split in crohme.tests:
        for id_, tokens in crohme.captions(split).items():
            by_depth.setdefault(min(nesting(tokens), DEEPEST), []).append((split, id_))
    splits, groups = {*crohme.tests}, dict[tuple[str, str], list[RunFolder]]()
    read = [run for run in RunFolder.under(results / "reproduced") if splits <= {*run.sets("scores/*.csv")}]
    for run, preset in preset_labels(read).items():
        groups.setdefault((run.recipe, preset), []).append(run)
    table = []
    for (recipe, preset), runs in groups.items():
        verdicts = [
            {(split, row.id): row for split in crohme.tests for row in run.expressions(split).values()} for run in runs
        ]
        source = "external" if any(run.external for run in runs) else "reproduced"
        row = {"recipe": recipe, "preset": preset, "source": source, "seeds": str(len(runs))}
        for name, wanted in places.items():
            row[name] = _rate([[bool(each[place].token_exact) for place in wanted] for each in verdicts], wanted)
        row[NEW] = read_of_new(runs, mne, results)
        for depth, wanted in sorted(by_depth.items()):
            label = f"depth {depth}{' and more' * (depth == DEEPEST)} ({len(wanted):,})"
            row[label] = _rate([[each[place].exact for place in wanted] for each in verdicts], wanted)
        table.append(row)
    if not table:
        raise UserError(f"{results / 'reproduced'}: no run is scored on {', '.join(crohme.tests)}")
    return sorted(table, key=lambda row: -float(row["N2"].split()[0]))


def read_of_new(runs: Sequence[RunFolder], mne: Archive, results: Path) -> str:
    """Token match on N3, of those runs that have read it; a dash if none has, or the set is not in the archive."""
    files = [results / f"nested/{run.recipe}/{run.path.name}.tsv" for run in runs]
    read = [read_predictions(file) for file in files if file.exists()]
    if not read or NEW not in mne.tests:
        return "–"
    captions = mne.captions(NEW)
    right = [[tokens_of(found.get(id_, "")) == tokens for id_, tokens in captions.items()] for found in read]
    text = _rate(right, [(NEW, id_) for id_ in captions])
    return text if len(read) == len(runs) else f"{text}, {counted(len(read), 'seed')}"


def also_trained_on(crohme: Archive, mne: Archive, results: Path) -> str:
    """How many captions of N3 are in CROHME's training set, and how many of these, and of the others, each run that has
    read N3 got right."""
    captions, known = mne.captions(NEW), {*map(tuple, crohme.captions("train").values())}
    old = {id_ for id_, tokens in captions.items() if tuple(tokens) in known}
    text = f"{len(old)} of its captions are captions of CROHME's training set, too"
    for file in sorted((results / "nested").glob("*/*.tsv")):
        found = read_predictions(file)
        right = {id_ for id_, tokens in captions.items() if tokens_of(found.get(id_, "")) == tokens}
        others = f"of the {len(captions) - len(old):,} others, {len(right - old)}"
        text += f"; of these, `{file.parent.name}/{file.stem}` reads {len(right & old)} right, {others}"
    return text


def write_nested(table: Sequence[Mapping[str, str]], mne: Archive, crohme: Archive, results: Path) -> list[Path]:
    sizes = {name: len(mne.captions(name)) for name in mne.splits}
    columns = [name for name in table[0] if name != "source"]
    ours = [{**row, "preset": row["preset"] + "†" * (row["source"] == "external")} for row in table]
    empty = dict.fromkeys(columns, "–")
    reported = [
        empty | {"recipe": f"{name} (reported)"} | dict(zip((*TAKEN, NEW), rates, strict=True))
        for name, rates in REPORTED.items()
    ]
    trained_on = also_trained_on(crohme, mne, results) if NEW in mne.tests else ""
    told = {
        "taken": TAKEN,
        "new": NEW,
        "sizes": sizes,
        "trained_on": trained_on,
        "marked": any("†" in row["preset"] for row in ours),
    }
    page = from_template("nested.md", columns=columns, rows=[*reported, *ours], **told)
    return write_texts({results / "nested.csv": csv_text([*table[0]], table), results / "nested.md": page})


def _rate(right: Sequence[Sequence[bool]], places: Sequence[Place]) -> str:
    """The mean over seeds in percent, with its interval over writers and seeds."""
    found = rate(np.array(right), Images([id_ for _, id_ in places], [split for split, _ in places]))
    return f"{found.value:.2f} ({found.low:.1f}–{found.high:.1f})"
