"""`vhl predict`: the classes of images."""

from __future__ import annotations

import argparse
from pathlib import Path

from vhl.cli.arguments import Commands, add_command, add_model
from vhl.errors import VHLError


def add(commands: Commands) -> None:
    parser = add_command(commands, "predict", _predict)
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="a run folder, or a file that `vhl export` wrote"
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="an image, or a folder of images")
    add_model(parser)


def _predict(arguments: argparse.Namespace) -> None:
    """Name the classes of images with a run's model."""
    from rich.markup import escape
    from rich.table import Table

    from vhl.cli.display import console, percent
    from vhl.runs.classifier import classifier, load_model
    from vhl.runs.folder import RunFolder
    from vhl.runs.model import trained_model

    if arguments.run.is_file():
        model = load_model(arguments.run)
    else:
        model = classifier(*trained_model(RunFolder(arguments.run), arguments.model))
    files = _images(arguments.path)
    table = Table("image", "class", "probability")
    for file, row in zip(files, model.probabilities(files), strict=True):
        name = model.classes[int(row.argmax())]
        table.add_row(escape(str(file)), escape(name), percent(float(row.max())))
    console.print(table)


def _images(path: Path) -> list[Path]:
    from vhl.data.decode import SUFFIXES

    if path.is_file():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
    if not path.exists():
        raise VHLError(f"{path} does not exist; give an image, or a folder of images.")
    if not found:
        raise VHLError(f"{path} holds no images; give an image, or a folder of images.")
    return found
