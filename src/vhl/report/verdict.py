"""What a comparison says in plain words, and how sure that is."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vhl.experiment import Experiment
from vhl.runs.compare import NO_DIFFERENCE, REPEATED, Comparison, Row
from vhl.runs.dotted import dotted

_SURE = 0.95


@dataclass(frozen=True)
class Gain:
    """Accuracy of one row over another's, paired by seed, with a 95 % interval (Student's t)."""

    mean: float
    margin: float | None
    """Half the interval; unknown for one seed."""
    seeds: int

    @property
    def decided(self) -> bool:
        return self.margin is not None and abs(self.mean) > self.margin


@dataclass(frozen=True)
class Verdict:
    """One row against the one it is to be compared with."""

    row: Row
    against: Row
    best: Gain
    final: Gain
    """Mean of the last 10 % of rounds: what decides, for the best depends on luck."""
    text: str


def verdicts(comparison: Comparison) -> Iterator[Verdict]:
    """Each row against its partner: the same without virtual data where that was run, else the first row."""
    partners = find_partners(comparison)
    for number, row in enumerate(comparison.rows):
        against = partners[number] or comparison.rows[0]
        if against is row:
            continue
        best, final = (_gain(row, against, measure) for measure in ("best", "final"))
        if best is not None and final is not None:
            yield Verdict(row, against, best, final, _sentence(comparison, row, against, best, final))


def find_partners(comparison: Comparison) -> list[Row | None]:
    """For each row the one that differs in being trained plainly alone."""
    experiments = [row.runs[0].experiment() for row in comparison.rows]
    settings = [_setting(experiment) for experiment in experiments]
    plain: dict[str, Row] = {}
    for row, experiment, setting in zip(comparison.rows, experiments, settings, strict=True):
        if experiment.objective.name == "plain":
            plain.setdefault(setting, row)
    found = (plain.get(setting) for setting in settings)
    return [None if other is row else other for row, other in zip(comparison.rows, found, strict=True)]


def _setting(experiment: Experiment) -> str:
    """Everything but the objective and the virtual data."""
    ignored = NO_DIFFERENCE | REPEATED
    parts = ("objective.", "virtual.")
    kept = {k: v for k, v in dotted(experiment).items() if k not in ignored and not k.startswith(parts)}
    return json.dumps(kept, sort_keys=True)


def _gain(row: Row, against: Row, measure: str) -> Gain | None:
    """Over the seeds that both have; nothing where they share none."""
    own, other = _by_seed(row, measure), _by_seed(against, measure)
    differences = [own[seed] - other[seed] for seed in own if seed in other]
    if not differences:
        return None
    margin = None
    if len(differences) > 1:
        from scipy.stats import t  # a second, which a single seed does not need

        quantile = float(t.ppf((1 + _SURE) / 2, len(differences) - 1))
        margin = quantile * statistics.stdev(differences) / len(differences) ** 0.5
    return Gain(statistics.mean(differences), margin, len(differences))


def _by_seed(row: Row, measure: str) -> Mapping[int, float]:
    seeds = (run.experiment().seeds.batches for run in row.runs)
    return {seed: getattr(found, measure) for seed, found in zip(seeds, row.results, strict=True)}


def _sentence(comparison: Comparison, row: Row, against: Row, best: Gain, final: Gain) -> str:
    return " ".join([_result(row, against, best, final), _sureness(final), _cost(comparison, row, against)])


def _result(row: Row, against: Row, best: Gain, final: Gain) -> str:
    word = "about as good as" if final.margin is not None and not final.decided else None
    word = word or ("better than" if final.mean > 0 else "worse than" if final.mean < 0 else "equal to")
    own, other = _mean(row, "final"), _mean(against, "final")
    return (
        f"{row.label} is {word} {against.label}: {100 * own:.1f} % instead of {100 * other:.1f} % over the "
        f"last tenth of the rounds ({100 * final.mean:+.1f} points), {100 * best.mean:+.1f} in the best one."
    )


def _sureness(gain: Gain) -> str:
    if gain.margin is None:
        return "That is one seed: an indication, no proof; `--seeds 0,1,2` tells how much is chance."
    low, high = 100 * (gain.mean - gain.margin), 100 * (gain.mean + gain.margin)
    interval = f"The 95 % interval over {gain.seeds} paired seeds is {low:+.1f} to {high:+.1f} points"
    return f"{interval}." if gain.decided else f"{interval}: it may be chance."


def _cost(comparison: Comparison, row: Row, against: Row) -> str:
    compute = _mean(row, "compute") / _mean(against, "compute")
    step = f"A step costs {compute:.2f} times the compute"
    own, other = row.over_seeds("rounds"), against.over_seeds("rounds")
    target = f"{100 * comparison.target:.3g} %"
    if own is None:
        return f"{step}, and it did not reach {target}."
    if own.count < row.seeds:
        return f"{step}, and {own.count} of {row.seeds} seeds reached {target}."
    if other is None or other.count < against.seeds:
        return f"{step}; it reached {target} after {own.mean:.0f} rounds, which the other did not always."
    images = _mean(row, "samples") / _mean(against, "samples")
    rounds = f"{own.mean:.0f} rounds instead of {other.mean:.0f}"
    return f"{step}; it reached {target} after {rounds}, with {images:.2f} times the images."


def _mean(row: Row, measure: str) -> float:
    found: Any = row.over_seeds(measure)
    return float(found.mean)
