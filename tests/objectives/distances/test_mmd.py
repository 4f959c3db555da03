from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vhl.objectives.distances.mmd import MMD, Means
from vhl.objectives.vhl import VHL

Sides = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@st.composite
def _sides(draw: st.DrawFn) -> Sides:
    """Natural and virtual samples; some classes may be on one side only, some natural rows are fillers."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, others = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    weights = draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=count, max_size=count).filter(any))
    return (
        torch.from_numpy(rng.standard_normal((count, 4))),
        torch.from_numpy(rng.integers(0, 4, count)),
        torch.tensor(weights, dtype=torch.float64),
        torch.from_numpy(rng.standard_normal((others, 4))),
        torch.from_numpy(rng.integers(0, 4, others)),
    )


def _classes(sides: Sides) -> list[tuple[np.ndarray, np.ndarray]]:
    """Unit features of natural and virtual samples, for each class that both sides have."""
    natural, labels, weights, virtual, virtual_labels = (part.numpy() for part in sides)
    natural, labels = natural[weights > 0], labels[weights > 0]
    natural /= np.linalg.norm(natural, axis=1, keepdims=True)
    virtual /= np.linalg.norm(virtual, axis=1, keepdims=True)
    common = sorted(set(labels) & set(virtual_labels))
    return [(natural[labels == c], virtual[virtual_labels == c]) for c in common]


@settings(deadline=None)
@given(sides=_sides())
def test_means_by_loops(sides: Sides) -> None:
    found = float(Means()(*(part.clone() for part in sides)))
    pairs = _classes(sides)
    gaps = [len(n) * float(((n.mean(0) - v.mean(0)) ** 2).sum()) for n, v in pairs]
    assert found == pytest.approx(sum(gaps) / max(1, sum(len(n) for n, _ in pairs)), abs=1e-9)


@settings(deadline=None)
@given(sides=_sides())
def test_mmd_by_loops(sides: Sides) -> None:
    found = float(MMD()(*(part.clone() for part in sides)))
    natural, _, weights, virtual, _ = sides
    both = torch.nn.functional.normalize(torch.cat([natural[weights > 0], virtual])).numpy()
    squares = [float(((a - b) ** 2).sum()) for i, a in enumerate(both) for b in both[:i]]
    width = float(np.mean(squares)) if squares else 0.0

    def mean_kernel(one: np.ndarray, other: np.ndarray) -> float:
        squared = ((one[:, None] - other[None]) ** 2).sum(2)
        return float(np.mean([np.exp(-squared / (f * width)).mean() for f in (0.25, 0.5, 1, 2, 4)]))

    pairs = _classes(sides)
    gaps = [len(n) * (mean_kernel(n, n) + mean_kernel(v, v) - 2 * mean_kernel(n, v)) for n, v in pairs]
    assert found == pytest.approx(sum(gaps) / max(1, sum(len(n) for n, _ in pairs)), abs=1e-9)


def test_the_width_has_no_gradient() -> None:
    """By finite differences with the width of where they start."""
    rng = np.random.default_rng(4)
    natural = torch.from_numpy(rng.standard_normal((4, 3))).requires_grad_()
    virtual, labels, ones = torch.from_numpy(rng.standard_normal((4, 3))), torch.arange(4) % 2, torch.ones(4)
    both = torch.nn.functional.normalize(torch.cat([natural.detach(), virtual]))
    width = float((torch.cdist(both, both) ** 2).sum() / (8 * 7))

    def by_hand(features: Tensor) -> float:
        unit, total = torch.nn.functional.normalize(torch.cat([features, virtual])), 0.0
        for label in (0, 1):
            own = unit[torch.cat([labels, labels]) == label]
            squared = torch.cdist(own, own) ** 2
            kernel = sum((-squared / (f * width)).exp() for f in (0.25, 0.5, 1, 2, 4)) / 5
            signs = torch.tensor([0.5, 0.5, -0.5, -0.5]).double()
            total += float(signs @ kernel @ signs) / 2
        return total

    MMD()(natural, labels, ones, virtual, labels).backward()
    assert natural.grad is not None
    for row, column in ((0, 0), (1, 2), (3, 1)):
        step = torch.zeros(4, 3, dtype=torch.float64)
        step[row, column] = 1e-6
        slope = (by_hand(natural.detach() + step) - by_hand(natural.detach() - step)) / 2e-6
        assert float(natural.grad[row, column]) == pytest.approx(slope, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("distance", [MMD(), Means()])
class TestBoth:
    def test_features_that_are_all_the_same(self, distance: Any) -> None:
        one = torch.tensor([[1.0, 0.0, 0.0]])  # of length 1 exactly, so that distances are 0 exactly
        features = one.repeat(4, 1).requires_grad_()
        found = distance(features, torch.zeros(4), torch.ones(4), one.repeat(2, 1), torch.zeros(2))
        found.backward()
        assert abs(found.item()) < 1e-6 and features.grad is not None and features.grad.isfinite().all()

    def test_half_precision_is_widened_first(self, distance: Any) -> None:
        rng = np.random.default_rng(5)
        one, other = (torch.from_numpy(rng.standard_normal((6, 4))).bfloat16() for _ in range(2))
        labels, ones = torch.arange(6) % 2, torch.ones(6)
        found = distance(one, labels, ones, other, labels)
        expected = distance(one.double(), labels, ones, other.double(), labels)
        assert found.dtype == torch.float32 and found.item() == pytest.approx(expected.item(), rel=1e-4)

    def test_equal_sets_are_at_distance_0(self, distance: Any) -> None:
        features = torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        labels = torch.arange(12) % 3
        same = distance(features, labels, torch.ones(12), features[labels.argsort()], labels.sort().values)
        assert abs(float(same)) < 1e-12
        moved = distance(features, labels, torch.ones(12), features + 1, labels)
        assert float(moved) > 0.01

    def test_it_grows_as_classes_are_swapped(self, distance: Any) -> None:
        features = torch.eye(2).repeat(4, 1) + 0.1 * torch.randn(
            8, 2, generator=torch.Generator().manual_seed(0)
        )
        labels = torch.arange(8) % 2
        right = distance(features, labels, torch.ones(8), features.flip(0), labels.flip(0))
        wrong = distance(features, labels, torch.ones(8), features.flip(0), 1 - labels.flip(0))
        assert float(wrong) > float(right) + 0.5

    def test_following_its_gradient_brings_natural_features_to_virtual_ones(self, distance: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        natural = torch.randn(20, 3, generator=generator, requires_grad=True)
        virtual = torch.randn(20, 3, generator=generator)
        sides = (torch.arange(20) % 2, torch.ones(20), virtual, torch.arange(20) % 2)
        optimizer = torch.optim.SGD([natural], lr=2.0)
        before = distance(natural, *sides).item()
        for _ in range(300):
            optimizer.zero_grad()
            distance(natural, *sides).backward()
            optimizer.step()
        assert natural.isfinite().all() and distance(natural, *sides).item() < 0.1 * before

    def test_no_class_in_common_is_0_and_has_no_gradient(self, distance: Any) -> None:
        natural = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
        found = distance(natural, torch.zeros(4), torch.ones(4), torch.ones(2, 3), torch.ones(2))
        found.backward()
        assert found.item() == 0 and natural.grad is not None and not natural.grad.any()

    def test_vhl_takes_it_by_name(self, distance: Any) -> None:
        assert VHL(distance=type(distance).__name__.lower()).distance == distance
