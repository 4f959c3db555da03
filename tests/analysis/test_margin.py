from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import Tensor

from vhl.analysis.margin import class_mean, classify, margins, mean_margin
from vhl.errors import VHLError


def _least_distance(normals: np.ndarray, needed: np.ndarray) -> float:
    """min ‖δ‖ with normals · δ ≥ needed, by least squares (Lawson and Hanson, 1974, chapter 23)."""
    system = np.vstack([normals.T, needed])
    target = np.append(np.zeros(normals.shape[1]), 1.0)
    residual = system @ nnls(system, target)[0] - target
    if np.linalg.norm(residual) < 1e-7:  # no δ will do
        return math.inf
    return float(np.linalg.norm(residual[:-1] / residual[-1]))


def _by_programmes(features, labels, weight, bias, classes: int) -> list[float]:
    """The definition: the nearest point where some output of another class is as large as all of the own."""
    features, weight, bias = features.double().numpy(), weight.double().numpy(), bias.double().numpy()
    found = []
    for feature, label in zip(features, labels.tolist(), strict=True):
        logits = weight @ feature + bias
        own = [output for output in range(len(bias)) if output % classes == label]
        found.append(
            min(
                _least_distance(weight[other] - weight[own], logits[own] - logits[other])
                for other in range(len(bias))
                if other not in own
            )
        )
    return found


Problem = tuple[Tensor, Tensor, Tensor, Tensor, int]


@st.composite
def _problems(draw: st.DrawFn, dimensions: int = 4) -> Problem:
    """Heads plain and merged; of small whole numbers, many have equal rows and parallel normals.

    Sixteenths keep the others well-conditioned.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    classes, size, count = draw(st.integers(2, 4)), draw(st.integers(1, dimensions)), 6
    outputs = classes * draw(st.integers(1, 2))
    if draw(st.booleans()):
        weight, bias = rng.integers(-1, 2, (outputs, size)), rng.integers(-2, 3, outputs)
        features = rng.integers(-4, 5, (count, size))
    else:
        weight, bias = rng.integers(-32, 33, (outputs, size)) / 16, rng.integers(-32, 33, outputs) / 16
        features = rng.integers(-64, 65, (count, size)) / 16
    head = torch.from_numpy(weight).double(), torch.from_numpy(bias).double()
    features = torch.from_numpy(features).double()
    labels = classify(features, *head, classes)
    labels[0] = (labels[0] + 1) % classes  # one is wrong
    return features, labels, *head, classes


@settings(deadline=None, max_examples=150)
@given(_problems())
def test_it_is_the_quadratic_programme(problem):
    assert margins(*problem).tolist() == pytest.approx(_by_programmes(*problem), rel=1e-6, abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(_problems(dimensions=1))
def test_on_a_line_all_normals_are_parallel(problem):
    assert margins(*problem).tolist() == pytest.approx(_by_programmes(*problem), rel=1e-6, abs=1e-9)


@settings(deadline=None)
@given(_problems(), st.integers(0, 2**32 - 1))
def test_no_point_within_the_margin_is_of_another_class(problem, seed):
    features, labels, *head = problem
    found = margins(*problem).clamp(max=1e3)
    directions = torch.randn(200, *features.shape, generator=torch.Generator().manual_seed(seed)).double()
    steps = 0.999 * found[:, None] * directions / directions.norm(dim=2, keepdim=True)
    inside = torch.stack([classify(points, *head) for points in features + steps])
    assert (inside == labels)[:, found > 1e-9].all()


@settings(deadline=None)
@given(_problems())
def test_it_changes_no_faster_than_the_feature(problem):
    """With one label for all, right or wrong: the lemma stands on this."""
    features, labels, *head = problem
    found = margins(features, labels[:1].expand_as(labels), *head)
    if found.isfinite().all():
        assert ((found[:, None] - found).abs() <= torch.cdist(features, features) + 1e-9).all()


@settings(deadline=None)
@given(_problems(), st.floats(0.01, 100), st.integers(0, 2**32 - 1))
def test_rotation_and_shift_change_nothing_and_scale_scales(problem, scale, seed):
    features, labels, weight, bias, classes = problem
    expected = pytest.approx(margins(*problem).tolist(), rel=1e-6, abs=1e-9)
    generator = torch.Generator().manual_seed(seed)
    size = features.shape[1]
    rotation = torch.linalg.qr(torch.randn(size, size, generator=generator).double())[0]
    shift = torch.randn(size, generator=generator).double()
    rotated = margins(features @ rotation, labels, weight @ rotation, bias, classes)
    shifted = margins(features + shift, labels, weight, bias - weight @ shift, classes)
    scaled = margins(features * scale, labels, weight, bias * scale, classes)
    sharper = margins(features, labels, weight * scale, bias * scale, classes)
    for same in (rotated, shifted, scaled / scale, sharper):
        assert same.tolist() == expected


def test_two_borders_at_a_corner():
    weight = torch.tensor([[-1.0, 0.0], [0.0, 0.0], [0.0, -1.0], [0.0, 0.0]])
    bias = torch.tensor(
        [1.0, 0.0, 1.0, -9.0]
    )  # output 1 wins where x ≥ 1 and y ≥ 1, output 3 never before it
    features = torch.tensor([[0.0, 0.0], [-2.0, -3.0], [3.0, 0.0], [0.5, 4.0], [2.0, 3.0]])
    expected = [math.sqrt(2), 5.0, 1.0, 0.5, 0.0]  # both borders, both, y = 1 alone, x = 1 alone, wrong
    assert margins(features, torch.zeros(5).long(), weight, bias, 2).tolist() == pytest.approx(expected)


def test_own_outputs_are_no_border():
    weight, bias = torch.tensor([[1.0], [0.0], [2.0], [0.0]]), torch.tensor([0.0, 0.0, -5.0, 0.0])
    feature = torch.tensor([[5.1]])  # at 5 the natural output gives way to its virtual twin
    assert margins(feature, torch.tensor([0]), weight, bias, 2).item() == pytest.approx(5.1)
    assert margins(feature, torch.tensor([2]), weight, bias, 4).item() == pytest.approx(0.1, rel=1e-5)


def test_an_output_that_is_never_largest_is_at_no_distance():
    weight, bias = torch.tensor([[1.0], [0.0], [-1.0], [0.0]]), torch.tensor([0.0, -1.0, 0.0, -2.0])
    features = torch.tensor([[3.0], [-0.5]])  # |x| ≥ 0 > -1 everywhere
    assert margins(features, torch.tensor([0, 0]), weight, bias, 2).tolist() == [math.inf, math.inf]


@pytest.mark.parametrize("bias, expected", [([0.0, -1.0], math.inf), ([0.0, 0.0], 0.0), ([0.0, 1.0], 0.0)])
def test_equal_rows_never_change_places(bias, expected):
    weight = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    assert margins(torch.ones(1, 2), torch.tensor([0]), weight, torch.tensor(bias), 2).item() == expected


@pytest.mark.parametrize("seed", range(20))
def test_borders_that_coincide_up_to_rounding(seed):
    """Output 1 is as large as both rivals on one plane alone, or beyond it."""
    rng = np.random.default_rng(seed)
    normal, features = rng.standard_normal(7), rng.standard_normal((5, 7))
    normal /= np.linalg.norm(normal)
    slopes, height = rng.uniform(0.1, 3, 2), rng.standard_normal()
    expected = np.abs(features @ normal - height)
    for signs in ((1, -1), (1, 1)):
        factors = slopes * signs
        weight = np.stack([factors[0] * normal, 0 * normal, factors[1] * normal, 0 * normal])
        bias = np.array([-factors[0] * height, 0, -factors[1] * height, -1])
        side = np.ones(5) if signs == (1, -1) else np.sign(features @ normal - height)
        found = margins(
            torch.tensor(features), torch.zeros(5).long(), torch.tensor(weight), torch.tensor(bias), 2
        )
        np.testing.assert_allclose(found, np.where(side > 0, expected, 0), rtol=1e-9)


def test_single_precision_is_measured_in_double():
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(6, 40, generator=generator), torch.randn(6, generator=generator)
    features = torch.randn(30, 40, generator=generator)
    labels = classify(features, weight, bias, 3)
    found = margins(features, labels, weight, bias, 3)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(_by_programmes(features, labels, weight, bias, 3), rel=1e-9)


def test_the_mean_weighs_classes_by_the_given_frequencies():
    values, labels = torch.tensor([1.0, 3.0, 10.0]).double(), torch.tensor([0, 0, 2])
    assert class_mean(values, labels, torch.tensor([0.75, 0.0, 0.25])) == pytest.approx(0.75 * 2 + 0.25 * 10)
    with pytest.raises(VHLError, match="Class 1 has 0 samples"):
        class_mean(values, labels, torch.tensor([0.5, 0.25, 0.25]))
    head = torch.tensor([[0.0], [1.0]]), torch.zeros(2)
    features, labels = torch.tensor([[-1.0], [2.0], [4.0]]), torch.tensor([0, 1, 1])
    assert mean_margin(features, labels, *head, 2, torch.tensor([0.5, 0.5])) == pytest.approx(
        0.5 * 1 + 0.5 * 3
    )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"classes": 3}, "4 outputs has no margin for 3 classes"),
        ({"classes": 1, "bias": torch.zeros(1), "weight": torch.zeros(1, 3)}, "two classes at least"),
        ({"weight": torch.zeros(4, 5)}, r"\(4, 5\) do not fit"),
        ({"features": torch.zeros(3)}, r"Features \(3,\)"),
        ({"labels": torch.zeros(5).long()}, r"labels \(5,\)"),
        ({"labels": torch.tensor([0, 2])}, "must be 0 to 1"),
        ({"labels": torch.tensor([0, -1])}, "must be 0 to 1"),
        ({"features": torch.tensor([[0.0, math.nan, 0.0]] * 2)}, "not finite"),
        ({"bias": torch.tensor([0.0, 0.0, 0.0, math.inf])}, "not finite"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    fitting = {"features": torch.zeros(2, 3), "labels": torch.zeros(2).long(), "weight": torch.zeros(4, 3)}
    fitting |= {"bias": torch.zeros(4), "classes": 2}
    margins(**fitting)
    with pytest.raises(VHLError, match=message):
        margins(**(fitting | changes))
