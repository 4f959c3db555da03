from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from vhl.algorithms.moon import MOON
from vhl.objectives.base import Batch
from vhl.training.task import Job


def _cosine(one: Any, other: Any) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))


def _contrast(features: Tensor, server: Tensor, previous: Tensor, weights: Tensor, tau: float) -> float:
    """The formula, sample by sample."""
    total = 0.0
    for z, near, far, weight in zip(
        *(t.tolist() for t in (features, server, previous, weights)), strict=True
    ):
        near, far = math.exp(_cosine(z, near) / tau), math.exp(_cosine(z, far) / tau)
        total -= weight * math.log(near / (near + far))
    return total / float(weights.sum())


@pytest.mark.parametrize("options", [{}, {"mu": 0.5, "temperature": 0.1}])
def test_the_term_is_the_formula(options: dict[str, float]) -> None:
    rng = np.random.default_rng(0)
    features, server, previous = (torch.from_numpy(rng.standard_normal((5, 4))) for _ in range(3))
    virtual, weights = torch.ones(2, 4, dtype=torch.float64), torch.tensor([1.0, 1, 0, 1, 1]).double()
    labels = torch.zeros(5, dtype=torch.int64)
    batch = Batch({"last": torch.cat([features, virtual])}, torch.zeros(7, 3), labels, weights, 3, labels[:2])
    terms = MOON(**options).loss(batch, {"server": server, "previous": previous})
    expected = _contrast(features, server, previous, weights, options.get("temperature", 0.5))
    assert set(terms) == {"contrast"}
    assert float(terms["contrast"]) == pytest.approx(options.get("mu", 5.0) * expected, rel=1e-12)


def test_features_may_be_maps() -> None:
    """A network's last features are what its head takes; it may flatten them itself."""
    rng = np.random.default_rng(1)
    features, server, previous = (torch.from_numpy(rng.standard_normal((5, 2, 3, 3))) for _ in range(3))
    labels, weights = torch.zeros(5, dtype=torch.int64), torch.ones(5, dtype=torch.float64)
    batch = Batch({"last": features}, torch.zeros(5, 3), labels, weights, 3)
    found = MOON(mu=1).loss(batch, {"server": server, "previous": previous})["contrast"]
    flat = [maps.flatten(1) for maps in (features, server, previous)]
    assert float(found) == pytest.approx(_contrast(*flat, weights, 0.5), rel=1e-12)


def test_half_precision_is_widened_first() -> None:
    rng = np.random.default_rng(2)
    features, server, previous = (torch.from_numpy(rng.standard_normal((5, 4))).bfloat16() for _ in range(3))
    labels, weights = torch.zeros(5, dtype=torch.int64), torch.ones(5)
    batch = Batch({"last": features}, torch.zeros(5, 3), labels, weights, 3)
    found = MOON(mu=1).loss(batch, {"server": server, "previous": previous})["contrast"]
    expected = _contrast(features.double(), server.double(), previous.double(), weights, 0.5)
    assert found.dtype == torch.float32 and float(found) == pytest.approx(expected, rel=1e-5)


def test_two_rounds_by_an_independent_loop(digit_simulation: Any, parts_of: Any) -> None:
    """Networks of their own for all three roles; images and batches are the engine's."""
    simulation = digit_simulation(
        algorithm={"name": "moon", "mu": 2.0},
        partition={"name": "iid", "clients": 2},
        engine={"precision": "fp64"},
        training={"batch_size": 8, "lr": 0.05, "lr_decay": 1.0, "momentum": 0.5, "weight_decay": 0.0},
    )
    server = copy.deepcopy(simulation.model.module).double()
    previous, parts = [copy.deepcopy(server) for _ in range(2)], parts_of(simulation)
    for round_ in range(2):
        trained = [_train(simulation, round_, n, parts[n], server, previous[n]) for n in range(2)]
        sizes = simulation.setup.sizes
        mean = {
            name: sum(n * model.state_dict()[name] for n, model in zip(sizes, trained, strict=True))
            / sum(sizes)
            for name in server.state_dict()
        }
        server.load_state_dict(mean)
        previous = trained
        record = simulation.run_round()
        for name, tensor in simulation.named_tensors().items():
            torch.testing.assert_close(tensor, mean[name], rtol=1e-9, atol=1e-12)
    assert record.loss["contrast"] > 0


def _train(simulation: Any, round_: int, client: int, samples: Tensor, server: Any, previous: Any) -> Any:
    """Clients of 40 samples: their batches of 8 are whole."""
    task = simulation.clients.task
    model, server, previous = copy.deepcopy(server).train(), server.eval(), previous.eval()
    (schedule,) = task.schedules([Job(client, round_, samples, 0.05, {})])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    for step, index in enumerate(schedule["index"]):
        choices = {name[8:]: rows[step] for name, rows in schedule.items() if name.startswith("natural.")}
        images = task.natural.batch(index, choices)
        features, logits = model(images)
        with torch.no_grad():
            near, far = (other(images)[0]["last"] for other in (server, previous))
        z = features["last"]
        similarities = torch.stack([torch.cosine_similarity(z, other) for other in (near, far)], 1)
        contrast = -(similarities / 0.5).log_softmax(1)[:, 0]
        optimizer.zero_grad()
        (cross_entropy(logits, task.natural.labels[index]) + 2 * contrast.mean()).backward()
        optimizer.step()
    return model


def test_without_the_term_it_is_fedavg_to_the_bit(digit_simulation: Any) -> None:
    one, other = (
        digit_simulation(algorithm=algorithm, objective="vhl")
        for algorithm in ("fedavg", {"name": "moon", "mu": 0})
    )
    for _ in range(2):
        one.run_round(), other.run_round()
    assert one.state.server.parameters.equal(other.state.server.parameters)
    assert one.state.server.buffers.equal(other.state.server.buffers)


def test_two_more_passes_forward_are_counted_as_compute(digit_simulation: Any) -> None:
    plain, vhl = (digit_simulation(algorithm="moon", objective=o).setup.compute for o in ("plain", "vhl"))
    without = digit_simulation(algorithm="fedavg", objective="vhl").setup.compute
    assert plain == pytest.approx(1 + 2 / 3)
    assert vhl > without + 2 / 3


def test_its_own_model_is_not_sent(digit_simulation: Any) -> None:
    moon, fedavg = (digit_simulation(algorithm=name) for name in ("moon", "fedavg"))
    assert moon.run_round().bytes == fedavg.run_round().bytes
