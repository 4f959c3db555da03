"""Statistical margin (section 3.3 of the paper) of features under a linear head, in double precision.

Class c is output c of a head with C_d outputs. In a head with 2 C_d outputs, natural class c and virtual
class c are one: output c or output C_d + c. A tie with another class's output counts as that class, which
makes the points of other classes a closed set and the distance to it 1-Lipschitz.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vhl.errors import VHLError

Samples = tuple[Tensor, Tensor]
"""Features (N, d) and their labels (N,), which count from 0 to C_d - 1 for virtual samples too."""

_PRECISION = 1e-12
"""Sines below it are of parallel normals: double precision leaves them some 1e-16."""


def classify(features: Tensor, weight: Tensor, bias: Tensor, classes: int) -> Tensor:
    """The class of each feature: that of the largest output."""
    return (features @ weight.T + bias).argmax(1) % classes


def margins(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor, classes: int) -> Tensor:
    """Distance of each feature to the nearest point that the head gives to another class than its label.

    0 for a misclassified feature; infinite where the head gives everything to one class.

    >>> head = torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([0.0, -10.0])  # the border: 3x + 4y = 10
    >>> margins(torch.tensor([[0.0, 0.0], [6.0, 8.0]]), torch.tensor([0, 0]), *head, classes=2).tolist()
    [2.0, 0.0]
    """
    check(features, labels, weight, bias, classes)
    features, weight, bias = features.double(), weight.double(), bias.double()
    right = classify(features, weight, bias, classes) == labels
    result = torch.zeros_like(right, dtype=torch.float64)
    for label in labels[right].unique().tolist():
        chosen = right & (labels == label)
        others = torch.arange(len(bias), device=bias.device) % classes != label
        owned = label, label - classes  # from the end: the virtual output, or without any the same one
        first, second = (_half_spaces(weight, bias, own, others) for own in owned)
        result[chosen] = _distances(features[chosen], *first, *second).amin(1)
    return result


def mean_margin(
    features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor, classes: int, frequencies: Tensor
) -> float:
    """SM: the classes' mean margins, weighted by label frequencies (C_d,)."""
    return class_mean(margins(features, labels, weight, bias, classes), labels, frequencies)


def class_mean(values: Tensor, labels: Tensor, frequencies: Tensor) -> float:
    """The classes' means, weighted by label frequencies."""
    return math.fsum(share * float(of_class((values, labels), c).mean()) for c, share in present(frequencies))


def present(frequencies: Tensor) -> list[tuple[int, float]]:
    """The classes that occur, each with its frequency."""
    return [(label, share) for label, share in enumerate(frequencies.tolist()) if share]


def of_class(samples: Samples, label: int, least: int = 1) -> Tensor:
    """What belongs to a class. Without it no term can be said of the same classes as the others."""
    values, labels = samples
    found = values[labels == label]
    if len(found) < least:
        raise VHLError(f"Class {label} has {len(found)} samples and needs {least}; give more of it.")
    return found


def check(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor, classes: int) -> None:
    """Refuse samples and a head that do not fit."""
    outputs = len(bias)
    if classes < 2 or outputs not in (classes, 2 * classes):
        raise VHLError(
            f"A head with {outputs} outputs has no margin for {classes} classes; "
            "it needs as many as there are classes or twice as many, and two classes at least."
        )
    fitting = features.ndim == 2 and weight.shape == (outputs, features.shape[1])
    if not fitting or labels.shape != features.shape[:1]:
        raise VHLError(
            f"Features {tuple(features.shape)}, labels {tuple(labels.shape)} and a head "
            f"{tuple(weight.shape)} do not fit; give (N, d), (N,) and ({outputs}, d)."
        )
    if bool(((labels < 0) | (labels >= classes)).any()):
        raise VHLError(f"Labels must be 0 to {classes - 1}, those of virtual samples too.")
    if not all(bool(numbers.isfinite().all()) for numbers in (features, weight, bias)):
        raise VHLError("Features or head are not finite; choose a model that has not diverged.")


def _half_spaces(weight: Tensor, bias: Tensor, own: int, others: Tensor) -> tuple[Tensor, Tensor]:
    """Where other outputs reach the own one: u · x + o ≥ 0, with unit normals u (zero for equal weights)."""
    normals, offsets = weight[others] - weight[own], bias[others] - bias[own]
    lengths = normals.norm(dim=1)
    lengths = torch.where(lengths > 0, lengths, 1.0)
    return normals / lengths[:, None], offsets / lengths


def _distances(features: Tensor, u: Tensor, o: Tensor, v: Tensor, p: Tensor) -> Tensor:
    r"""Distances (N, others) to the intersections of pairs of half-spaces u · x + o ≥ 0 and v · x + p ≥ 0.

    With a = -(u · x + o), b = -(v · x + p), how far x is outside of each, and the angle θ of u and v:

    .. math:: \begin{cases}
              \sqrt{a^2 + (b - a \cos θ)^2 / \sin^2 θ} & b > a \cos θ, \; a > b \cos θ \\
              \max(a, b, 0) & \text{otherwise}
              \end{cases}

    In the first case both borders are active: the projection on one border is not in the other half-space.
    Parallel normals have no second border, or, in opposite directions, no intersection if o + p < 0.
    """
    cosine = (u * v).sum(1)
    sine = (v - cosine[:, None] * u).norm(dim=1)
    parallel = sine <= _PRECISION
    apart = parallel & (cosine < 0) & (o + p < -_PRECISION * (o.abs() + p.abs()))
    a, b = -(features @ u.T + o), -(features @ v.T + p)
    beyond = b - a * cosine
    both = ~parallel & (beyond > 0) & (a > b * cosine)
    corner = torch.hypot(a, beyond / sine)
    found = torch.where(both, corner, torch.maximum(a, b).clamp(min=0))
    return found.masked_fill(apart | _is_empty(u, o) | _is_empty(v, p), torch.inf)


def _is_empty(normals: Tensor, offsets: Tensor) -> Tensor:
    """Half-spaces without a point: equal weights, and a bias that never lets the other output win."""
    return ~normals.any(1) & (offsets < 0)
