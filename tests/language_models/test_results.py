"""What is made of a language model's run: the job's command, packing and tables."""

import math
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from hmerbench.benchmarks.cli.main import app
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.samples import HELD_OUT, HELD_OUT_SEED, hold_out
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.language_models import tables
from hmerbench.benchmarks.language_models.corpus import _validates, caption_corpus
from hmerbench.benchmarks.language_settings import resolve, tied
from hmerbench.benchmarks.runs import listing
from hmerbench.benchmarks.runs.packing import pack
from hmerbench.benchmarks.runs.run import LanguageRun
from hmerbench.benchmarks.tracking.track import track
from hmerbench.benchmarks.tracking.tracking_store import tracking_uri
from hmerbench.models.language import LINE_END, UNKNOWN
from hmerbench.models.vocab import SPECIAL, Vocabulary
from hmerbench.models.weights import read_tensors
from tests.helpers.paths import ROOT
from tests.helpers.tiny import SYMBOLS, tiny_archive


def put_run(root: Path, recipe: str, test: float, valid: list[float], seed: int = 7, text: str = "ptb") -> LanguageRun:
    """A finished run with these perplexities, each epoch taking a minute."""
    settings = tied(resolve(recipe, seed), text, "0123456789abcdef")
    run = LanguageRun(root / settings.run_name, settings)
    run.write(run.FILE, settings.to_yaml())
    run.write("environment.json", {"device": "a processor", "threads": 1, "started": "2026-01-01T00:00:00+00:00"})
    epochs = [
        {"epoch": number, "step": number, "rate": 1.0, "train_perplexity": 2 * value, "valid_perplexity": value}
        | {"seconds": 50.0, "valid_seconds": 10.0, "words_per_s": 1.0}
        for number, value in enumerate(valid, start=1)
    ]
    run.write("history.jsonl", epochs)
    scores = {"test_perplexity": test, "test_words": 9, "valid_perplexity": valid[-1], "parameters": 5}
    run.write("scores.json", scores)
    return run


def test_a_changed_copy_of_a_shipped_recipe_is_no_seed_of_it(tmp_path):
    (mine := tmp_path / "lm-char-small.yaml").write_text("base: lm-char-small\n")
    assert resolve(str(mine), 7) == resolve("lm-char-small", 7)
    mine.write_text("base: lm-char-small\ntraining: {epochs: 30}\n")
    with pytest.raises(UserError, match=r"is not the recipe lm-char-small, and tables would count it .*; rename it"):
        resolve(str(mine), 7)


def test_tables_show_means_of_seeds_and_what_mistakes_cost(tmp_path):
    curves = {9: [9.0] * 4 + [7.5, 6.0], 10: [9.0] * 4 + [8.5, 6.0]}  # ports are compared with the first seed
    runs = [put_run(tmp_path / "runs", "lm-char-small", 75.0 + 2 * seed, curve, seed) for seed, curve in curves.items()]
    runs += [put_run(tmp_path / "runs", f"port-{name}", 200.0, [11.0] * 5) for name in ("mean", "no-line-ends")]
    for run in runs:
        assert pack(run.path).name == f"ptb-seed{run.settings.seed}"
    built: dict[str, Any] = tables.language_tables(tmp_path)
    small, large = (built["language"].set_index("recipe").loc[name] for name in ("lm-char-small", "lm-char-large"))
    assert (small["reported"], small["reproduced"], small["seeds"]) == (92.3, 94.0, 2)
    assert small["sd"] == pytest.approx(2**0.5)
    assert (small["minutes"], small["hardware"]) == (6.0, "a processor, 1 thread")
    run = runs[0]
    run.write("environment.json", run.environment | {"resumed": [{"device": "a GPU", "gpu": True, "threads": 8}] * 2})
    assert run.hardware == "a processor, 1 thread, then a GPU"
    assert (large["reported"], large["seeds"]) == (78.9, 0) and math.isnan(large["reproduced"])
    ports = built["language_ports"]
    assert math.isnan(ports["worse_by"][2]) and "ends of lines" in ports["mistake"][2]  # other words: not compared
    assert list(ports["validation"][:2]) == [7.5, 11.0] and list(ports["worse_by"][:2]) == [0.0, 3.5]
    assert ports["validation"][3:].isna().all()
    assert [*tables.language_tables(tmp_path / "nothing")["language_ports"]["worse_by"].dropna()] == []
    assert list(built["language_curves"]["minutes"][:6]) == [1, 2, 3, 4, 5, 6]
    written = {path.name: path.read_text() for path in tables.write_language_tables(built, tmp_path)}
    assert "| LSTM-Char-Large             | lm-char-large            | 78.90      | –" in written["language.md"]
    assert "language_ports.csv" in written


def test_committed_tables_are_what_make_tables_writes(tmp_path):
    for path in tables.write_language_tables(tables.language_tables(ROOT / "results"), tmp_path):
        assert path.read_text() == (ROOT / "results" / path.name).read_text(), f"{path.name}: run make tables"


def test_a_run_is_logged_once_however_often_it_is_tracked(empty_store, tmp_path, monkeypatch):
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = put_run(tmp_path / "runs", "lm-word-small", 97.0, [9.0, 8.0, 7.0])
    scores, history = run.scores, run.history
    (run.path / "scores.json").unlink()
    run.write("history.jsonl", history[:2])
    first = track(run.path)
    run.write("history.jsonl", history)
    run.write("scores.json", scores)
    assert first and track(run.path) == first and track(run.path) == first
    client = MlflowClient(tracking_uri(run.path))
    logged = client.get_run(first)
    assert [point.value for point in client.get_metric_history(first, "validation/perplexity")] == [9.0, 8.0, 7.0]
    assert [point.value for point in client.get_metric_history(first, "test/perplexity")] == [97.0]
    assert (logged.data.params["model.words"], logged.info.status) == ("table", "FINISHED")


def test_a_run_is_removed_with_its_entry_and_another_training_of_the_same_settings_is_left(
    empty_store, tmp_path, monkeypatch
):
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    kept = track(put_run(tmp_path / "runs", "lm-char-small", 75.0, [9.0, 8.0]).path)
    run = put_run(tmp_path / "runs", "lm-char-small", 76.0, [9.5, 8.5])
    (run.path / "scores.json").unlink()
    removed = track(run.path)
    client = MlflowClient(tracking_uri(run.path))
    assert kept and removed and kept != removed and client.get_run(removed).info.status == "KILLED"
    app(["remove", str(run.path), "--yes"], standalone_mode=False)
    assert not run.path.exists() and client.get_run(removed).info.lifecycle_stage == "deleted"
    assert client.get_run(kept).info.lifecycle_stage == "active"


def test_ls_shows_how_far_a_run_is(tmp_path):
    def shown() -> str:
        (run,) = listing.runs(tmp_path, LanguageRun)
        return f"{run['status']} {run['words']}"

    run = put_run(tmp_path / "runs", "lm-char-small", 92.5, [9.0, 8.0])
    assert f"  {run.path}: tested perplexity 92.50" in listing.lines(tmp_path)
    (run.path / "scores.json").unlink()
    assert shown() == "training 2 of 25 epochs"
    for damage in ("{", "{}", "[1]"):
        (run.path / "history.jsonl").write_text(damage)
        assert shown().startswith("damaged")
    assert any(line.startswith("  lm-word-small ") and "97.6" in line for line in listing.lines(tmp_path))


def test_only_tested_runs_on_the_penn_treebank_are_packed(tmp_path):
    other = put_run(tmp_path, "lm-char-small", 9.0, [9.0], text="captions")
    with pytest.raises(UserError, match="trained on captions"):
        pack(other.path)
    untested = put_run(tmp_path, "lm-word-small", 9.0, [9.0])
    (untested.path / "scores.json").unlink()
    with pytest.raises(UserError, match="not trained and tested yet"):
        pack(untested.path)


def test_a_packed_language_model_is_replaced_as_a_whole(tmp_path):
    run = put_run(tmp_path / "runs", "lm-char-small", 92.0, [9.0, 8.0])
    target = pack(run.path)
    (target / "old.txt").write_text("of an earlier version")
    run.write("scores.json", run.scores | {"test_perplexity": 80.0})
    assert pack(run.path) == target and LanguageRun(target).scores["test_perplexity"] == 80.0
    assert sorted(path.name for path in target.iterdir()) == sorted(LanguageRun.PARTS)


def test_captions_hold_out_what_a_trial_holds_out_and_every_tenth_formula(tmp_path):
    """By formula: none is in two splits, nor any of a trial's in the training text."""
    archive = open_archive(tiny_archive(tmp_path, train=300))
    corpus, (kept, held) = caption_corpus(archive), hold_out(archive.samples("train"), HELD_OUT, HELD_OUT_SEED)
    texts = {name: "".join(f"{corpus.lexicon.words[word]} " for word in words) for name, words in corpus.splits.items()}
    formulas = {name: text.replace(" \n ", "\n").splitlines() for name, text in texts.items()}
    assert sorted(formulas["test"]) == sorted(" ".join(sample.tokens) for sample in held)
    assert sorted(formulas["train"] + formulas["valid"]) == sorted(" ".join(sample.tokens) for sample in kept)
    assert formulas["valid"] and not {*formulas["valid"]} & {*formulas["train"]}
    assert sum(_validates([str(number)]) for number in range(2000)) == pytest.approx(200, abs=40)
    assert {*Vocabulary().words} - {*corpus.lexicon.words} == {*SPECIAL}
    captions = tmp_path / "data/train/caption.txt"
    captions.write_text(captions.read_text().replace("x", r"\aleph"))  # or it could rank for no network that reads it
    assert r"\aleph" in caption_corpus(open_archive(tmp_path)).lexicon.words


TINY = (
    "model: {character_size: 2, widths: 2, filters: 2, hidden: 4}\n"
    "training: {epochs: 4, batch_size: 2, steps: 5, threads: 1}\n"
)


@pytest.fixture
def recipe(tmp_path) -> str:
    (tmp_path / "tiny.yaml").write_text(TINY)
    return str(tmp_path / "tiny.yaml")


def test_the_command_runs_on_captions_and_says_so(recipe, tmp_path, capsys):
    archive = tiny_archive(tmp_path / "archive", train=100)
    given = ["reproduce-lm", "--crohme", str(archive), "--results", str(tmp_path), "--recipes"]
    app([*given, recipe], standalone_mode=False)
    said = capsys.readouterr().out
    assert "LATEX OF THE TRAINING CAPTIONS" in said and "plan: language models on captions" in said
    assert "tiny, seed 7: done" in said
    with pytest.raises(UserError, match=r"port-no-line-ends: text\.line_ends: false is for a text"):
        app([*given, "port-no-line-ends"], standalone_mode=False)
    (run,) = LanguageRun.under(*tmp_path.glob("local/foreign-*/runs"))
    assert run.scores["test_perplexity"] < len(SYMBOLS) + 2  # and the line's end
    header, _ = read_tensors(run.path / "weights.safetensors")
    assert header["words"][:2] == [UNKNOWN, LINE_END]


def test_a_job_of_several_is_that_of_the_recognizers(recipe, tmp_path, monkeypatch, capsys):
    """Processes and one after the other give the same weights; what is done stays, and one that fails stops none."""
    monkeypatch.setattr("hmerbench.benchmarks.tracking.track.track", lambda *_, **__: None)
    monkeypatch.setattr("hmerbench.benchmarks.tracking.track.live", nullcontext)
    texts = tmp_path / "text"
    texts.mkdir()
    for name, lines in {"train": 40, "valid": 20, "test": 10}.items():
        (texts / f"{name}.txt").write_text("".join(f"to be or not {'to' * (n % 3)}\n" for n in range(lines)))

    def reproduced(place: str, *more: str) -> dict[int, bytes]:
        given = ["reproduce-lm", "--ptb", str(texts), "--recipes", recipe, "--results", str(tmp_path / place)]
        app([*given, *more], standalone_mode=False)
        runs = {run.seed: run for run in LanguageRun.under(tmp_path / place / "runs")}
        return {seed: (run.path / "weights.safetensors").read_bytes() for seed, run in runs.items() if run.trained_here}

    together = reproduced("a", "--seeds", "7 8", "--jobs", "2")
    said = capsys.readouterr().out
    assert said.count(": done") == 2 and "tiny, seed 8: epoch 4/4, perplexity" in said
    assert together == reproduced("b", "--seeds", "7 8") and len(set(together.values())) == 2
    capsys.readouterr()
    assert reproduced("a", "--seeds", "7 8") == together and capsys.readouterr().out.count("already done (") == 2
    (broken,) = (tmp_path / "a/runs").glob("tiny/*-seed7-*")
    (broken / "checkpoint.safetensors").write_bytes(b"no weights")
    (broken / "weights.safetensors").unlink()
    with pytest.raises(UserError, match=r"checkpoint\.safetensors.*delete it"):
        reproduced("a", "--seeds", "7 9")
    assert len(list((tmp_path / "a/runs").glob("tiny/*-seed9-*/scores.json"))) == 1
    assert reproduced("a", "--seeds", "7", "--force")[7] == together[7]
    with pytest.raises(UserError, match="no recipe or no seed is given"):
        reproduced("a", "--seeds", "")
