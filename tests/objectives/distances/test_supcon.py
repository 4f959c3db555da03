from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor

from vhl.objectives.distances.supcon import SupCon, supcon


def _by_loops(features: np.ndarray, labels, weights, temperature: float) -> float:
    """The definition, sample by sample: who has weight 0 is nobody's positive, negative or anchor."""
    samples = [i for i in range(len(labels)) if weights[i] > 0]
    unit = [feature / math.sqrt(sum(x * x for x in feature)) for feature in features]

    def similarity(i: int, j: int) -> float:
        return sum(a * b for a, b in zip(unit[i], unit[j], strict=True)) / temperature

    total = 0.0
    for i in samples:
        others = [a for a in samples if a != i]
        positives = [p for p in others if labels[p] == labels[i]]
        if positives:
            log_denominator = math.log(sum(math.exp(similarity(i, a)) for a in others))
            total -= sum(similarity(i, p) - log_denominator for p in positives) / len(positives)
    return total / len(samples)


@st.composite
def _samples(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Features in general position, labels among which some are lone, weights among which some are 0."""
    count = draw(st.integers(2, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    weights = draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=count, max_size=count).filter(any))
    features = torch.from_numpy(rng.standard_normal((count, 5)))
    return features, torch.tensor(labels), torch.tensor(weights)


@settings(deadline=None)
@given(samples=_samples(), temperature=st.floats(0.05, 5))
def test_it_is_the_definition(samples, temperature):
    features, labels, weights = samples
    expected = _by_loops(features.numpy(), labels.tolist(), weights.tolist(), temperature)
    assert supcon(features, labels, weights, temperature).item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_it_is_pytorch_metric_learnings_where_every_anchor_has_a_positive(temperature):
    features = torch.randn(12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 3, 3, 1, 2])
    theirs = SupConLoss(temperature=temperature)(features, labels)
    assert supcon(features, labels, temperature=temperature).item() == pytest.approx(theirs.item(), rel=1e-12)


def test_lone_anchors_count_in_our_mean_and_not_in_pytorch_metric_learnings():
    features = torch.randn(7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 3])  # 5 of 7 anchors have a positive
    theirs = SupConLoss(temperature=0.07)(features, labels)
    assert supcon(features, labels).item() == pytest.approx(theirs.item() * 5 / 7, rel=1e-12)


def test_two_classes_on_orthogonal_axes_by_hand():
    features = torch.tensor([[1.0, 0], [2, 0], [0, 1], [0, 3]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    # each anchor: its positive at similarity 1, two negatives at 0
    expected = math.log(1 + 2 * math.exp(-1 / 0.07))
    assert supcon(features, labels).item() == pytest.approx(expected, rel=1e-6)
    assert SupCon().temperature == 0.07


@pytest.mark.parametrize("weights", [None, [1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
def test_without_any_positive_it_is_zero(weights):
    features = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = supcon(features, torch.tensor([0, 1, 1 if weights else 2]), weights and torch.tensor(weights))
    (gradient,) = torch.autograd.grad(loss, features)
    assert loss.item() == 0
    assert (gradient == 0).all()


def test_gradients_are_right_with_fillers_and_lone_anchors():
    features = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    features.requires_grad_()
    labels = torch.tensor([0, 1, 0, 2, 1, 1, 0])  # 2 is alone
    weights = torch.tensor([1.0, 1, 1, 1, 0, 1, 0])
    assert torch.autograd.gradcheck(lambda f: supcon(f, labels, weights, 0.3), features)
    (gradient,) = torch.autograd.grad(supcon(features, labels, weights, 0.3), features)
    assert (gradient[weights == 0] == 0).all()
    assert (gradient[weights == 1] != 0).any(1).all()  # the lone one is a negative of the others


@settings(deadline=None)
@given(samples=_samples(), seed=st.integers(0, 2**32 - 1))
def test_order_scale_and_fillers_change_nothing(samples, seed):
    features, labels, weights = samples
    rng = np.random.default_rng(seed)
    value = supcon(features, labels, weights).item()
    order = torch.from_numpy(rng.permutation(len(labels)))
    assert supcon(features[order], labels[order], weights[order]).item() == pytest.approx(value, abs=1e-9)
    scales = torch.from_numpy(rng.uniform(0.01, 100, (len(labels), 1)))
    assert supcon(features * scales, labels, weights).item() == pytest.approx(value, abs=1e-9)
    kept = weights > 0
    assert supcon(features[kept], labels[kept]).item() == pytest.approx(value, abs=1e-9)


def test_maps_are_flattened():
    maps = torch.randn(6, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    expected = _by_loops(maps.numpy().reshape(6, 18), labels.tolist(), [1] * 6, 0.07)
    assert supcon(maps, labels).item() == pytest.approx(expected)


def test_half_precision_features_are_compared_in_single():
    features = torch.randn(8, 64, generator=torch.Generator().manual_seed(4)).bfloat16()
    labels = torch.arange(8) // 2
    loss = supcon(features, labels)
    expected = _by_loops(features.double().numpy(), labels.tolist(), [1] * 8, 0.07)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_the_distance_is_supcon_of_both_sides_together(temperature):
    rng = np.random.default_rng(5)
    natural, virtual = rng.standard_normal((4, 3)), rng.standard_normal((5, 3))
    labels, virtual_labels, weights = [0, 1, 1, 0], [0, 1, 2, 0, 2], [1.0, 1.0, 1.0, 0.0]
    distance = SupCon(temperature=temperature)(
        torch.from_numpy(natural),
        torch.tensor(labels),
        torch.tensor(weights),
        torch.from_numpy(virtual),
        torch.tensor(virtual_labels),
    )
    expected = _by_loops(
        np.concatenate([natural, virtual]), labels + virtual_labels, weights + [1.0] * 5, temperature
    )
    assert distance.item() == pytest.approx(expected)
