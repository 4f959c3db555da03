"""`vhl data`: which datasets are there, getting the official files, and checking them."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from vhl.cli.display import console, errors, short
from vhl.data.check import check, listing
from vhl.data.download import get
from vhl.data.sources.base import data_directory
from vhl.errors import VHLError


def main(arguments: argparse.Namespace) -> None:
    directory = data_directory(arguments.data_dir)
    match arguments.action:
        case "list":
            _list(directory)
        case "get":
            _get(arguments.name, directory)
        case "check":
            _check(arguments.name, directory)


def _list(directory: Path) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2))
    for source in listing(directory):
        size = short(source.size, "B") if source.size else ""
        table.add_row(f"[cyan]{source.name}[/]", source.state, size, escape(source.summary))
    console.print(table)
    console.print(f"Files lie in {directory}.", markup=False, soft_wrap=True)


def _get(name: str, directory: Path) -> None:
    fetched = get(name, directory, console=errors)
    for file in fetched:
        console.print(str(file), markup=False, soft_wrap=True)
    if not fetched:
        console.print(f"{name}: nothing to fetch, it is there.", markup=False, soft_wrap=True)


def _check(name: str, directory: Path) -> None:
    """Say what was read; files that cannot be read, or are not the official ones, are an error."""
    report = check(name, directory)
    if not report.readable:
        raise VHLError(report.remark)
    assert report.shape is not None
    height, width, channels = report.shape
    console.print(
        f"{name}: {report.train:,} training and {report.test:,} test images of {report.classes} classes, "
        f"{height}×{width} pixels, {'grey' if channels == 1 else 'colour'}.",
        markup=False,
        soft_wrap=True,
    )
    if report.official is False:
        raise VHLError(f"{name}: {report.remark}")
    console.print(report.remark, markup=False, soft_wrap=True)
