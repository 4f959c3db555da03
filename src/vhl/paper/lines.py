"""The lines of a table: what was measured for a row, beside what the paper says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from vhl.experiment import Experiment
from vhl.paper.evidence import Choice, Evidence, at, lengths
from vhl.paper.row import Row
from vhl.paper.rows import rows
from vhl.runs.compare import Result, best_accuracy, own_target, result
from vhl.runs.digest import Digest
from vhl.runs.statistics import Mean, paired


@dataclass(frozen=True)
class Line:
    """Runs of one row that had a number of rounds; all seeds that got so far."""

    row: Row
    choice: Choice
    experiment: Experiment
    rounds: int
    runs: Mapping[int, Digest]
    """By seed, cut to ``rounds``."""
    target: float | None
    """A target of our own: what every seed of FedAvg without virtual data reached in as many rounds."""
    baseline: Mapping[int, Digest]
    """The runs that set it."""
    without: Mapping[int, Digest]
    """The same algorithm without virtual data, in as many rounds."""

    @property
    def truncated(self) -> bool:
        return self.rounds < int(self.row.settings["rounds"])

    def results(self, target: float | None = None) -> list[Result]:
        return [result(run.records, target) for run in self.runs.values()]

    def over_seeds(self, measure: str) -> Mean | None:
        return Mean.of([getattr(found, measure) for found in self.results()])

    def to_target(self, measure: str, target: float | None) -> Mean | None:
        """``rounds`` or ``samples`` to a target; nothing unless every seed reached it."""
        found = [getattr(one, measure) for one in self.results(target)]
        return None if None in found else Mean.of(found)

    @property
    def gain(self) -> Mean | None:
        """Best accuracy over that of the same algorithm without virtual data, paired by seed."""
        pairs = paired(self.runs, self.without)
        return Mean.of([best_accuracy(one.records) - best_accuracy(other.records) for one, other in pairs])

    @property
    def speed_up(self) -> float | None:
        """Rounds to our own target: FedAvg's without virtual data over this line's, of the seeds of both."""
        both = paired(self.runs, self.baseline)
        if not both or self.to_target("rounds", self.target) is None:
            return None
        own, other = (
            sum(result(run.records, self.target).rounds or self.rounds for run in runs)
            for runs in zip(*both, strict=True)
        )
        return other / own


def lines(row: Row, evidence: Evidence) -> Iterator[Line]:
    """One line for each choice of profile and virtual data, and for each number of rounds that a seed had.

    A run may go on for another row's sake; what it did beyond this one's rounds does not count here.
    """
    most = int(row.settings["rounds"])
    for choice, runs in evidence.choices(row).items():
        for rounds in dict.fromkeys(min(length, most) for length in lengths(runs)):
            baseline = at(evidence.runs(rows()[row.baseline], choice), rounds)
            without = at(evidence.runs(rows()[row.without], choice), rounds) if row.without else {}
            yield Line(
                row,
                choice,
                choice.experiment(row),
                rounds,
                at(runs, rounds),
                reached_by_all(baseline.values()),
                baseline,
                without,
            )


def reached_by_all(runs: Iterable[Digest]) -> float | None:
    """The largest whole percentage that all runs reached."""
    best = [best_accuracy(run.records) for run in runs]
    return own_target(min(best)) if best else None
