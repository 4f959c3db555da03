from __future__ import annotations

import numpy as np
import pytest
import torch

from vhl.config.registry import build
from vhl.errors import VHLError
from vhl.objectives.base import Objective
from vhl.objectives.distances.supcon import SupCon
from vhl.objectives.naive import Naive
from vhl.objectives.vhl import VHL


@pytest.mark.parametrize(
    ("classes", "virtual_classes", "virtual_rows"), [(4, 4, 9), (4, 4, 3), (4, 6, 14), (5, 3, 14)]
)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"calibration": 0.3},
        {"virtual_calibration": 0.1},
        {"distance": SupCon(temperature=0.5), "virtual_calibration": 2.0},
        {"tap": "stage2", "virtual_calibration": 1.0},
        {"tap": "shallow", "calibration": 2.5},
        {"detach": False},
        {"shared_labels": True},
    ],
)
def test_its_terms_are_equation_4(
    make_batch, cross_entropy, contrast, settings, classes, virtual_classes, virtual_rows
):
    batch = make_batch(classes, classes + virtual_classes, 9, virtual_rows, virtual_classes)
    terms = VHL(**settings).loss(batch)

    offset = 0 if settings.get("shared_labels") else classes
    temperature = settings["distance"].temperature if "distance" in settings else 0.07
    tap = "stage2" if settings.get("tap") in ("stage2", "shallow") else "last"
    features = batch.features[tap].detach().numpy()
    labels = np.concatenate([batch.labels, batch.virtual_labels])
    weights = np.concatenate([batch.weights, np.ones(virtual_rows)])
    expected = {
        "natural": cross_entropy(batch.logits[:9], batch.labels, batch.weights),
        "virtual": cross_entropy(batch.logits[9:], batch.virtual_labels + offset),
        "calibration": settings.get("calibration", 1.0) * contrast(features, labels, weights, temperature),
    }
    if "virtual_calibration" in settings:
        among_virtual = contrast(features[9:], labels[9:], weights[9:], temperature)
        expected["virtual_calibration"] = settings["virtual_calibration"] * among_virtual
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(expected)


@pytest.mark.parametrize("detach", [True, False])
def test_the_pull_reaches_virtual_features_only_where_not_detached(make_batch, detach):
    batch = make_batch(virtual=6)
    terms = VHL(detach=detach).loss(batch)
    (gradient,) = torch.autograd.grad(terms["calibration"], batch.features["last"])
    assert (gradient[:7] != 0).any(1).all()
    assert (gradient[7:9] == 0).all()  # fillers
    assert (gradient[9:] != 0).any(1).all() if not detach else (gradient[9:] == 0).all()


def test_supcon_among_virtual_features_trains_those_alone(make_batch):
    batch = make_batch(virtual=6)
    terms = VHL(virtual_calibration=0.1).loss(batch)
    (gradient,) = torch.autograd.grad(terms["virtual_calibration"], batch.features["last"])
    assert (gradient[:9] == 0).all() and (gradient[9:] != 0).any(1).all()


def test_without_its_weights_it_is_naive(make_batch):
    batch = make_batch(virtual=6)
    ours = VHL(calibration=0, virtual_calibration=0).loss(batch)
    assert {k: v.item() for k, v in ours.items()} == {k: v.item() for k, v in Naive().loss(batch).items()}


@pytest.mark.parametrize("tap", ["last", "stage2"])
def test_a_distance_of_ones_own_gets_vectors_of_both_sides(make_batch, recorder, tap):
    distance, received = recorder
    batch = make_batch(virtual=5)
    term = VHL(distance=distance, tap=tap, calibration=2.0).loss(batch)["calibration"]
    natural, labels, weights, virtual, virtual_labels = received[0]
    flat = batch.features[tap].detach().reshape(14, -1)
    assert torch.equal(natural, flat[:9]) and torch.equal(virtual, flat[9:])
    assert labels is batch.labels and weights is batch.weights and virtual_labels is batch.virtual_labels
    assert natural.requires_grad and not virtual.requires_grad
    assert term.item() == pytest.approx(2.0 * np.square(flat.numpy()).sum())


def test_supcon_among_virtual_features_is_refused_with_another_distance(recorder):
    with pytest.raises(VHLError, match=r"objective = vhl: virtual_calibration .* set it to 0"):
        build(Objective, "objective", {"name": "vhl", "distance": recorder[0], "virtual_calibration": 0.1})


@pytest.mark.parametrize(
    ("given", "kept"),
    [("shallow", "stage2"), ("middle", "stage3"), ("deep", "stage4"), ("last", "last"), ("stage1", "stage1")],
)
def test_the_papers_names_of_taps_are_stages(given, kept):
    assert VHL(tap=given).tap == kept
