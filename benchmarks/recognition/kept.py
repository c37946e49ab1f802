"""What a search has read so far, kept in a file, so that one that is stopped goes on where it was."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hmerbench.benchmarks.config import digest_of_keys
from hmerbench.benchmarks.files import write_atomically
from hmerbench.models.files import parse_json
from hmerbench.models.inference.options import Hypothesis

PREFIX = ".reading-"


class Kept:
    """The hypotheses of batches that were read, by the ids of their images; a line of the file holds a batch."""

    def __init__(self, folder: Path, made_by: Mapping[str, Any]) -> None:
        """In a file of its own for all that decides what is read (`made_by`)."""
        self.path = folder / f"{PREFIX}{digest_of_keys(made_by)}.jsonl"
        self.batches: dict[tuple[str, ...], list[list[Hypothesis]]] = {}
        lines = self.path.read_text(encoding="utf-8").split("\n") if self.path.exists() else []
        try:
            for line in lines[:-1]:  # the last one is empty, or was cut short
                row = parse_json(line)
                nbest = [[Hypothesis(**each | {"ids": tuple(each["ids"])}) for each in found] for found in row["nbest"]]
                self.batches[tuple(row["ids"])] = nbest
        except (ValueError, TypeError, KeyError):  # a damaged line: what follows is read again
            pass
        write_atomically(self.path, "".join(map(_line, self.batches, self.batches.values())))

    def add(self, ids: Sequence[str], nbest: list[list[Hypothesis]]) -> None:
        """Keep the hypotheses of a batch."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(_line(ids, nbest))


def _line(ids: Sequence[str], nbest: list[list[Hypothesis]]) -> str:
    return json.dumps({"ids": [*ids], "nbest": [[asdict(each) for each in found] for found in nbest]}) + "\n"


def forget(folder: Path) -> None:
    """Delete what is kept in a folder: by now it is written as predictions, or of other weights."""
    for path in folder.glob(f"{PREFIX}*.jsonl"):
        path.unlink(missing_ok=True)
