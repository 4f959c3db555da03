"""What a page shows, as plain values made from run folders alone."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vhl import __version__
from vhl.errors import VHLError
from vhl.files import read_json
from vhl.models.files import read_tensors
from vhl.report.embedding import embed
from vhl.report.looks import DARK, DASHES, LIGHT, MOST_CLIENTS, windows
from vhl.report.verdict import verdicts
from vhl.runs.command import command_of
from vhl.runs.compare import LAST, Comparison, Result, Row, compare
from vhl.runs.dotted import dotted
from vhl.runs.folder import RunFolder
from vhl.runs.record import Record
from vhl.runs.statistics import Difference

POINTS = 800
"""Samples in one picture of features: t-SNE takes seconds for so many."""
COMPARED = 20
"""With more runs a page is an index: a table and curves."""
_COLUMNS = (
    "accuracy",
    "natural_accuracy",
    "validation_accuracy",
    "train_accuracy",
    "virtual_accuracy",
    "drift",
    "learning_rate",
)
_DIGITS = 6


@dataclass
class _Shelf:
    """Things that several runs have in common, kept once."""

    things: list[Any] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)

    def put(self, thing: Any) -> int:
        key = hashlib.sha256(json.dumps(thing, sort_keys=True).encode()).hexdigest()
        if key not in self.places:
            self.places[key] = len(self.things)
            self.things.append(thing)
        return self.places[key]


def content(
    runs: Sequence[RunFolder], target: float | None = None, last: float = LAST, title: str = ""
) -> dict[str, Any]:
    """Everything on the page; one that was given no round yet is left out."""
    begun = evaluated(runs)
    if not begun:
        raise VHLError("None of the runs has an evaluated round yet; there is nothing to show.")
    comparison = compare(begun, target, last)
    whole = len(begun) <= COMPARED
    problems, pictures = _Shelf(), _Shelf()
    places = {
        run.path: (number, found)
        for number, row in enumerate(comparison.rows)
        for run, found in zip(row.runs, row.results, strict=True)
    }
    shown = [_run(run, *places[run.path], problems, pictures, whole) for run in begun]
    return {
        "title": title or _title(begun),
        "version": __version__,
        "whole": whole,
        "last": last,
        "groups": _groups(comparison),
        "verdicts": [verdict.text for verdict in verdicts(comparison)] if whole else [],
        "runs": shown,
        "problems": problems.things,
        "pictures": pictures.things,
        "windows": windows(shown),
        "look": {"light": LIGHT, "dark": DARK, "dashes": DASHES, "most_clients": MOST_CLIENTS},
    }


def evaluated(runs: Sequence[RunFolder]) -> list[RunFolder]:
    """Those that have something to show."""
    return [run for run in runs if any(record.accuracy is not None for record in run.records())]


def _title(runs: Sequence[RunFolder]) -> str:
    """The run's name, or that of the folder which several runs share."""
    parents = {run.path.resolve().parent for run in runs}
    if len(runs) == 1:
        return runs[0].path.resolve().name
    return next(iter(parents)).name if len(parents) == 1 else f"{len(runs)} runs"


def _groups(comparison: Comparison) -> list[dict[str, Any]]:
    """Methods, each with its gain over the same without virtual data."""
    partners = comparison.partners()
    pairs = {(id(v.row), id(v.against)): v.final for v in verdicts(comparison)}
    return [
        _group(comparison, row, pairs.get((id(row), id(other))))
        for row, other in zip(comparison.rows, partners, strict=True)
    ]


def _group(comparison: Comparison, row: Row, gain: Difference | None) -> dict[str, Any]:
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
        "plain": row.runs[0].experiment().objective.name == "plain",
        **{measure: over_seeds(measure) for measure in measures},
        "speed_up": comparison.speed_up(row),
        "time": comparison.time(row),
        "models": sum(len(record.clients) for record in records),
        "left_out": sum(len(record.left_out) for record in records),
        "partly_tested": sum(record.tested is not None for record in records),
        "gain": None if gain is None else {"mean": gain.mean, "margin": gain.margin, "seeds": gain.seeds},
    }


def _run(
    run: RunFolder, group: int, reached: Result, problems: _Shelf, pictures: _Shelf, whole: bool
) -> dict[str, Any]:
    experiment, records = run.experiment(), run.records()
    settings = {key: value for key, value in dotted(experiment).items() if value is not None}
    found: dict[str, Any] = {
        "name": run.path.resolve().name,
        "group": group,
        "seed": experiment.seeds.batches,
        "rounds": experiment.rounds,
        "best": reached.best,
        "final": reached.final,
        "settings": settings,
        "columns": _columns(records, whole) | (_theory(run, records) if whole else {}),
        "environment": read_json(run.path / "environment.json"),
    }
    if whole:
        data = run.data()
        names = ("classes", "sites", "counts", "heterogeneity", "test_samples")
        problem = {name: data[name] for name in names}
        problem |= {"data": settings["data.name"], "about": _about(settings)}
        found |= {
            "toml": experiment.toml(),
            "command": command_of(experiment),
            "problem": problems.put(problem),
            "picture": _picture(run.path / "virtual.png", pictures),
            "per_class": next((r.per_class for r in reversed(records) if r.per_class is not None), None),
            "last": _last(run.path / "last.safetensors"),
            "features": _features(run),
        }
    return found


def _about(settings: Mapping[str, Any]) -> str:
    """Which data, and how they were divided."""
    partition = {k.removeprefix("partition."): v for k, v in settings.items() if k.startswith("partition.")}
    told = ("name", "clients", "max_tries")  # or without a meaning for who looks at the result
    more = [f"{name} {value}" for name, value in partition.items() if name not in told]
    return ", ".join([settings["data.name"], partition["name"], *more])


def _columns(records: Sequence[Record], whole: bool) -> dict[str, Any]:
    """The rounds; samples and seconds are counted from the start."""
    names = _COLUMNS if whole else ("accuracy",)
    columns: dict[str, Any] = {name: [_short(getattr(r, name)) for r in records] for name in names}
    columns["round"] = [record.round for record in records]
    columns["samples"] = np.cumsum([record.samples for record in records]).tolist()
    columns["seconds"] = [_short(s) for s in np.cumsum([record.seconds for record in records]).tolist()]
    if whole:
        terms = dict.fromkeys(term for record in records for term in record.loss)
        columns["loss"] = {term: [_short(r.loss.get(term)) for r in records] for term in terms}
    return columns


def _theory(run: RunFolder, records: Sequence[Record]) -> dict[str, Any]:
    """What `vhl theory` measured, where it was called: terms by name, empty in rounds that it left out."""
    file = run.path / "theory.json"
    measured = {row.pop("round"): row for row in read_json(file)["terms"]} if file.is_file() else {}
    terms = dict.fromkeys(term for row in measured.values() for term in row)
    rows = [measured.get(record.round, {}) for record in records]
    return {"theory": {term: [_short(row.get(term)) for row in rows] for term in terms}}


def _short(value: float | None) -> float | None:
    """A few digits, and nothing that JSON does not know."""
    return float(f"{value:.{_DIGITS}g}") if value is not None and np.isfinite(value) else None


def _picture(file: Path, pictures: _Shelf) -> int | None:
    if not file.is_file():
        return None
    return pictures.put("data:image/png;base64," + base64.b64encode(file.read_bytes()).decode())


def _last(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    tensors, _ = read_tensors(file)
    return {name: _rounded(tensor) for name, tensor in tensors.items()}


def _rounded(tensor: Tensor) -> Any:
    return [_short(v) for v in tensor.tolist()] if tensor.is_floating_point() else tensor.tolist()


def _features(run: RunFolder) -> list[dict[str, Any]]:
    """A picture for each round whose features were saved."""
    files = sorted((run.path / "features").glob("round-*.safetensors"))
    return [
        {"round": int(file.stem.removeprefix("round-")), "points": _plane(file, file.stat().st_mtime_ns)}
        for file in files
    ]


@cache  # a page that is renewed every few seconds must not pay for t-SNE each time
def _plane(file: Path, changed: int) -> list[list[Any]]:
    """Samples of each kind in each model, the same in all, together in one plane; not those that diverged."""
    tensors, _ = read_tensors(file)
    groups = sorted({name.rpartition(".")[0] for name in tensors if name.endswith(".features")})
    share, rng = POINTS // len(groups), np.random.default_rng(0)
    chosen = {kind: rng.permutation(_count(tensors, kind))[:share] for kind in ("test", "virtual")}
    values, points = [], []
    for group in groups:
        model, kind = group.split(".")
        features = tensors[f"{group}.features"].numpy()[chosen[kind]]
        labels = tensors[f"{group}.labels"].numpy()[chosen[kind]]
        finite = np.isfinite(features).all(1)
        values.append(features[finite])
        points += [[int(label), model, kind] for label in labels[finite]]
    everything = np.concatenate(values)
    plane = embed(everything) if len(everything) > 1 else np.zeros((len(everything), 2))
    return [[round(float(x), 2), round(float(y), 2), *p] for (x, y), p in zip(plane, points, strict=True)]


def _count(tensors: Mapping[str, Tensor], kind: str) -> int:
    return next((len(t) for name, t in tensors.items() if name.endswith(f".{kind}.labels")), 0)
