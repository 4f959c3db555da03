"""What makes two experiments the same one, but for what a question does not ask."""

from __future__ import annotations

import json
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from vhl.experiment import Engine, Experiment
from vhl.runs.dotted import dotted

Settings = AbstractSet[str]
"""Dotted keys, or whole parts: ``"virtual"`` is all that begins with ``virtual.``"""

UNCOUNTED: Settings = {
    "name",
    "device",
    "checkpoint_every",
    "features_at",
    "keep_at",
    *(f"engine.{key}" for key in Engine.model_fields if key != "precision"),
}
"""Settings that change no number of a run."""
LENGTH: Settings = {"rounds"}
"""A run may go on for longer: it changes no round that was already computed."""
SEEDS: Settings = {f"seeds.{kind}" for kind in ("model", "sampling", "batches")}
"""What tells repetitions of one experiment apart; another seed of the data is another problem."""
ROUNDING: Settings = {"engine.precision"}
VIRTUAL: Settings = {"virtual"}
LOSS: Settings = {"objective", *VIRTUAL}
"""What clients minimise, and the virtual data that it may need."""
PROBLEM: Settings = {"data", "partition"}
"""What is learnt from."""

REPEATED: Settings = UNCOUNTED | SEEDS
"""Experiments that differ in these alone are repetitions of one."""


def all_but(experiment: Experiment, ignored: Settings) -> dict[str, Any]:
    """The settings that are left of an experiment, by their dotted keys."""
    found = dotted(experiment).items()
    return {k: value for k, value in found if k not in ignored and k.partition(".")[0] not in ignored}


def key(experiment: Experiment, ignored: Settings) -> str:
    """A text that is equal for experiments that are the same but for what is ignored."""
    return json.dumps(all_but(experiment, ignored), sort_keys=True)


def problem(experiment: Experiment) -> str:
    """A text that is equal for experiments that learn from the same data, dealt out alike."""
    return key(experiment, Experiment.model_fields.keys() - PROBLEM)


def labels(experiments: Sequence[Experiment]) -> list[str]:
    """Short names: algorithm and objective, and every other setting in which the experiments differ.

    Options of a part are told where parts of the same name differ in them: others do so anyway.
    """
    flat = [all_but(experiment, REPEATED) for experiment in experiments]
    named = {"algorithm.name", "objective.name"}
    differing = sorted(name for name in {k for table in flat for k in table} - named if _differs(name, flat))
    found = []
    for table in flat:
        told = ((name, table[name]) for name in differing if name in table)
        extra = [f"{name}={'unset' if value is None else value}" for name, value in told]
        found.append(" ".join([f"{table['algorithm.name']} + {table['objective.name']}", *extra]))
    return found


def _differs(name: str, flat: Sequence[dict[str, Any]]) -> bool:
    """Whether experiments differ in a setting; in an option of a part, those whose part is the same."""
    values: dict[object, set[str]] = {}
    for table in flat:
        if name in table:
            part = None if name.endswith(".name") else table.get(f"{name.split('.')[0]}.name")
            values.setdefault(part, set()).add(json.dumps(table[name]))
    return any(len(found) > 1 for found in values.values())
