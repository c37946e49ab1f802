"""Time to accuracy of synthetic run folders whose numbers are easily checked by hand."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from hmerbench.benchmarks import config as configs
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.performance import time_to_accuracy as timings
from tests.helpers.made_up import put_environment, put_history, put_score
from tests.helpers.paths import MEDIUM, ROOT


def put(
    root: Path,
    seed: int,
    rates: list[float | None],
    exprate: float | None,
    select: str = "2014",
    device: str = "NVIDIA H200",
    threads: int = 8,
    n: int = 986,
    slow: float = 1.0,
) -> Path:
    """A run with 10 s per epoch of 1000 images and 2 s per validation, times `slow`."""
    folder = root / f"reproduced/comer-fusion/paper-seed{seed}"
    (folder / "scores").mkdir(parents=True)
    config = configs.resolve("comer-fusion", "paper", seed).model_dump(mode="json") | {"select": select}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    lines = []
    for rate in rates:
        line = {"seconds": 10.0 * slow, "images_per_s": 100.0 / slow}
        lines.append(line | ({} if rate is None else {"val_token_exprate": rate, "val_seconds": 2.0 * slow}))
    put_history(folder, lines)
    put_environment(folder, device=device, threads=threads)
    if exprate is not None:
        put_score(folder, "2014", n, n // 2, exprate=exprate)
    return folder


def test_times_of_one_run(tmp_path: Path) -> None:
    put(tmp_path, 7, [None, 54.9, None, 57.0, None, 56.0], 55.2)
    table: Any = timings.timings(tmp_path)
    (row,) = table.to_dict("records")
    expected = {
        **{"seed": "7", "n": 1, "hardware": "NVIDIA H200", "epochs": 6},
        **{"total_s": 66, "epoch_s": 11, "train_epoch_s": 10, "images_per_s": 100},
        **{"validation_s": 2, "validations": 3, "best_token_exprate_2014": 57.0},
        **{
            "token_55_s": 44,
            "token_57_s": 44,
            "token_59.33_s": None,
        },  # four epochs and two validations; 57.0 reaches 57
        **{"exprate_55_s": 66, "exprate_57_s": None},  # scored after training, by another metric
    }
    assert {name: row[name] for name in expected} == expected


def test_a_part_of_2014_is_not_2014(tmp_path: Path) -> None:
    put(tmp_path, 7, [57.0], 55.2, n=320)
    row: Any = timings.timings(tmp_path).iloc[0]
    assert row["exprate_55_s"] is None and row["exprate_2014"] is None


def test_runs_on_other_numbers_of_threads_are_not_averaged(tmp_path: Path) -> None:
    for seed, threads in ((7, 1), (8, 2)):
        put(tmp_path, seed, [57.0], 55.2, threads=threads)
    assert list(timings.timings(tmp_path)["seed"]) == ["7", "8"]


def test_a_run_of_unknown_hardware_is_a_row_like_others(tmp_path: Path) -> None:
    put(tmp_path, 7, [50.0], None)
    (put(tmp_path, 8, [50.0], None) / "environment.json").unlink()
    assert list(timings.timings(tmp_path)["seed"]) == ["7", "8"]


def test_only_validation_on_2014_counts(tmp_path: Path) -> None:
    put(tmp_path, 7, [70.0, 80.0], None, select="heldout")
    row: Any = timings.timings(tmp_path).iloc[0]
    assert row["token_55_s"] is None and row["best_token_exprate_2014"] is None and row["exprate_2014"] is None
    assert row["validations"] == 2 and row["total_s"] == 24


def test_seeds_and_their_spread(tmp_path: Path) -> None:
    for seed, slow, rate in ((7, 1.0, 60.0), (8, 2.0, 56.0), (9, 3.0, 58.0)):
        put(tmp_path, seed, [rate], rate, slow=slow)
    put(tmp_path, 10, [60.0], 60.0, device="another")
    table: Any = timings.timings(tmp_path).set_index(["hardware", "seed"])
    mean, sd = table.loc[("NVIDIA H200", "mean")], table.loc[("NVIDIA H200", "sd")]
    assert mean["n"] == sd["n"] == 3 and mean["total_s"] == 24 and sd["total_s"] == 12
    assert mean["exprate_2014"] == 58 and sd["exprate_2014"] == 2 and mean["token_55_s"] == 24
    assert pd.isna(mean["token_57_s"])  # one seed never reached it
    assert table.loc["another"].index.tolist() == ["10"]


def test_the_file_is_reproducible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (7, 8):
        put(tmp_path, seed, [None, 60.0], 61.0)
    table, path = timings.timings(tmp_path), tmp_path / "speed/training.csv"
    before = path.read_bytes()
    timings.timings(tmp_path)
    assert path.read_bytes() == before
    read: Any = pd.read_csv(path)
    assert list(read.columns) == list(table.columns) and list(read["seed"]) == ["7", "8", "mean", "sd"]
    assert "time to accuracy" in capsys.readouterr().out


def test_the_committed_run_never_reached_55() -> None:
    table: Any = timings.timings(ROOT / "results", [MEDIUM])
    scored, row = json.loads((MEDIUM / "scores/2014.json").read_text()), table.iloc[0]
    assert row["exprate_2014"] == scored["exprate"] < 55 and row["total_s"] > 600 and row["validations"] == 0
    assert all(pd.isna(row[name]) for name in table.columns if name.startswith(("token_", "exprate_5")))


def test_untrained_runs_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="reproduced: it holds no runs"):
        timings.timings(tmp_path)
    folder = put(tmp_path, 7, [60.0], None)
    (folder / "checkpoint.json").write_text(json.dumps({"finished": False, "epoch": 1}))
    with pytest.raises(UserError, match="not trained to its end"):
        timings.timings(tmp_path)
    with pytest.raises(UserError, match="not a run folder"):
        timings.timings(tmp_path, [tmp_path])
