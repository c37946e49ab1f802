"""results/CLAIMS.md: the papers' claims one by one, what the committed runs say of them, and verdicts of fixed meaning.

A claim (reference.yaml) is measured at every preset that has both of its rows. Its verdict rests on the presets whose
networks are their own and whose rows share at least two seeds; p-values are corrected over all of these and over the
claims of a family (Holm).
"""

import math
from collections.abc import Mapping, Sequence, Set
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist, variance
from typing import Any

from scipy import stats

from hmerbench.benchmarks.printing import counted
from hmerbench.benchmarks.report import presets
from hmerbench.benchmarks.report.documents import from_template, markdown
from hmerbench.benchmarks.report.paper import ORDER, REPORTED, YEAR, model_name, pooled, reference
from hmerbench.benchmarks.report.scored_runs import (
    LEVEL,
    MIN_SEEDS,
    POOLED,
    Rows,
    Step,
    correct,
    grouped,
    measure,
    rows_of,
)
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.strict_files import read_table
from hmerbench.evaluation.scoring.stats import spread_between_runs

VERDICTS = ("supported", "not supported", "contradicted", "open")
CASES = {"coverage": "a", "order": "b", "lengths": "c", "bttr": "d"}
POWER = 0.8
BORROWED = "no: weights of another preset"


def claims(results: Path) -> str:
    expressions = pooled()
    scored = any(run.scores for run in RunFolder.under(results / "reproduced"))
    (groups,) = grouped([results / "reproduced"], results, POOLED) if scored else ([],)
    groups = [runs for runs in groups if len(runs[0].ids) == expressions]
    groups.sort(key=lambda runs: presets.rung(runs[0].preset))
    rows = {runs[0].preset: rows_of(runs) for runs in groups if len({run.recipe for run in runs}) > 1}
    own = {preset for preset, of in rows.items() if not all(run.borrowed for runs in of.values() for run in runs)}
    measured = [(claim, _measure(claim, rows)) for claim in reference()["claims"]]
    for family in CASES:
        of_family = [steps for claim, steps in measured if claim["family"] == family]
        correct([step for steps in of_family for preset, step in steps.items() if preset in own])
        for preset in rows.keys() - own:
            correct([steps[preset] for steps in of_family if preset in steps])
    table = [_line(claim, steps, rows, own) for claim, steps in measured]
    table += [*_level(results / "scoreboard.csv"), *_language(results / "language.csv")]
    return from_template(
        "CLAIMS.md",
        verdicts={
            name: "; ".join(line["claim"].rpartition(" (")[0] for line in table if line["verdict"] == f"**{name}**")
            for name in VERDICTS
        },
        presets=[_preset(preset, of, own) for preset, of in rows.items()],
        expressions=f"{expressions:,}",
        year=YEAR,
        claims=markdown(table),
        visible=[line for preset, of in rows.items() if preset in own for line in _visible_with(preset, of)],
        **_seeds_of_the_paper(),
    )


def _preset(preset: str, rows: Rows, own: Set[str]) -> dict[str, str]:
    """On what its numbers rest: seeds, programs, devices, and whether verdicts do."""
    every = [run for runs in rows.values() for run in runs]
    external = any(run.external for run in every)
    devices = {place.get("device") or "unknown" for run in every for place in run.folder.environments}
    return {
        "name": preset,
        "seeds": presets.number_range([len(runs) for recipe, runs in rows.items() if recipe in ORDER]),
        "program": "in part a program that is not in this repository" if external else "this suite",
        "devices": ", ".join(sorted(devices)),
        "counts": "yes" if counts(preset, rows, own) else "no: one seed" if preset in own else BORROWED,
    }


def counts(preset: str, rows: Rows, own: Set[str]) -> bool:
    """Whether verdicts rest on a preset: its networks are its own, and a row has MIN_SEEDS."""
    return preset in own and any(len(runs) >= MIN_SEEDS for runs in rows.values())


def _measure(claim: Mapping[str, Any], rows: Mapping[str, Rows]) -> dict[str, Step]:
    """The claim's difference at each preset that has its rows, with the paper's beside it."""
    found = {}
    for preset, of in rows.items():
        if claim["from"] in of and claim["to"] in of:
            (found[preset],) = measure(of, [(claim["from"], claim["to"])], *_parts(claim, of))
            found[preset].reported = reported(claim)
    return found


def _meant(claim: Mapping[str, Any], tokens: float) -> bool:
    return claim.get("above", 0) < tokens <= claim.get("to_tokens", math.inf)


def _parts(claim: Mapping[str, Any], rows: Rows) -> list[list[str]]:
    """The expressions that a claim is about, by their lengths, and those that they are compared with."""
    if not {"above", "to_tokens"} & claim.keys():
        return []
    run = next(iter(rows.values()))[0]
    verdicts = {name: run.folder.expressions(name) for name in dict.fromkeys(key.split("/")[0] for key in run.ids)}
    lengths = {f"{name}/{id_}": row.length for name, of_set in verdicts.items() for id_, row in of_set.items()}
    meant = [key for key, tokens in lengths.items() if tokens is not None and _meant(claim, tokens)]
    if not claim.get("than_others"):
        return [meant]
    chosen = {*meant}
    return [meant, [key for key in lengths if key not in chosen]]


def reported(claim: Mapping[str, Any]) -> float | None:
    """The paper's difference on `YEAR`: of Table 1, or of Fig. 3 for some lengths; None if it prints none."""
    if not {"above", "to_tokens"} & claim.keys():
        ends = claim["to"], claim["from"]
        return REPORTED[ends[0]] - REPORTED[ends[1]] if {*ends} <= REPORTED.keys() else None
    paper, upper_ends = reference()["fig3"], (10, 20, 30, 40, 50, math.inf)

    def rate(recipe: str, inside: bool) -> float:
        buckets = zip(paper["rates"][model_name(recipe)], paper["n"], upper_ends, strict=True)
        chosen = [(percent, n) for percent, n, end in buckets if _meant(claim, end) is inside]
        return sum(percent * n for percent, n in chosen) / sum(n for _, n in chosen)

    gain = rate(claim["to"], True) - rate(claim["from"], True)
    return gain - (rate(claim["to"], False) - rate(claim["from"], False)) if claim.get("than_others") else gain


def verdict(steps: Sequence[Step]) -> str:
    """The verdict on a claim, from its steps at the presets that count."""
    if any(step.verdict == "opposite" for step in steps):
        return "contradicted"
    if steps and all(step.verdict == "significant" for step in steps):
        return "supported"
    excluded = [step.reported is not None and step.high < step.reported for step in steps]
    if steps and all(excluded) and not any(step.verdict == "significant" for step in steps):
        return "not supported"
    return "open"


def _line(
    claim: Mapping[str, Any], steps: Mapping[str, Step], rows: Mapping[str, Rows], own: set[str]
) -> dict[str, str]:
    told = reported(claim)
    line = {
        "claim": f"{claim['claim']} ({claim['where']})",
        "reported": "better" if told is None else f"{told:+.2f}",
        "family": CASES[claim["family"]],
    }
    counted_steps = [step for preset, step in steps.items() if preset in own and step.tested]
    line["verdict"] = f"**{verdict(counted_steps)}**"
    for preset in rows:
        heading = f"`{preset}`" if counts(preset, rows[preset], own) else f"(`{preset}`)"
        line[heading] = _cell(steps[preset]) if preset in steps else ""
    return line


def _cell(step: Step) -> str:
    """The difference, its interval, the corrected p if it is over seeds, and the number of seeds."""
    return f"{step.told()}, {counted(step.seeds, 'seed') if step.seeds else 'no seed in common'}"


def _level(table: Path) -> list[dict[str, str]]:
    """The claim on how much CoMER reads: the authors' predictions, counted again."""
    if not table.exists():
        return []
    found = {row["year"]: row for row in read_table(table) if row["system"] == "comer" and row["missing"]}
    years, told = ", ".join(reference()["table2"]), [models["CoMER"][0] for models in reference()["table2"].values()]
    counted_again = [f"{100 * int(found[year]['exact']) / int(found[year]['n']):.2f}" for year in found]
    words = f"the released network's predictions, counted again: {', '.join(counted_again)}; not trained here"
    line = {"claim": f"CoMER reads so many % of {years} (Table 2)", "family": "–", "verdict": "**open**"}
    return [line | {"reported": ", ".join(f"{rate:.2f}" for rate in told), "elsewhere": words}]


def _language(table: Path) -> list[dict[str, str]]:
    """The claims on language models: perplexities, of too few seeds for an interval."""
    if not table.exists():
        return []
    found = {row["recipe"]: row for row in read_table(table)}
    lines = []
    for claim in reference()["language_claims"]:
        worse, better = found[claim["from"]], found[claim["to"]]
        if not (worse["reproduced"] and better["reproduced"]):
            continue
        told, ours = (float(better[key]) - float(worse[key]) for key in ("reported", "reproduced"))
        seeds = f"{worse['seeds']} and {counted(int(better['seeds']), 'seed')}: no interval"
        line = {"claim": f"{claim['claim']} ({claim['where']})", "reported": f"{told:+.1f} perplexity", "family": "–"}
        line["verdict"] = "**open**"
        line["elsewhere"] = f"{ours:+.2f} perplexity, {seeds}"
        lines.append(line)
    return lines


def _visible_with(preset: str, rows: Rows) -> list[dict[str, str]]:
    """What three seeds a row can see at a preset, by how much its runs differ; nothing where that is not known."""
    rates = {recipe: {run.seed: run.exprate for run in runs} for recipe, runs in rows.items()}
    spread, alike = spread_between_runs(rates), [[*of.values()] for of in rates.values() if len(of) > 1]
    if spread is None or not alike:
        return []
    df = sum(len(row) - 1 for row in alike)
    pooled = sum(variance(row) * (len(row) - 1) for row in alike) / df  # of runs within their rows
    blocks, apart = _visible(spread.variance, 2 * (len(ORDER) - 1)), _visible(pooled, 4)
    numbers = {"of_block": math.sqrt(spread.variance), "of_row": math.sqrt(pooled)}
    shown = {name: f"{value:.2f}" for name, value in numbers.items()}
    return [shown | {"preset": preset, "in_blocks": f"{blocks:.1f}", "alone": f"{apart:.1f}"}]


def _seeds_of_the_paper() -> dict[str, str]:
    """What the one published spread of seeds says of Table 1."""
    _, sd = reference()["seed_spread"][YEAR]
    limit = NormalDist().inv_cdf(0.975) * math.sqrt(2) * sd
    spreads = ", ".join(f"{each:.2f} on {year}" for year, (_, each) in reference()["seed_spread"].items())
    gains = {f"{model_name(a)} → {model_name(b)}": REPORTED[b] - REPORTED[a] for a, b in pairwise(ORDER)}
    covered = ", ".join(f"{name} ({gain:+.2f})" for name, gain in gains.items() if abs(gain) < limit)
    return {"spreads": spreads, "limit": f"{limit:.1f}", "covered": covered}


def _visible(of_a_run: float, df: int, seeds: int = 3) -> float:
    """The difference between two rows that a test finds at LEVEL with POWER, if nothing but seeds varies."""
    return float(stats.t.ppf(1 - LEVEL / 2, df) + stats.t.ppf(POWER, df)) * math.sqrt(2 * of_a_run / seeds)
