"""What a page shows, made from run folders alone: facts and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vhl.errors import VHLError
from vhl.files import read_json
from vhl.report.counts import classes, last_rounds, partitions
from vhl.report.figure import Figure
from vhl.report.images import natural, pictures, planes
from vhl.report.looks import DARK, LIGHT, STROKES, look
from vhl.report.measures import accuracy, each_run, training
from vhl.report.shown import Method, Shown
from vhl.report.verdict import verdicts
from vhl.runs.command import command_of
from vhl.runs.compare import LAST, Comparison, Result, Row, compare
from vhl.runs.folder import RunFolder
from vhl.runs.statistics import Difference
from vhl.version import __version__

COMPARED = 20
"""With more runs a page is an index: a table and curves."""


def content(
    runs: Sequence[RunFolder],
    target: float | None = None,
    last: float = LAST,
    title: str = "",
    natural_from: Path | None = None,
) -> dict[str, Any]:
    """Everything on the page; a run that was given no round yet is left out.

    ``last`` is the share of the rounds that methods are judged by.
    ``natural_from`` is the data directory to take natural images from; unset, none are shown.
    """
    begun = [run for run in runs if any(record.accuracy is not None for record in run.records())]
    if not begun:
        raise VHLError("None of the runs has an evaluated round yet; there is nothing to show.")
    comparison = compare(begun, target, last)
    whole = len(begun) <= COMPARED
    places = {
        run.path: (number, found)
        for number, row in enumerate(comparison.rows)
        for run, found in zip(row.runs, row.results, strict=True)
    }
    shown = [Shown(run, places[run.path][0], run.experiment(), run.records()) for run in begun]
    methods = [_method(number, row) for number, row in enumerate(comparison.rows)]
    return {
        "title": title or _title(begun),
        "version": __version__,
        "whole": whole,
        "last": last,
        "groups": _groups(comparison, methods),
        "verdicts": [verdict.text for verdict in verdicts(comparison)] if whole else [],
        "runs": [_run(run, places[run.folder.path][1], whole) for run in shown],
        "figures": list(_figures(shown, methods, whole, natural_from)),
        "colours": {"light": LIGHT, "dark": DARK},
        "looks": [look(number) for number in range(len(LIGHT) * len(STROKES))],
    }


def _figures(
    runs: Sequence[Shown], methods: Sequence[Method], whole: bool, natural_from: Path | None
) -> Iterator[Figure]:
    yield from accuracy(runs, methods)
    if not whole:
        yield from each_run(runs)
        return
    yield from training(runs, methods)
    problems: dict[str, Shown] = {}
    for run in runs:
        problems.setdefault(run.problem, run)
    yield from partitions([*problems.values()])
    yield from pictures(runs)
    if natural_from is not None:
        yield from natural([*problems.values()], natural_from)
    yield from planes(runs, methods)
    yield from classes(runs, methods)
    yield from last_rounds(runs, methods)


def _method(number: int, row: Row) -> Method:
    best = row.over_seeds("best")
    plain = row.runs[0].experiment().objective.name == "plain"
    return Method(row.label, look(number, plain), best.mean if best else 0.0)


def _title(runs: Sequence[RunFolder]) -> str:
    """The run's name, or that of the folder which several runs share."""
    parents = {run.path.resolve().parent for run in runs}
    if len(runs) == 1:
        return runs[0].path.resolve().name
    return next(iter(parents)).name if len(parents) == 1 else f"{len(runs)} runs"


def _groups(comparison: Comparison, methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Methods, each with its gain over the same without virtual data."""
    partners = comparison.partners()
    pairs = {(id(v.row), id(v.against)): v.final for v in verdicts(comparison)}
    return [
        _group(comparison, row, method, pairs.get((id(row), id(other))))
        for row, method, other in zip(comparison.rows, methods, partners, strict=True)
    ]


def _group(comparison: Comparison, row: Row, method: Method, gain: Difference | None) -> dict[str, Any]:
    def over_seeds(measure: str) -> dict[str, Any] | None:
        found = row.over_seeds(measure)
        if found is None or not np.isfinite([found.mean, found.std]).all():
            return None
        return {"mean": found.mean, "std": found.std, "count": found.count}

    measures = ("best", "final", "rounds", "samples", "bytes", "drift", "compute")
    records = [record for run in row.runs for record in run.records()]
    return {
        "label": row.label,
        "seeds": row.seeds,
        "target": row.target,
        "look": method.look,
        **{measure: over_seeds(measure) for measure in measures},
        "speed_up": comparison.speed_up(row),
        "time": comparison.time(row),
        "models": sum(len(record.clients) for record in records),
        "left_out": sum(len(record.left_out) for record in records),
        "partly_tested": sum(record.tested is not None for record in records),
        "gain": None if gain is None else {"mean": gain.mean, "margin": gain.margin, "seeds": gain.seeds},
    }


def _run(run: Shown, reached: Result, whole: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": run.name,
        "group": run.method,
        "seed": run.experiment.seeds.batches,
        "rounds": run.experiment.rounds,
        "done": run.records[-1].round,
        "best": reached.best,
        "final": reached.final,
        "settings": run.settings,
        "environment": read_json(run.folder.path / "environment.json"),
    }
    if whole:
        found |= {"toml": run.experiment.toml(), "command": command_of(run.experiment)}
    return found
