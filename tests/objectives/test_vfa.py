from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from vhl.objectives.distances.supcon import SupCon
from vhl.objectives.vfa import VFA

_LENGTHS = {"last": 6, "stage2": 18}


def _with_chance(make_batch, objective: VFA, **more):
    """A batch with what the objective shares, and the list of the numbers that it draws."""
    shared = objective.shared(4, _LENGTHS, seed=3)
    rng, drawn = np.random.default_rng(0), []

    def normal(shape):
        drawn.append(torch.from_numpy(rng.standard_normal(shape)))
        return drawn[-1]

    batch = make_batch(outputs=4, shared={"means": torch.from_numpy(shared["means"])}, normal=normal, **more)
    return batch, drawn


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"calibration": 0.3},
        {"deviation": 0.5},
        {"tap": "stage2"},
        {"tap": "shallow", "distance": SupCon(temperature=0.4)},
    ],
)
def test_its_terms_are_those_of_section_5_3(make_batch, cross_entropy, contrast, settings):
    objective = VFA(**settings)
    batch, drawn = _with_chance(make_batch, objective)
    terms = {name: term.item() for name, term in objective.loss(batch).items()}

    means, (noise,) = batch.shared["means"].numpy(), drawn
    noise = noise.numpy()
    targets = [means[c] + settings.get("deviation", 0.05) * noise[c, i] for c in range(4) for i in range(3)]
    features = batch.features["stage2" if "tap" in settings else "last"].detach().numpy().reshape(9, -1)
    temperature = settings["distance"].temperature if "distance" in settings else 0.07
    pull = contrast(
        np.concatenate([features, targets]),
        np.concatenate([batch.labels, np.repeat(np.arange(4), 3)]),
        np.concatenate([batch.weights, np.ones(12)]),
        temperature,
    )
    assert terms == {
        "natural": pytest.approx(cross_entropy(batch.logits, batch.labels, batch.weights)),
        "calibration": pytest.approx(settings.get("calibration", 1.0) * pull, rel=1e-5),
    }


@pytest.mark.parametrize(("size", "per_class"), [(0, 3), (9, 3), (12, 4), (128, 33), (3, 1)])
def test_each_step_draws_one_more_than_a_whole_batch_holds_of_a_class(make_batch, size, per_class):
    """Of nine natural rows; a short batch draws as much as any other."""
    batch, drawn = _with_chance(make_batch, VFA(), size=size)
    VFA().loss(batch)
    assert [noise.shape for noise in drawn] == [(4, per_class, 6)]


def test_class_means_are_uniform_and_depend_on_the_seed_alone():
    means = VFA().shared(10, {"last": 512, "stage2": 8}, seed=3)["means"]
    assert means.shape == (10, 512)
    assert means.min() >= 0 and means.max() <= 1
    assert kstest(means.ravel(), "uniform").pvalue > 0.01
    assert (VFA(deviation=9).shared(10, {"last": 512}, seed=3)["means"] == means).all()
    assert (VFA().shared(10, {"last": 512}, seed=4)["means"] != means).any()
    assert VFA(tap="stage2").shared(10, {"last": 512, "stage2": 8}, seed=3)["means"].shape == (10, 8)


@pytest.mark.parametrize(
    ("settings", "deviation"), [({}, 0.05), ({"deviation": 0.2}, 0.2), ({"deviation": 0}, 0)]
)
def test_drawn_features_surround_their_class_mean(make_batch, recorder, settings, deviation):
    distance, received = recorder
    objective = VFA(distance=distance, **settings)
    batch, _ = _with_chance(make_batch, objective, size=4_000)
    objective.loss(batch)
    *_, drawn, labels = received[0]
    assert torch.bincount(labels).tolist() == [1001] * 4
    away = drawn - batch.shared["means"][labels]
    standard_error = deviation / np.sqrt(away.numel())
    assert abs(away.mean().item()) <= 4 * standard_error + 1e-7
    assert away.std().item() == pytest.approx(deviation, rel=0.05, abs=1e-6)


def test_the_pull_trains_natural_features_but_not_fillers(make_batch):
    objective = VFA()
    batch, _ = _with_chance(make_batch, objective)
    (gradient,) = torch.autograd.grad(objective.loss(batch)["calibration"], batch.features["last"])
    assert (gradient[:7] != 0).any(1).all() and (gradient[7:] == 0).all()


@pytest.mark.parametrize("tap", ["last", "stage2"])
def test_a_distance_of_ones_own_gets_vectors(make_batch, recorder, tap):
    distance, received = recorder
    objective = VFA(distance=distance, tap=tap)
    batch, _ = _with_chance(make_batch, objective)
    objective.loss(batch)
    assert torch.equal(received[0][0], batch.features[tap].reshape(9, _LENGTHS[tap]))
