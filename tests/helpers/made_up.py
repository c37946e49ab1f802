"""Complete files of fictitious runs with made-up numbers; `over` replaces some of them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from hmerbench.evaluation import csv_text
from hmerbench.evaluation.scoring.metrics import BUCKETS, Bucket, Expression, percent
from hmerbench.evaluation.scoring.score import Score


def put(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def put_config(folder: Path, **keys: Any) -> None:
    """config.yaml, with these keys in place of those that are there."""
    path = folder / "config.yaml"
    put(path, yaml.safe_dump((yaml.safe_load(path.read_text()) if path.exists() else {}) | keys))


def put_score(folder: Path, split: str, n: int, exact: int, **over: Any) -> None:
    """scores/<split>.json: half of the wrong expressions have one error, half of the rest two, and so on."""
    le1, le2, le3 = (n - (n - exact) // 2**k for k in (1, 2, 3))
    by_length = [Bucket(BUCKETS[0], n, exact, percent(exact, n)), *(Bucket(name, 0, 0, None) for name in BUCKETS[1:])]
    made: dict[str, Any] = {"n": n, "exact": exact, "le1": le1, "le2": le2, "le3": le3, "structure": le3}
    made |= {f"exprate_{name}": percent(made[name], n) for name in ("le1", "le2", "le3")}
    made |= {"exprate": percent(exact, n), "structure_rate": percent(le3, n)}
    made |= {
        "token_exact": None,
        "token_exprate": None,
        "by_length": by_length,
        "ci95": [0.0, 100.0],
        "missing": 0,
        "unconverted": 0,
        "neutral": min(n, exact + 5),
    }
    made["signature"] = f"ExpRate|set:crohme{split}|n:{n}|metric:symlg|search:joint10|select:last|v:2"
    put(folder / f"scores/{split}.json", json.dumps(asdict(Score(**made | over))))


def put_expressions(folder: Path, split: str, errors: Iterable[int], buckets: Iterable[str] = ()) -> None:
    """scores/<split>.csv: expressions e0, e1, ... with these numbers of errors, and of these lengths."""
    rows = [
        vars(Expression(f"e{k}", "converted", wrong, wrong, 0, wrong == 0, wrong == 0, None, None, bucket))
        for k, (wrong, bucket) in enumerate(zip_longest(errors, buckets))
    ]
    put(folder / f"scores/{split}.csv", csv_text(list(rows[0]), rows))


def put_environment(folder: Path, **over: Any) -> None:
    made = {"started": "2026-01-01T00:00:00+00:00", "device": "cpu", "threads": 1, "revision": "0123abcd+89abcdef"}
    put(folder / "environment.json", json.dumps(made | {"versions": {"torch": "2.13.0", "hmerbench": "0.1.0"}} | over))


def put_history(folder: Path, epochs: Sequence[dict[str, Any]]) -> None:
    lines = []
    for number, over in enumerate(epochs, 1):
        made = {"epoch": number, "step": 10 * number, "loss": 4 / number, "lr": 0.08}
        made |= {"seconds": 1.5, "images_per_s": 50.0}
        lines.append(json.dumps(made | over) + "\n")
    put(folder / "history.jsonl", "".join(lines))


def put_state(folder: Path, finished: bool) -> None:
    put(folder / "checkpoint.json", json.dumps({"finished": finished, "epoch": 2, "best_epoch": 2, "step": 20}))
