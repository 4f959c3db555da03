"""Wasserstein-1 distances between the features of natural and virtual samples, class by class.

Every function takes label frequencies and leaves out the classes of frequency 0. A class that occurs must
have samples on both sides: without them it has no distance, and to leave it out of the distance alone would
make the lemma |SM(P) - SM(P_v)| ≤ E_y d false. So it is refused.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch import Tensor
from torch.nn.functional import normalize

from vhl.analysis.margin import Samples, of_class, present
from vhl.errors import VHLError

_ITERATIONS = 100_000_000
"""POT stops before the optimum after 100,000, with no more than a warning."""


def wasserstein(first: Tensor, second: Tensor) -> float:
    r"""Exact Wasserstein-1 distance of two samples (N, d) and (M, d), with the Euclidean metric.

    .. math:: \min_{J \ge 0} \sum_{ij} J_{ij} \|x_i - y_j\|,
              \quad \sum_j J_{ij} = \tfrac{1}{N}, \; \sum_i J_{ij} = \tfrac{1}{M}
    """
    try:
        transport = import_module("ot")
    except ImportError:
        raise VHLError(
            "Wasserstein distances need the package POT; install the extra with pip install 'vhl[analysis]'."
        ) from None
    costs = cdist(*(points.detach().cpu().double().numpy() for points in (first, second)))
    weights = [np.full(count, 1 / count) for count in costs.shape]
    return float(transport.emd2(*weights, costs, numItermax=_ITERATIONS))


def class_distance(natural: Samples, virtual: Samples, frequencies: Tensor) -> float:
    """E_y d: Wasserstein-1 between natural and virtual features of a class, averaged over the classes."""
    return sum(
        share * wasserstein(of_class(natural, label), of_class(virtual, label))
        for label, share in present(frequencies)
    )


def split_half_floor(natural: Samples, virtual: Samples, frequencies: Tensor, seed: int = 0) -> float:
    """What :func:`class_distance` is of samples that do not differ: that of two random halves of each side.

    The mean of both sides. Half as many samples are farther apart than all, so the floor is rather high.
    """
    generator = np.random.default_rng(seed)
    return sum(
        share * sum(_between_halves(of_class(side, label, 2), generator) for side in (natural, virtual)) / 2
        for label, share in present(frequencies)
    )


def normalised(samples: Samples) -> Samples:
    """The same samples with features of length 1."""
    features, labels = samples
    return normalize(features.double()), labels


def at_most(samples: Samples, limit: int, generator: np.random.Generator) -> Samples:
    """Not more than so many samples of a class, drawn without replacement and kept in their order."""
    features, labels = samples
    order = torch.from_numpy(generator.permutation(len(labels))).to(labels.device)
    chosen = [order[labels[order] == label][:limit] for label in labels.unique()]
    kept = torch.cat([order[:0], *chosen]).sort().values
    return features[kept], labels[kept]


def _between_halves(points: Tensor, generator: np.random.Generator) -> float:
    order = torch.from_numpy(generator.permutation(len(points))).to(points.device)
    first, second = points[order].tensor_split(2)
    return wasserstein(first, second)
