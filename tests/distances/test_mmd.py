from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vhl.distances.mmd import MMD, Means
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


@pytest.mark.parametrize("distance", [MMD(), Means()])
class TestBoth:
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
