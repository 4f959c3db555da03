"""What is to be run for some rows, and in which order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from vhl.algorithms.base import Algorithm
from vhl.algorithms.feddf import FedDF
from vhl.config.registry import build, suggest
from vhl.errors import VHLError
from vhl.experiment import Experiment, Profile
from vhl.objectives.base import Objective
from vhl.paper.evidence import Evidence, asked, generator, identity
from vhl.paper.row import GENERATOR, Row
from vhl.paper.rows import rows
from vhl.runs.dotted import dotted

_IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "fmnist": 60_000, "svhn": 73_257}
_MODELS = {"resnet8": 0.022, "resnet10": 0.45, "resnet18": 1.0, "resnet34": 2.1, "resnet50": 2.3}
"""Multiply-adds of one image, relative to ResNet-18."""
_Waiting = tuple[tuple[float, ...], Experiment]


@dataclass(frozen=True)
class Request:
    """What a person asks for."""

    rows: Sequence[Row]
    profile: Profile = "paper"
    virtual: Any = GENERATOR
    rounds: int | None = None
    """Unset is the paper's number."""
    seeds: Sequence[int] = (0,)


def select(patterns: Iterable[str]) -> list[Row]:
    """Rows by name, by the beginning of one (``further/naive``) or by a pattern (``*/fedavg*``)."""
    chosen: dict[str, Row] = {}
    for pattern in patterns:
        found = [
            name
            for name in rows()
            if name == pattern or name.startswith(f"{pattern}/") or fnmatchcase(name, pattern)
        ]
        if not found:
            raise VHLError(f"The paper has no row {pattern!r}{suggest(pattern, rows(), 'vhl paper list')}")
        chosen |= {name: rows()[name] for name in found}
    return list(chosen.values())


def queue(request: Request, evidence: Evidence) -> list[Experiment]:
    """The experiments that are still to be run, each with its name and seeds.

    The cheapest pair of a row and the one it is compared with comes first, and of a pair the cheaper; every
    row is run with the first seed before any is with the second.
    """
    prices = _prices(request.rows)
    waiting: dict[tuple[int, str], _Waiting] = {}
    for row in request.rows:
        experiment = row.experiment(request.profile, request.virtual)
        experiment = experiment.with_(rounds=request.rounds or experiment.rounds)
        for option, after in experiment.training.not_reached(experiment.rounds).items():
            raise VHLError(
                f"{row.name} has training.{option} = {after}: ask for more --rounds than that, or leave "
                "it out."
            )
        done = evidence.of(experiment)
        for order, seed in enumerate(request.seeds):
            if seed in done and len(done[seed].records) >= experiment.rounds:
                continue
            repeat = experiment.with_(seeds=dict.fromkeys(("model", "sampling", "batches"), seed))
            named = repeat.with_(name=run_name(repeat))
            place = (order, prices[row.name], cost(row))
            key = seed, identity(repeat)
            waiting[key] = _both(waiting[key], named) if key in waiting else (place, named)
    return [experiment for _, experiment in sorted(waiting.values(), key=lambda entry: entry[0])]


def _both(first: _Waiting, second: Experiment) -> _Waiting:
    """One run for two rows that are one experiment: the longer, which saves what either wants."""
    place, experiment = first
    saved = ("features_at", "keep_at")
    both = {key: sorted({*getattr(experiment, key), *getattr(second, key)}) for key in saved}
    return place, experiment.with_(rounds=max(experiment.rounds, second.rounds), **both)


def _prices(wanted: Sequence[Row]) -> dict[str, float]:
    """What a row costs together with the one it is compared with."""
    prices = {row.name: cost(row) for row in wanted if row.without is None}
    for row in wanted:
        if row.without is not None:
            prices[row.name] = cost(row) + cost(rows()[row.without])
    for row in wanted:
        if row.without in prices:
            pairs = [prices[other.name] for other in wanted if other.without == row.without]
            prices[row.without] = min(pairs)
    return prices


def run_name(experiment: Experiment) -> str:
    """The same for the same experiment, whichever row asked for it: its parts and a number of its own."""
    parts = [getattr(experiment, part) for part in ("data", "partition", "model", "algorithm", "objective")]
    words = [part.name for part in parts]
    if experiment.objective.uses_virtual:
        words.append(generator(experiment))
    number = hashlib.sha256(_chosen(experiment).encode()).hexdigest()[:8]
    return "-".join([*words, experiment.profile, number, f"seed{experiment.seeds.batches}"])


def _chosen(experiment: Experiment) -> str:
    """What the experiment's identity has beyond defaults, so that a new option renames no run."""
    chosen = dotted(experiment, defaults=False)
    return json.dumps({key: value for key, value in sorted(asked(experiment).items()) if key in chosen})


def cost(row: Row) -> float:
    """Images that a row trains on, as if each went through ResNet-18; roughly."""
    settings = row.settings
    clients = 1 if settings["partition"] == "centralized" else settings["partition"]["clients"]
    objective = build("objectives", "objective", settings["objective"])
    assert isinstance(objective, Objective)
    images = _IMAGES[_named(settings["data"])[0]] * settings["training"]["epochs"]
    virtual = objective.virtual_images(128)
    images *= settings["clients_per_round"] / clients * (1 + (0 if virtual is None else virtual.places / 128))
    algorithm = build("algorithms", "algorithm", settings["algorithm"])
    assert isinstance(algorithm, Algorithm)
    if isinstance(algorithm, FedDF):  # a teacher goes forward alone: a third of a step
        images += algorithm.steps * algorithm.batch * (1 + settings["clients_per_round"] / 3)
    return float(images * settings["rounds"] * _MODELS[_named(settings["model"])[0]])


def _named(part: str | dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A component's name, and its options."""
    return (part, {}) if isinstance(part, str) else (part["name"], part)
