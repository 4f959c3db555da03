"""Means over seeds, and differences of runs that are paired by seed: how large they are and how sure.

The page, ``vhl compare`` and the paper's claims all ask here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

_Run = TypeVar("_Run")

_SURE = 0.95
_NORMAL = 1.959964
"""The quantile of the normal distribution that goes with it."""


@dataclass(frozen=True)
class Mean:
    """Mean and standard deviation over seeds (0 for one); ``count`` of them have a value."""

    mean: float
    std: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean | None:
        """Of no value there is none.

        >>> Mean.of([1.0, 3.0])
        Mean(mean=2.0, std=1.4142135623730951, count=2)
        """
        if not values:
            return None
        std = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(statistics.mean(values), std, len(values))


@dataclass(frozen=True)
class Difference:
    """A mean of paired differences, and how sure it is at 95 %.

    Two kinds of chance may count. Of the seeds it is told by the standard error, with Student's t, for the
    standard error of few seeds is itself unsure: 4.3 of three seeds are chance. Of the test images, where
    their number is given, a difference d of n images takes d·n at least that one of the two alone gets
    right, which vary by √(d·n) (McNemar, 1947).
    """

    mean: float
    error: float | None
    """Standard error; unknown for one seed, unless it is borrowed: see :meth:`with_error_of`."""
    freedom: float
    """Degrees of freedom that the standard error rests on."""
    seeds: int
    images: int | None = None
    """Of the test set."""

    @classmethod
    def of(cls, differences: Sequence[float], images: int | None = None) -> Difference:
        """Of one difference a seed."""
        seeds = len(differences)
        error = statistics.stdev(differences) / seeds**0.5 if seeds > 1 else None
        return cls(statistics.mean(differences), error, seeds - 1, seeds, images)

    def with_error_of(self, repetitions: Sequence[Sequence[float]]) -> Difference:
        """With the standard error of two single runs, by the variance of what others had over their seeds.

        It is pooled over all that were repeated; where none was, it stays unknown.
        """
        freedom = sum(len(values) - 1 for values in repetitions)
        if not freedom:
            return self
        pooled = sum(statistics.variance(own) * (len(own) - 1) for own in repetitions) / freedom
        return replace(self, error=(2 * pooled) ** 0.5, freedom=freedom)

    def minus(self, other: Difference) -> Difference:
        """A difference of differences."""
        known = self.error is not None and other.error is not None
        return Difference(
            self.mean - other.mean,
            math.hypot(self.error or 0.0, other.error or 0.0) if known else None,
            min(self.freedom, other.freedom),
            min(self.seeds, other.seeds),
        )

    @property
    def of_images(self) -> float:
        """What the choice of the test images alone leaves open."""
        return _NORMAL * math.sqrt(abs(self.mean) / self.images) if self.images else 0.0

    @property
    def margin(self) -> float | None:
        """Half the interval around the mean; unknown without a standard error."""
        if self.error is None:
            return None
        return math.hypot(_quantile(self.freedom) * self.error, self.of_images)

    @property
    def decided(self) -> bool:
        """Whether it is more than chance."""
        return self.margin is not None and abs(self.mean) > self.margin

    @property
    def told(self) -> bool:
        """Whether it is more than the chance that is known of: with one seed that of the test images."""
        return self.decided if self.margin is not None else abs(self.mean) > self.of_images


def paired(first: Mapping[int, _Run], second: Mapping[int, _Run]) -> list[tuple[_Run, _Run]]:
    """Runs by seed, those of one seed together; a seed that one side alone has does not count.

    >>> paired({0: "a", 2: "b"}, {2: "c", 1: "d"})
    [('b', 'c')]
    """
    return [(first[seed], second[seed]) for seed in first if seed in second]


@cache
def _quantile(freedom: float) -> float:
    from scipy.stats import t  # half a second, which most commands need not spend

    return float(t.ppf((1 + _SURE) / 2, freedom))
