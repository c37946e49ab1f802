"""`python -m hmerbench.evaluation.scoreboard`: score published systems, check their cards, add one."""

import gc
import hashlib
import shutil
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

import yaml

from hmerbench.evaluation import InputError, csv_text, run_program
from hmerbench.evaluation.lgeval import results_folder
from hmerbench.evaluation.scoreboard.board import COLUMNS, make_board
from hmerbench.evaluation.scoreboard.card import CARDS, ROOT, SYSTEM, SYSTEM_RULE, YEARS, checked, read_cards
from hmerbench.evaluation.scoreboard.markdown import markdown
from hmerbench.evaluation.scoring.inputs import read_predictions
from hmerbench.evaluation.scoring.tokens import formula_of, untokenized


def score(args: Namespace) -> None:
    """Score every system at hand, and write scoreboard.csv and scoreboard.md; rows of the others stay."""
    board = make_board(read_cards(args.cards), args.systems, args.crohme, args.results / "scoreboard.csv")
    if not board.rows:
        raise InputError(f"{args.cards}: the folder holds no cards (ID.yaml)")
    if not board.signatures:
        raise InputError(f"{args.systems}: holds predictions of no card; give the folder of systems")
    for note in board.notes:
        print(f"note: {note}", file=sys.stderr)
    args.results.mkdir(parents=True, exist_ok=True)
    for name, text in {"csv": csv_text(COLUMNS, board.rows), "md": markdown(board)}.items():
        results_folder.replace(str(args.results / f"scoreboard.{name}"), text)
        print(args.results / f"scoreboard.{name}")


def check(args: Namespace) -> None:
    """Check every card and, of the systems at hand, the checksums of their predictions."""
    systems = read_cards(args.cards)
    for system in systems:
        here = system.complete(args.systems)
        verified = len(list(system.files(args.systems))) if here else 0
        print(f"{system.key}: {f'{verified} files as on the card' if here else 'its predictions are not here'}")


def add(args: Namespace) -> None:
    """Turn predictions into a card; the files are copied into the folder of systems."""
    target = args.cards / f"{args.system}.yaml"
    if not SYSTEM.fullmatch(args.system):
        raise InputError(f"{args.system}: choose another name; {SYSTEM_RULE}")
    if not args.cards.is_dir():
        raise InputError(f"{args.cards}: there is no such folder; make it, or give another (--cards)")
    if target.exists():
        raise InputError(f"{target}: this card exists; choose another name, or delete it first")
    files, raw = {}, False
    for given in args.predictions:
        year, equals, name = given.partition("=")
        if not equals or year not in YEARS or year in files:
            raise InputError(f"{given}: must be YEAR=FILE with a year of {', '.join(YEARS)}, each given once")
        texts = read_predictions(Path(name))  # refuses what cannot be scored
        raw = raw or any(untokenized(formula_of(text)) for text in texts.values())
        files[year] = Path(name)
    if folders := [path for path in files.values() if path.is_dir()]:
        raise InputError(f"{folders[0]}: this is a folder, but a card names files; zip it")
    entries = {}
    for year, path in files.items():
        place = Path(args.system) / f"{year}{path.suffix}"
        entries[year] = {"path": place.as_posix(), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    names = ("name", "paper", "year", "url", "commit", "license", "training", "trained_on", "parameters")
    card = {name: getattr(args, name) for name in names} | {"tokenize": raw, "files": entries}
    checked(card, target)
    for year, path in files.items():  # before the card, which without them would stand in the way of another try
        place = args.systems / entries[year]["path"]
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.resolve() != place.resolve():
            shutil.copyfile(path, place)
    text = yaml.safe_dump(card, sort_keys=False, allow_unicode=True, width=118)
    results_folder.replace(str(target), text)
    print(f"{target}: written; add what its authors report, then make scoreboard")


def _parser() -> ArgumentParser:
    parser = ArgumentParser("python -m hmerbench.evaluation.scoreboard", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for run in (score, check, add):
        command = commands.add_parser(run.__name__, help=run.__doc__, description=run.__doc__)
        command.set_defaults(run=run)
        command.add_argument("--cards", type=Path, default=CARDS, help="folder of cards (%(default)s)")
        needed = run is add
        command.add_argument("--systems", type=Path, required=needed, help="folder of the systems' predictions")
        if run is score:
            command.add_argument("--crohme", type=Path, required=True, help="CROHME's data.zip")
            command.add_argument("--results", type=Path, default=ROOT / "results", help="where the board goes")
        if run is add:
            command.add_argument("system", help=f"name of the card; {SYSTEM_RULE}")
            command.add_argument("--predictions", action="append", required=True, help="YEAR=FILE, once per test set")
            command.add_argument("--name", required=True, help="the name to show")
            command.add_argument("--paper", required=True, help="title and address of the paper")
            command.add_argument("--year", type=int, required=True, help="year of the paper")
            command.add_argument("--url", required=True, help="where the predictions come from")
            command.add_argument("--commit", default="no repository", help="of the repository there")
            command.add_argument("--license", required=True, help='of the predictions, or "none stated"')
            command.add_argument("--training", required=True, help='"crohme", "more" or "test labels"')
            command.add_argument("--trained-on", required=True, help="the training data, in words")
            command.add_argument("--parameters", default="not stated", help="how many, in words")
    return parser


def main() -> int:
    """Run the command line."""
    gc.disable()  # graphs hold no reference cycles
    args = _parser().parse_args()
    return run_program(lambda: args.run(args))


if __name__ == "__main__":
    sys.exit(main())
