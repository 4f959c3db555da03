from __future__ import annotations

import numpy as np
import pytest
import torch

from vhl.rounds.snapshot import _spread

# Clients 0 and 1 of test_fedavg.py: after round 1 their models and the server's are these.
A, B = [(8, 0, 4)], [(0, 16, 4)] * 3
MODELS = {"client0": [4, 0, 2], "client1": [0, 14, 3.5], "server": [1, 10.5, 3.125]}


@pytest.fixture
def digits(digit_simulation):
    simulation = digit_simulation(objective="vhl", features_at=(1,), rounds=1)
    record = simulation.run_round()
    return simulation, record, simulation.snapshot


def test_models_are_looked_at_one_by_one(point_simulation):
    labels = [0, 0, 2, 1]
    simulation = point_simulation([A, B], labels=labels, training={"momentum": 0.25}, features_at=(1,))
    record = simulation.run_round()
    found, points = simulation.snapshot, np.array([*A, *B])
    accuracies = {}
    for who, weights in MODELS.items():
        logits = np.array(weights) - points
        assert found[f"{who}.test.logits"].tolist() == logits.tolist()
        assert found[f"{who}.test.features"].tolist() == points.tolist()
        assert found[f"{who}.test.labels"].tolist() == labels
        accuracies[who] = float((logits.argmax(1) == labels).mean())
    assert found["clients"].tolist() == [0, 1]
    assert found["client_accuracy"].tolist() == [accuracies["client0"], accuracies["client1"]]
    assert record.accuracy == accuracies["server"]
    simulation.run_round()
    assert simulation.snapshot is None


def test_contents_and_shapes(digits):
    simulation, _, found = digits
    whos = ("server", "client0", "client1", "client2")  # three of the four clients
    shapes = {"features": (40, 16), "logits": (40, 8), "labels": (40,)}
    expected = {
        f"{who}.{kind}.{name}": shape
        for who in whos
        for kind in ("test", "virtual")
        for name, shape in shapes.items()
    }
    expected |= {"head.head.weight": (8, 16), "head.head.bias": (8,), "confusion": (4, 8)}
    expected |= {"clients": (4,), "client_accuracy": (4,)}
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == expected
    assert found["server.test.labels"].tolist() == simulation.setup.test.labels.tolist()
    assert found["server.virtual.labels"].tolist() == simulation.setup.virtual.images.labels.tolist()


def test_head_turns_features_into_logits(digits):
    _, record, found = digits
    for kind in ("test", "virtual"):
        logits = found[f"server.{kind}.features"] @ found["head.head.weight"].T + found["head.head.bias"]
        np.testing.assert_allclose(found[f"server.{kind}.logits"], logits, atol=1e-5)
    predicted, labels = found["server.test.logits"].argmax(1), found["server.test.labels"]
    confusion = torch.zeros(4, 8, dtype=torch.int64)
    for label, output in zip(labels, predicted, strict=True):
        confusion[label, output] += 1
    assert found["confusion"].equal(confusion)
    assert record.accuracy == float((predicted == labels).double().mean())


def test_virtual_images_are_not_augmented(digits, as_input):
    simulation, _, found = digits
    module = simulation.setup.blueprint.build(8)
    module.load_state_dict(simulation.named_tensors())
    images = as_input(simulation.setup.virtual.images.images, 0.5, 0.25)
    with torch.no_grad():
        np.testing.assert_allclose(found["server.virtual.logits"], module.eval()(images)[1], atol=1e-5)


def test_no_virtual_images_without_virtual_data(digit_simulation):
    simulation = digit_simulation(features_at=(1,))
    simulation.run_round()
    assert not any("virtual" in name for name in simulation.snapshot)
    assert tuple(simulation.snapshot["server.test.logits"].shape) == (40, 4)


@pytest.mark.parametrize(
    ("count", "expected"), [(40, range(40)), (5_000, [n * 5 // 2 for n in range(2_000)])]
)
def test_large_sets_are_thinned_evenly(make_stream, count, expected):
    stream = make_stream(np.zeros((count, 1, 1, 1), np.uint8), np.zeros(count))
    assert _spread(stream).tolist() == list(expected)


def test_a_single_client_is_the_server(digit_simulation):
    simulation = digit_simulation(features_at=(1,), clients_per_round=1)
    record = simulation.run_round()
    found = simulation.snapshot
    assert found["clients"].tolist() == record.clients
    assert found[f"client{record.clients[0]}.test.logits"].equal(found["server.test.logits"])
    assert found["client_accuracy"].tolist() == pytest.approx([record.accuracy])
