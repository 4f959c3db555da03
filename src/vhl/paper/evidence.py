"""What was measured: digests of runs in one folder, found by the experiment that they ran."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vhl.experiment import Experiment, Profile
from vhl.paper.row import Row
from vhl.runs.compare import judged
from vhl.runs.digest import Digest
from vhl.runs.identity import LENGTH, REPEATED, ROUNDING, VIRTUAL, all_but

Runs = Mapping[int, Digest]
"""Repetitions of one experiment, by seed."""


@dataclass(frozen=True)
class Choice:
    """What is open in a row: the profile, and the virtual data where it has the paper's usual ones."""

    profile: Profile
    virtual: str | None
    """As JSON; none where ``--virtual`` cannot ask for them, as for noise with an option of its own."""

    @classmethod
    def of(cls, experiment: Experiment) -> Choice:
        made = experiment.virtual
        options = {"name", made.primary} & type(made).model_fields.keys()
        asked = {key: value for key, value in experiment.table()["virtual"].items() if key in options}
        usual = Experiment.read({"profile": experiment.profile, "virtual": asked}).virtual
        virtual = json.dumps(experiment.table()["virtual"], sort_keys=True) if usual == made else None
        return cls(experiment.profile, virtual)

    def experiment(self, row: Row) -> Experiment:
        chosen = [json.loads(self.virtual)] if self.virtual else []
        return row.experiment(self.profile, *chosen)


def asked(experiment: Experiment) -> dict[str, Any]:
    """The settings that all runs of an experiment have in common, whatever their length, seed and machine."""
    unused = frozenset[str]() if experiment.objective.uses_virtual else VIRTUAL
    return all_but(experiment, REPEATED | LENGTH | ROUNDING | unused)


def identity(experiment: Experiment) -> str:
    """Equal for all runs of one experiment."""
    return json.dumps(asked(experiment), sort_keys=True)


class Evidence:
    """Digests by experiment and seed; of two for the same seed the longer one counts."""

    def __init__(self, digests: Iterable[Digest]) -> None:
        self._runs: dict[str, dict[int, Digest]] = {}
        self._parts: set[tuple[str, ...]] = set()
        choices: dict[Choice, None] = {}
        for found in digests:
            if _has_still_to_come(found):
                continue
            digest = replace(found, records=judged(found.experiment, found.records))
            runs = self._runs.setdefault(identity(digest.experiment), {})
            seed = digest.experiment.seeds.batches
            if seed not in runs or len(digest.records) > len(runs[seed].records):
                runs[seed] = digest
            choices[Choice.of(digest.experiment)] = None
            self._parts.add(_parts(digest.experiment.table()))
        self._choices = list(choices)
        self._found: dict[tuple[str, Choice], Runs] = {}

    @classmethod
    def read(cls, folder: Path) -> Evidence:
        return cls(Digest.read(file) for file in sorted(folder.glob("**/*.json")))

    def __bool__(self) -> bool:
        return bool(self._choices)

    def choices(self, row: Row) -> dict[Choice, Runs]:
        """The choices with which a row was run, and its runs."""
        if _parts(row.settings) not in self._parts:  # most rows, and an experiment takes a while to build
            return {}
        possible = [choice for choice in self._choices if choice.virtual or not row.uses_generator]
        found = {_open(row, choice): self.runs(row, choice) for choice in possible}
        return {choice: runs for choice, runs in found.items() if runs}

    def runs(self, row: Row, choice: Choice) -> Runs:
        own = _open(row, choice)
        key = row.name, own
        if key not in self._found:
            self._found[key] = self.of(own.experiment(row))
        return self._found[key]

    def of(self, experiment: Experiment) -> Runs:
        """All runs of an experiment, by seed."""
        return self._runs.get(identity(experiment), {})


def _open(row: Row, choice: Choice) -> Choice:
    """What of a choice is one for this row."""
    return choice if row.uses_generator else Choice(choice.profile, None)


def _has_still_to_come(run: Digest) -> bool:
    """Whether its end, or a change of its training, is not reached: so far it is another method."""
    experiment, rounds = run.experiment, len(run.records)
    unfinished = experiment.algorithm.ends and rounds < experiment.rounds
    return unfinished or bool(experiment.training.not_reached(rounds))


def _parts(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of some parts."""
    chosen = (settings[part] for part in ("data", "partition", "model", "algorithm", "objective"))
    return tuple(part if isinstance(part, str) else part["name"] for part in chosen)


def at(runs: Runs, rounds: int) -> dict[int, Digest]:
    """Those runs that had so many rounds and were evaluated, as they were then."""
    cut = {seed: run.first(rounds) for seed, run in sorted(runs.items()) if len(run.records) >= rounds}
    return {seed: run for seed, run in cut.items() if any(r.accuracy is not None for r in run.records)}


def lengths(runs: Runs) -> list[int]:
    """The numbers of rounds that runs had, the most first."""
    return sorted({len(run.records) for run in runs.values()}, reverse=True)


def generator(experiment: Experiment) -> str:
    """The virtual data in a word; ``–`` where none are used."""
    if not experiment.objective.uses_virtual:
        return "–"
    source: Any = getattr(experiment.virtual, "source", None)
    return source.name if source is not None else experiment.virtual.name
