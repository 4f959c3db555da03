"""`vhl predict`: the classes of images."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from vhl.cli.display import console, percent
from vhl.data.sources._decode import SUFFIXES
from vhl.errors import VHLError
from vhl.runs.classifier import Classifier, classifier, load_model
from vhl.runs.folder import RunFolder
from vhl.runs.model import trained_model


def main(arguments: argparse.Namespace) -> None:
    model = _model(arguments.run, arguments.model)
    files = _images(arguments.path)
    table = Table("image", "class", "probability")
    for file, row in zip(files, model.probabilities(files), strict=True):
        name = model.classes[int(row.argmax())]
        table.add_row(escape(str(file)), escape(name), percent(float(row.max())))
    console.print(table)


def _model(path: Path, which: str | None) -> Classifier:
    return load_model(path) if path.is_file() else classifier(*trained_model(RunFolder(path), which))


def _images(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
    if not path.exists():
        raise VHLError(f"{path} does not exist; give an image, or a folder of images.")
    if not found:
        raise VHLError(f"{path} holds no images; give an image, or a folder of images.")
    return found
