"""results/CLAIMS.md: the papers' claims one by one, what the committed runs say of them, and verdicts of fixed meaning.

A claim (reference.yaml) is measured at every preset that has both of its rows. Its verdict rests on the presets whose
networks are their own and whose rows share at least two seeds; p-values are corrected over all of these and over the
claims of a family (Holm), those of a preset that reads with another's weights within it.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from statistics import variance
from typing import Any

from scipy import special

from hmerbench.benchmarks.printing import counted
from hmerbench.benchmarks.report import presets
from hmerbench.benchmarks.report.documents import from_template, markdown, undamaged
from hmerbench.benchmarks.report.paper import ORDER, REPORTED, YEAR, YEARS, model_name, pooled, reference
from hmerbench.benchmarks.report.scored_runs import (
    LEVEL,
    MIN_SEEDS,
    POOLED,
    Group,
    Step,
    correct,
    grouped,
    measure,
    years_are_read,
)
from hmerbench.benchmarks.strict_files import read_table
from hmerbench.evaluation.scoring.stats import spread_between_runs

VERDICTS = ("supported", "not supported", "contradicted", "open")
CASES = {"coverage": "a", "order": "b", "lengths": "c", "bttr": "d", "tree": "e"}
POWER = 0.8
SEEDS_OF_SPREAD = 5  # behind each of the published deviations (reference.yaml)


def claims(results: Path) -> str:
    (groups,) = grouped([results / "reproduced"], results, POOLED, YEARS) if years_are_read(results) else ([],)
    shown = [group for group in groups if len(group.right) == pooled() and len(group.recipes) > 1]
    by_preset = {group.preset: group for group in sorted(shown, key=lambda group: presets.rung(group.preset))}
    measured = [(claim, _measure(claim, by_preset)) for claim in reference()["claims"]]
    own = [preset for preset, group in by_preset.items() if not group.borrowed]
    for family in CASES:
        for alike in (own, *([preset] for preset in by_preset if preset not in own)):
            of_family = [steps for claim, steps in measured if claim["family"] == family]
            correct([steps[preset] for steps in of_family for preset in alike if preset in steps])
    table = [_line(claim, steps, by_preset) for claim, steps in measured]
    for path, lines, fix in (("scoreboard", _level, "make scoreboard"), ("language", _language, "make tables")):
        with undamaged(path := results / f"{path}.csv", fix=fix):
            table += lines(path)
    return from_template(
        "CLAIMS.md",
        verdicts={
            name: "; ".join(line["claim"].rpartition(" (")[0] for line in table if line["verdict"] == f"**{name}**")
            for name in VERDICTS
        },
        presets=[_preset(group) for group in by_preset.values()],
        expressions=f"{pooled():,}",
        year=YEAR,
        claims=markdown(table),
        visible=[line for preset in own for line in _visible_with(by_preset[preset])],
        **_seeds_of_the_paper(),
    )


def _preset(group: Group) -> dict[str, str]:
    """On what its numbers rest: seeds, programs, devices, and whether verdicts do."""
    runs = group.runs.values()
    devices = {place.get("device") or "unknown" for run in runs for place in run.environments}
    why_not = "no: weights of another preset" if group.borrowed else "no: one seed"
    return {
        "name": group.preset,
        "seeds": presets.number_range(Counter(recipe for recipe, _ in group.runs if recipe in ORDER).values()),
        "program": "in part a program that is not in this repository"
        if any(r.external for r in runs)
        else "this suite",
        "devices": ", ".join(sorted(devices)),
        "counts": "yes" if _counts(group) else why_not,
    }


def _counts(group: Group) -> bool:
    """Whether verdicts rest on a preset: its networks are its own, and two rows share MIN_SEEDS."""
    seeds = [{seed for row, seed in group.runs if row == recipe} for recipe in group.recipes]
    return not group.borrowed and any(len(a & b) >= MIN_SEEDS for a, b in combinations(seeds, 2))


def _measure(claim: Mapping[str, Any], groups: Mapping[str, Group]) -> dict[str, Step]:
    """The claim's difference at each preset that has its rows, with the paper's beside it."""
    found = {}
    for preset, group in groups.items():
        if {claim["from"], claim["to"]} <= {*group.recipes}:
            pair, parts = [(claim["from"], claim["to"])], _parts(claim, group)
            (found[preset],) = measure(group, pair, *parts)
            of_year = [[key for key in part if key.startswith(f"{YEAR}/")] for part in parts or [group.right.index]]
            found[preset].reported, (found[preset].of_year,) = reported(claim), measure(group, pair, *of_year)
    return found


def _meant(claim: Mapping[str, Any], tokens: float) -> bool:
    return claim.get("above", 0) < tokens <= claim.get("to_tokens", math.inf)


def _parts(claim: Mapping[str, Any], group: Group) -> list[list[str]]:
    """The expressions that a claim is about, by their lengths, and those that they are compared with."""
    if not {"above", "to_tokens"} & claim.keys():
        return []
    run = next(iter(group.runs.values()))
    verdicts = {name: run.expressions(name) for name in dict.fromkeys(key.split("/")[0] for key in group.right.index)}
    lengths = {f"{name}/{id_}": row.length for name, of_set in verdicts.items() for id_, row in of_set.items()}
    meant = {key: tokens is not None and _meant(claim, tokens) for key, tokens in lengths.items()}
    parts = (True, False) if claim.get("than_others") else (True,)
    return [[key for key, is_meant in meant.items() if is_meant is part] for part in parts]


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
    excluded = [step.reported is not None and (step.of_year or step).high < step.reported for step in steps]
    if steps and all(excluded) and not any(step.verdict == "significant" for step in steps):
        return "not supported"
    return "open"


def _line(claim: Mapping[str, Any], steps: Mapping[str, Step], groups: Mapping[str, Group]) -> dict[str, str]:
    told = reported(claim)
    tested = [step for preset, step in steps.items() if step.tested and not groups[preset].borrowed]
    of_some = {f"; {step.images:,} images" for step in steps.values() if step.images < pooled()}  # of some lengths
    line = {
        "claim": f"{claim['claim']} ({claim['where']}{''.join(of_some)})",
        "reported": "better" if told is None else f"{told:+.2f}",
        "family": CASES[claim["family"]],
        "verdict": f"**{verdict(tested)}**",
    }
    headings = {preset: f"`{preset}`" if _counts(group) else f"(`{preset}`)" for preset, group in groups.items()}
    line |= {headings[preset]: _cell(steps[preset]) if preset in steps else "" for preset in groups}
    if told is None or not tested or any(step.verdict in ("significant", "opposite") for step in tested):
        return line
    years = [(preset, step.of_year) for preset, step in steps.items() if step in tested and step.of_year]
    intervals = [f"`{preset}` {of_year.low:+.1f} to {of_year.high:+.1f}" for preset, of_year in years]
    return line | {"besides": f"on {YEAR} alone: {', '.join(intervals)}"}


def _cell(step: Step) -> str:
    """The difference, its interval, the corrected p if it is over seeds, and the number of seeds."""
    return f"{step.told()}, {counted(step.seeds, 'seed') if step.seeds else 'no seed in common'}"


def _open(claim: str, reported: str, besides: str) -> dict[str, str]:
    """The line of a claim that no preset can decide."""
    return {"claim": claim, "reported": reported, "family": "–", "verdict": "**open**", "besides": besides}


def _level(table: Path) -> list[dict[str, str]]:
    """The claim on how much CoMER reads: the authors' predictions, counted again."""
    if not table.exists():
        return []
    rows = [row for row in read_table(table) if row["system"] == "comer" and row["year"] in YEARS]
    found = {row["year"]: row for row in rows if row["missing"]}  # by the paper's scorer
    again = ", ".join(f"{100 * int(row['exact']) / int(row['n']):.2f}" for row in found.values())
    told = {year: f"{models['CoMER'][0]:.2f}" for year, models in reference()["table2"].items()}
    words = f"the released network's predictions, counted again: {again}; not trained here"
    return [_open(f"CoMER reads so many % of {', '.join(told)} (Table 2)", ", ".join(told.values()), words)]


def _language(table: Path) -> Iterator[dict[str, str]]:
    """The claims on language models: perplexities, of too few seeds for an interval."""
    found = {row["recipe"]: row for row in read_table(table)} if table.exists() else {}
    for claim in reference()["language_claims"] if found else ():
        worse, better = found[claim["from"]], found[claim["to"]]
        if worse["reproduced"] and better["reproduced"]:
            told, ours = (float(better[key]) - float(worse[key]) for key in ("reported", "reproduced"))
            seeds = f"{worse['seeds']} and {counted(int(better['seeds']), 'seed')}: no interval"
            words = f"{ours:+.2f} perplexity, {seeds}"
            yield _open(f"{claim['claim']} ({claim['where']})", f"{told:+.1f} perplexity", words)


def _visible_with(group: Group) -> list[dict[str, str]]:
    """What three seeds a row can see at a preset, by how much its runs differ; nothing where that is not known."""
    rates = group.rates()
    spread, alike = spread_between_runs(rates), [[*of.values()] for of in rates.values() if len(of) > 1]
    if spread is None or not alike:
        return []
    df = sum(len(row) - 1 for row in alike)
    of_row = sum(variance(row) * (len(row) - 1) for row in alike) / df  # of runs within their rows
    blocks, apart = _visible(spread.variance, 2 * (len(ORDER) - 1)), _visible(of_row, 4)
    shown = {"of_block": f"{math.sqrt(spread.variance):.2f}", "of_row": f"{math.sqrt(of_row):.2f}"}
    return [shown | {"preset": group.preset, "in_blocks": f"{blocks:.1f}", "alone": f"{apart:.1f}"}]


def _seeds_of_the_paper() -> dict[str, str]:
    """What the one published spread of seeds says of Table 1."""
    _, sd = reference()["seed_spread"][YEAR]
    limit = float(special.stdtrit(SEEDS_OF_SPREAD - 1, 0.975)) * math.sqrt(2) * sd
    spreads = ", ".join(f"{each:.2f} on {year}" for year, (_, each) in reference()["seed_spread"].items())
    gains = {f"{model_name(a)} → {model_name(b)}": REPORTED[b] - REPORTED[a] for a, b in pairwise(ORDER)}
    within = [f"{name} ({gain:+.2f})" for name, gain in gains.items() if abs(gain) < limit]
    covered = ("all" if len(within) == len(gains) else "these") + f" steps of Table 1: {', '.join(within)}"
    return {"spreads": spreads, "limit": f"{limit:.1f}", "covered": covered}


def _visible(of_a_run: float, df: int) -> float:
    """The difference between two rows of three seeds that a test finds at LEVEL with POWER, if nothing else varies."""
    return float(special.stdtrit(df, 1 - LEVEL / 2) + special.stdtrit(df, POWER)) * math.sqrt(2 * of_a_run / 3)
