"""The terms of the paper's theorem (section 3.3, appendix A), measured on samples.

The lemma |SM(P) - SM(P_v)| ≤ E_y d holds for samples as it does for distributions, class by class, because
the distance to the points of other classes is 1-Lipschitz. It asks for equal label distributions and for
terms that are all of the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vhl.analysis.margin import Samples, check, classify, mean_margin, present
from vhl.analysis.transport import at_most, class_distance, normalised, split_half_floor
from vhl.errors import VHLError


@dataclass(frozen=True)
class Terms:
    """What the theorem speaks of, for one model; features are those that the model's head takes."""

    accuracy: float
    """Share of natural samples whose largest output is their label; a virtual output is an error."""
    merged_accuracy: float
    """Share of natural samples whose largest output is their label or its virtual twin."""
    margin_natural: float
    """SM(P)."""
    margin_virtual: float
    """SM(P_v), of held-out virtual samples."""
    margin_virtual_train: float
    """SM(D̃), of virtual samples that the model was trained on."""
    distance: float
    """E_y d of natural and held-out virtual samples."""
    distance_floor: float
    """The same of random halves of one side: what a distance of 0 looks like with so few samples."""
    normalised_distance: float
    """E_y d of features of length 1, which the features' scale does not touch."""
    normalised_floor: float

    @property
    def lemma_gap(self) -> float:
        """|SM(P) - SM(P_v)|, which ``distance`` bounds."""
        return abs(self.margin_natural - self.margin_virtual)

    @property
    def lower_bound(self) -> float:
        """The theorem's bound of SM(P) from below: SM(D̃) - |SM(P_v) - SM(D̃)| - E_y d."""
        generalisation = abs(self.margin_virtual - self.margin_virtual_train)
        return self.margin_virtual_train - generalisation - self.distance

    @property
    def vacuous(self) -> bool:
        """The bound says no more than that a margin is not negative."""
        return self.lower_bound <= 0


def measure(
    natural: Samples,
    virtual: Samples,
    virtual_train: Samples,
    head: tuple[Tensor, Tensor],
    classes: int,
    seed: int = 0,
    limit: int = 500,
) -> Terms:
    """The terms for a head (weight, bias), of at most ``limit`` samples of each class from each set.

    Accuracies are of all natural samples. The other terms are means of class means with the label frequencies
    of all natural samples; a class of them needs two samples in every set of which halves are taken, and one
    training sample.
    """
    weight, bias = (_double(tensor) for tensor in head)
    sets = [(_double(features), labels.cpu()) for features, labels in (natural, virtual, virtual_train)]
    for samples in sets:
        check(*samples, weight, bias, classes)
    features, labels = sets[0]
    hits, merged_hits = (
        (classify(features, weight, bias, different) == labels).double() for different in (len(bias), classes)
    )
    frequencies = labels.bincount(minlength=classes).double() / len(labels)
    _check_counts([labels for _, labels in sets], frequencies)
    generator = np.random.default_rng(seed)
    natural, virtual, virtual_train = (at_most(samples, limit, generator) for samples in sets)
    margins = [
        mean_margin(*samples, weight, bias, classes, frequencies)
        for samples in (natural, virtual, virtual_train)
    ]
    if math.inf in margins:
        raise VHLError("The head gives every feature to one class, so margins are infinite; train it first.")
    units = normalised(natural), normalised(virtual)
    return Terms(
        accuracy=float(hits.mean()),
        merged_accuracy=float(merged_hits.mean()),
        margin_natural=margins[0],
        margin_virtual=margins[1],
        margin_virtual_train=margins[2],
        distance=class_distance(natural, virtual, frequencies),
        distance_floor=split_half_floor(natural, virtual, frequencies, seed),
        normalised_distance=class_distance(*units, frequencies),
        normalised_floor=split_half_floor(*units, frequencies, seed),
    )


_NEEDS = (
    ("natural", 2, "take more test images"),
    ("virtual", 2, "raise virtual.per_class"),
    ("virtual training", 1, "raise virtual.per_class"),
)
"""Of each set: what it is called, how many samples of a class it must have, and what to do about it."""


def _check_counts(labels: Sequence[Tensor], frequencies: Tensor) -> None:
    for (kind, least, advice), own in zip(_NEEDS, labels, strict=True):
        for label, _ in present(frequencies):
            if (count := int((own == label).sum())) < least:
                raise VHLError(
                    f"There are {count} {kind} samples of class {label}, and {least} are needed; {advice}."
                )


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().to(torch.float64)
