"""Comparing runs: what each reached, how soon, and at what cost; over seeds where there are several."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from vhl.config.sections import Engine
from vhl.errors import VHLError
from vhl.experiment import Experiment, dotted
from vhl.files import read_json
from vhl.runs.folder import RunFolder
from vhl.runs.record import Record

LAST = 0.1
"""Share of the rounds that count as the last ones."""
NO_DIFFERENCE = {
    "name",
    "device",
    "checkpoint_every",
    "features_at",
    "keep_at",
    *(f"engine.{key}" for key in Engine.model_fields if key != "precision"),
}
"""Settings that change no number of a run: runs that differ in them alone are the same experiment."""
REPEATED = {f"seeds.{kind}" for kind in ("model", "sampling", "batches")}
"""Settings that tell repetitions of one experiment apart."""


@dataclass(frozen=True)
class Result:
    """What one run reached."""

    best: float
    """Best test accuracy over the run: the paper's measure; it depends on how often one looks."""
    final: float
    """Mean test accuracy over the last 10 % of rounds, or the share asked for."""
    rounds: int | None
    """First round at or above the target."""
    samples: int | None
    """Images trained on until then, natural and virtual."""
    bytes: int | None
    """Sent until then, down and up."""
    drift: float
    """Client drift, mean over rounds."""
    compute: float
    """Multiply-adds of a step relative to plain FedAvg."""
    seconds: float | None = None
    """Median wall time of the rounds that had the machine to themselves."""


@dataclass(frozen=True)
class Mean:
    """Mean and standard deviation over seeds (0 for one); ``count`` of them have a value."""

    mean: float
    std: float
    count: int


@dataclass(frozen=True)
class Row:
    """Runs that differ in their seeds alone."""

    label: str
    seeds: int
    results: tuple[Result, ...]
    runs: tuple[RunFolder, ...] = ()
    """In the order of their results."""
    records: tuple[tuple[Record, ...], ...] = ()
    """Of each run."""
    problem: str = ""
    """What it was trained on, in words that are equal for equal data and partitions."""
    target: float = 0.0
    """What counts as reached on this problem."""

    def over_seeds(self, measure: str) -> Mean | None:
        """Mean ± std of a measure over the seeds that have it."""
        values = [getattr(r, measure) for r in self.results if getattr(r, measure) is not None]
        values = [value for value in values if math.isfinite(value)]
        if not values:
            return None
        return Mean(
            statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values)
        )


@dataclass(frozen=True)
class Comparison:
    """Rows in the order the runs were named; the first of a problem is its baseline."""

    rows: tuple[Row, ...]
    last: float = LAST
    """Share of the rounds that ``Result.final`` is over."""

    @property
    def target(self) -> float:
        """Of the first problem; most comparisons have but one."""
        return self.rows[0].target

    def baseline(self, row: Row) -> Row:
        """The first row on the same problem."""
        return next(other for other in self.rows if other.problem == row.problem)

    def speed_up(self, row: Row) -> float | None:
        """Rounds to the target of the baseline over this row's; none where a seed of either never got there.

        A mean over the seeds that did would leave out the slow ones.
        """
        baseline = self.baseline(row)
        first, own = baseline.over_seeds("rounds"), row.over_seeds("rounds")
        if (
            first is None
            or own is None
            or first.count < len(baseline.results)
            or own.count < len(row.results)
        ):
            return None
        return first.mean / own.mean

    def time(self, row: Row) -> float | None:
        """Wall time of a round relative to the baseline's, where both had the same machine to themselves."""
        baseline = self.baseline(row)
        first, own = baseline.over_seeds("seconds"), row.over_seeds("seconds")
        if first is None or own is None:
            return None
        machines = {_machine(run) for run in (*baseline.runs, *row.runs)}
        return own.mean / first.mean if len(machines) == 1 else None


def _machine(run: RunFolder) -> str:
    found = read_json(run.path / "environment.json")
    return json.dumps([found[key] for key in ("processor", "cores", "threads", "gpu")])


def final_mean(records: Sequence[Record], last: float = LAST) -> float:
    """Mean accuracy of the evaluations in the last rounds, by default 10 % of them."""
    start = round(records[-1].round * (1 - last), 6)  # 10 × (1 − 0.9) falls short of 1, and would add a round
    evaluated = [r.accuracy for r in records if r.accuracy is not None]
    return statistics.mean(
        [r.accuracy for r in records if r.accuracy is not None and r.round > start] or evaluated[-1:]
    )


def judged(experiment: Experiment, records: Sequence[Record]) -> tuple[Record, ...]:
    """What a method is judged by: all rounds, or the last alone where the classifier is retrained after it.

    What such a run shows on the way is the accuracy of training without that.
    """
    if not experiment.algorithm.ends or records[-1].round < experiment.rounds:
        return tuple(records)
    return (*(record.model_copy(update={"accuracy": None}) for record in records[:-1]), records[-1])


def own_target(reached: float) -> float:
    """The largest whole percentage up to ``reached``: the paper's way to set a target from FedAvg.

    >>> own_target(0.8049)
    0.8
    """
    return math.floor(100 * reached + 1e-9) / 100


def result(records: Sequence[Record], target: float, last: float = LAST) -> Result:
    accuracies = [r.accuracy for r in records if r.accuracy is not None]
    reached = next(
        (i for i, r in enumerate(records) if r.accuracy is not None and r.accuracy >= target), None
    )
    until = None if reached is None else records[: reached + 1]
    alone = [record.seconds for record in records if record.side_by_side == 1]
    return Result(
        best=max(accuracies),
        final=final_mean(records, last),
        rounds=None if until is None else until[-1].round,
        samples=None if until is None else sum(r.samples for r in until),
        bytes=None if until is None else sum(r.bytes for r in until),
        drift=statistics.mean(r.drift for r in records),
        compute=records[-1].compute,
        seconds=statistics.median(alone) if alone else None,
    )


def compare(runs: Sequence[RunFolder], target: float | None = None, last: float = LAST) -> Comparison:
    """Compare runs; the target is by default what every seed of a problem's first method reached."""
    groups: dict[str, list[RunFolder]] = {}
    for run in runs:
        groups.setdefault(_without_seeds(run.experiment()), []).append(run)
    labels = label([members[0].experiment() for members in groups.values()])
    targets: dict[str, float] = {}
    rows = []
    for name, members in zip(labels, groups.values(), strict=True):
        records = [judged(run.experiment(), _evaluated(run)) for run in members]
        problem = _problem(members[0].experiment())
        if problem not in targets:
            reached = min(max(r.accuracy or 0 for r in own) for own in records)
            targets[problem] = own_target(reached) if target is None else target
        results = tuple(result(own, targets[problem], last) for own in records)
        seeds = len({run.experiment().seeds for run in members})
        rows.append(Row(name, seeds, results, tuple(members), tuple(records), problem, targets[problem]))
    return Comparison(tuple(rows), last)


def _problem(experiment: Experiment) -> str:
    return experiment.data.model_dump_json() + experiment.partition.model_dump_json()


def _evaluated(run: RunFolder) -> list[Record]:
    records = run.records()
    if not any(r.accuracy is not None for r in records):
        raise VHLError(f"{run.path} has no evaluated round yet; `vhl run --resume` continues it.")
    return records


def _without_seeds(experiment: Experiment) -> str:
    kept = {k: v for k, v in dotted(experiment).items() if k not in NO_DIFFERENCE | REPEATED}
    return json.dumps(kept, sort_keys=True)


def label(experiments: Sequence[Experiment]) -> list[str]:
    """Short names: algorithm and objective, and every other setting in which the experiments differ.

    Options of a part are told where parts of the same name differ in them: others do so anyway.
    """
    flat = [dotted(experiment) for experiment in experiments]
    keys = {key for table in flat for key in table}
    ignored = NO_DIFFERENCE | REPEATED | {"algorithm.name", "objective.name"}

    def differs(key: str) -> bool:
        values: dict[object, set[str]] = {}
        for table in flat:
            if key in table:
                same = None if key.endswith(".name") else table.get(f"{key.split('.')[0]}.name")
                values.setdefault(same, set()).add(json.dumps(table[key]))
        return any(len(found) > 1 for found in values.values())

    differing = sorted(key for key in keys - ignored if differs(key))
    labels = []
    for table in flat:
        extra = [
            f"{key}={'unset' if table[key] is None else table[key]}" for key in differing if key in table
        ]
        labels.append(" ".join([f"{table['algorithm.name']} + {table['objective.name']}", *extra]))
    return labels
