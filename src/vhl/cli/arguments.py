"""Arguments that several commands take. Nothing heavy is imported here: `vhl --help` answers at once."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class Parser(argparse.ArgumentParser):
    """Options are written out: of `--data x`, a slip for data=x, nobody should get `--data-dir x`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], None]
) -> argparse.ArgumentParser:
    """A command that ``run`` does; its docstring is what the help says."""
    parser = _add(commands, name, (run.__doc__ or "").partition("\n")[0])
    parser.set_defaults(main=run)
    return parser


def add_group(commands: Commands, name: str, summary: str, dest: str = "action") -> Commands:
    """A command that has commands of its own."""
    return _add(commands, name, summary).add_subparsers(dest=dest, metavar=dest.upper(), required=True)


def _add(commands: Commands, name: str, sentence: str) -> argparse.ArgumentParser:
    summary = sentence[:1].lower() + sentence[1:].removesuffix(".")
    return commands.add_parser(name, help=summary, description=summary)


def add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="EXPERIMENT.toml | KEY=VALUE",
        help="settings such as rounds=50, algorithm=fedprox, algorithm.mu=0.1; `vhl help KEY` explains them",
    )


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir", type=Path, help="where datasets lie (default: $VHL_DATA, else the user's cache)"
    )


def add_runs_dir(parser: argparse.ArgumentParser, default: str = "runs") -> None:
    parser.add_argument(
        "--runs-dir", type=Path, default=Path(default), help="where run folders go (default: %(default)s)"
    )


def add_running(parser: argparse.ArgumentParser, runs_dir: str = "runs") -> None:
    """What every command takes that runs experiments."""
    parser.add_argument(
        "--seeds", type=seeds, metavar="0,1,2", help="repeat with these seeds, on the same data"
    )
    add_runs_dir(parser, runs_dir)
    parser.add_argument(
        "--at-once",
        type=count,
        metavar="N",
        help="runs that go side by side in this process (default: 4 on a GPU, else 1)",
    )
    parser.add_argument(
        "--track",
        type=names,
        default=[],
        metavar="tensorboard,mlflow,wandb",
        help="copy every round to these tools as well, each an extra: pip install 'vhl[tensorboard]'",
    )
    add_data_dir(parser)


def add_live(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--live", action="store_true", help="show the report in a browser while it trains")
    add_server(parser)


def add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=0, help="of the page (default: any that is free)")
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="who may open it (default: this machine alone)"
    )


def add_compared(parser: argparse.ArgumentParser) -> None:
    """Runs, and how they are compared."""
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="run folders, the first of them the baseline; or a folder of runs, where plain ones come first",
    )
    parser.add_argument(
        "--target",
        type=percentage,
        help="accuracy in percent (default: what every seed of the first method reached)",
    )
    parser.add_argument(
        "--last",
        type=percentage,
        default="10",
        metavar="PERCENT",
        help="share of last rounds to average accuracies over and judge by (default: 10; more is steadier)",
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", metavar="best|last|ROUND", help="which model of the run (default: best, else last)"
    )


def names(text: str) -> list[str]:
    return text.split(",")


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 up")
    return int(text)


def percentage(text: str) -> float:
    """As a share of 1."""
    try:
        share = float(text) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage above 0 and up to 100")
    return share


def seeds(text: str) -> list[int]:
    try:
        found = [int(seed) for seed in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers such as 0,1,2") from None
    if min(found) < 0 or len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r}: seeds are different whole numbers from 0 up")
    return found
