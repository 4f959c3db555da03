"""The run folders that some paths mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from vhl.errors import VHLError
from vhl.runs.folder import RunFolder


def find_runs(paths: Iterable[Path]) -> list[RunFolder]:
    """The run folders among these paths, and those anywhere inside a path that is none itself.

    Of the latter those without virtual data come first: nobody put them in an order, and the first is what
    others are compared with.
    """
    found = []
    for path in paths:
        if path.suffix == ".html" and path.is_file():
            continue  # a page about runs, caught by a pattern as runs/*
        runs = sorted(_runs_in(path), key=lambda run: run.experiment().objective.name != "plain")
        if not runs:
            raise VHLError(f"{path} is no run folder and holds none; `vhl run` makes them under runs/.")
        found += runs
    return list({run.path.resolve(): run for run in found}.values())  # named twice is still one seed


def _runs_in(path: Path) -> Iterator[RunFolder]:
    """Nothing is searched inside a run, nor where a link leads unless that is a run."""
    if RunFolder(path).exists:
        yield RunFolder(path)
    elif path.is_dir():
        for inside in sorted(path.iterdir()):
            if not inside.is_symlink() or RunFolder(inside).exists:
                yield from _runs_in(inside)
