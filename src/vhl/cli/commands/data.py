"""`vhl data`: which datasets are there, getting the official files, and checking them."""

from __future__ import annotations

import argparse

from vhl.cli.arguments import Commands, add_command, add_data_dir, add_group
from vhl.errors import VHLError


def add(commands: Commands) -> None:
    actions = add_group(commands, "data", "get, list and check datasets")
    for name, run in (("list", _list), ("get", _get), ("check", _check)):
        action = add_command(actions, name, run)
        if run is not _list:
            action.add_argument("name", metavar="NAME", help="such as cifar10")
        add_data_dir(action)


def _list(arguments: argparse.Namespace) -> None:
    """Every data source, and whether its files are there."""
    from rich.markup import escape
    from rich.table import Table

    from vhl.cli.display import console, say, short
    from vhl.data.check import listing
    from vhl.data.sources.base import data_directory

    directory = data_directory(arguments.data_dir)
    table = Table(box=None, show_header=False, padding=(0, 2))
    for source in listing(directory):
        size = short(source.size, "B") if source.size else ""
        table.add_row(f"[cyan]{source.name}[/]", source.state, size, escape(source.summary))
    console.print(table)
    say(f"Files lie in {directory}.")


def _get(arguments: argparse.Namespace) -> None:
    """Download the official files, checked."""
    from vhl.cli.display import errors, say
    from vhl.data.download import get
    from vhl.data.sources.base import data_directory

    fetched = get(arguments.name, data_directory(arguments.data_dir), console=errors)
    for file in fetched:
        say(str(file))
    if not fetched:
        say(f"{arguments.name}: nothing to fetch, it is there.")


def _check(arguments: argparse.Namespace) -> None:
    """Say whether the files are readable, and official."""
    from vhl.cli.display import say
    from vhl.data.check import check
    from vhl.data.sources.base import data_directory

    name = arguments.name
    report = check(name, data_directory(arguments.data_dir))
    if not report.readable:
        raise VHLError(report.remark)
    assert report.shape is not None
    height, width, channels = report.shape
    say(
        f"{name}: {report.train:,} training and {report.test:,} test images of {report.classes} classes, "
        f"{height}×{width} pixels, {'grey' if channels == 1 else 'colour'}."
    )
    if report.official is False:
        raise VHLError(f"{name}: {report.remark}")
    say(report.remark)
