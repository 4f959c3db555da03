from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from vhl.algorithms.base import Algorithm
from vhl.algorithms.fedavg import FedAvg
from vhl.algorithms.scaffold import SCAFFOLD
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.models.layers.norm import BatchNorm
from vhl.objectives.vhl_light import VHLLight
from vhl.rounds.simulation import Simulation, simulate

# As in the tests of algorithms: after round 1 the clients are (4, 0, 2) and (0, 14, 3.5), their weighted mean
# is (1, 10.5, 3.125), and so is FedAvg's server. The third, where it takes part, comes to (100, 100, 100).
A, B, C = [(8, 0, 4)], [(0, 16, 4)] * 3, [(200, 200, 200)]
MOMENTUM = {"momentum": 0.25}
EVERYTHING = {
    "objective": "vhl",
    "algorithm": "scaffold",
    "training": {"batch_size": 8, "keep_momentum": True, "decay_per": "participation"},
    "clients_per_round": 3,
    "rounds": 3,
}


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_equal_experiments_give_equal_runs_whatever_the_number_of_lanes(
    digit_simulation, assert_same_run, lanes
):
    assert_same_run(digit_simulation(lanes=lanes, **EVERYTHING), digit_simulation(**EVERYTHING))


def test_another_seed_of_batches_is_another_run(digit_simulation):
    one, other = digit_simulation(**EVERYTHING), digit_simulation(**EVERYTHING, seeds={"batches": 1})
    assert [r.clients for r in one] == [r.clients for r in other]
    assert not one.state.server.parameters.equal(other.state.server.parameters)


@pytest.mark.parametrize("done", [1, 2])
def test_continuing_from_a_state_is_going_on(digit_simulation, comparable, assert_same_state, done):
    whole, part = digit_simulation(**EVERYTHING), digit_simulation(**EVERYTHING)
    records = comparable(whole)
    for _ in range(done):
        part.run_round()
    rest = digit_simulation(state=part.state, **EVERYTHING)
    assert comparable(rest) == records[done:]
    assert_same_state(rest, whole)


def test_measures_by_hand(point_simulation):
    """Labels (argmax of w − x): a is 1 and right; b's three are 0, of which 0, 0 are right and 2 wrong."""
    simulation = point_simulation([A, B], labels=[1, 0, 0, 2], training=MOMENTUM)
    record = simulation.run_round()
    assert record.round == 1 and record.clients == [0, 1] and record.left_out == []
    # ½‖(8, 0, 4)‖² = 40; ½‖(0, 16, 4)‖² = 136 and at half the distance 34: three steps
    assert record.loss == {"quadratic": (40 + 136 + 34) / 3}
    assert record.train_accuracy == 3 / 4  # fillers are not counted
    assert record.virtual_accuracy is None
    distances = [math.hypot(3, 10.5, 1.125), math.hypot(1, 3.5, 0.375)]
    assert record.drift == pytest.approx(sum(distances) / 2, rel=1e-6)
    assert record.learning_rate == 0.5
    assert record.samples == 4
    assert record.compute == 1.0
    assert record.bytes == 2 * 2 * (3 + 1) * 4  # two clients, down and up, four numbers of four bytes
    # test images are the training images: w − x = (−7, 10.5, −.875) and (1, −5.5, −.875)
    assert record.accuracy == record.natural_accuracy == 3 / 4
    assert record.per_class == [1.0, 1.0, 0.0]
    assert record.seconds > 0


@pytest.mark.parametrize("algorithm", ["fedavg", {"name": "fedavg", "weighting": "uniform"}, "fednova"])
def test_drift_is_from_the_mean_of_the_clients_not_from_the_server(point_simulation, weights_of, algorithm):
    simulation = point_simulation([A, B, C], algorithm=algorithm, training=MOMENTUM)
    record = simulation.run_round()
    clients = np.array([[4, 0, 2], [0, 14, 3.5], [100, 100, 100]])
    mean = np.average(clients, axis=0, weights=[1, 1, 1] if isinstance(algorithm, dict) else [1, 3, 1])
    assert record.drift == pytest.approx(np.linalg.norm(clients - mean, axis=1).mean(), rel=1e-6)
    assert np.allclose(weights_of(simulation), mean) == (algorithm != "fednova")


def test_control_variates_are_sent_both_ways(point_simulation):
    record = point_simulation([A, B], algorithm="scaffold").run_round()
    assert record.bytes == 2 * 2 * (3 + 1 + 3) * 4


def test_samples_of_both_kinds(digit_simulation):
    """E (Σ n + steps · B_v), with 3 steps of batch 8 for each of four clients with 20 samples."""
    settings = {"partition": "iid:4", "training": {"batch_size": 8, "epochs": 2}}
    assert digit_simulation(**settings).run_round().samples == 2 * 80
    assert digit_simulation(objective="vhl", **settings).run_round().samples == 2 * (80 + 4 * 3 * 6)
    light = digit_simulation(objective={"name": "vhl-light", "virtual_batch": 8}, **settings).run_round()
    assert light.samples == 2 * (80 + 4 * 3 * 2)  # a mosaic is one


def test_accuracies_while_training(digit_simulation):
    """Of the rows that were there, short batches and tiles included."""
    hits = []

    class Watching(VHLLight):
        def loss(self, batch):
            predicted, natural = batch.logits.argmax(1), len(batch.labels)
            hits.append(
                (predicted[:natural] == batch.labels, predicted[natural:] == batch.virtual_labels + 4)
            )
            return super().loss(batch)

    training = {"batch_size": 8, "epochs": 2, "lr": 0.1}
    record = digit_simulation(objective=Watching(virtual_batch=12), training=training).run_round()
    natural, virtual = (torch.cat(own).double() for own in zip(*hits, strict=True))
    assert len(natural) == 2 * 80 and record.train_accuracy == pytest.approx(float(natural.mean()))
    assert record.virtual_accuracy == pytest.approx(float(virtual.mean())) and virtual.any()


@pytest.mark.parametrize("basis", ["round", "participation"])
def test_learning_rate_by_participation(point_simulation, basis):
    """One of three clients a round, of which some come again sooner than others."""
    training = {"lr": 0.5, "lr_decay": 0.5, "decay_per": basis}
    turns = Counter()
    for record in point_simulation([A, B, C], training=training, rounds=5, clients_per_round=1):
        (client,) = record.clients
        past = record.round - 1 if basis == "round" else turns[client]
        assert record.learning_rate == 0.5 * 0.5**past
        turns[client] += 1
    assert len(turns) > 1 and max(turns.values()) > 1


def dataset_of(simulation):
    """The images, as the source gives them."""
    return simulation.experiment.data.load(None, 0)


def predictions(simulation, images, as_input):
    """An independent look: the saved tensors in a fresh network, pixels normalised in NumPy."""
    module = simulation.setup.blueprint.build()
    module.load_state_dict(simulation.named_tensors())
    train = dataset_of(simulation).train.images / 255
    with torch.no_grad():
        return module.eval()(as_input(images, train.mean(), train.std()))[1].numpy()


def test_accuracies_on_test_and_validation_images(digit_simulation, small_digits, as_input):
    simulation = digit_simulation(
        data=small_digits(validation=0.25, crop=2),
        partition="iid:4",
        objective="vhl",
        training={"batch_size": 8, "lr": 0.1},
        rounds=25,
    )
    records = list(simulation)
    dataset = dataset_of(simulation)
    assert len(dataset.validation) == 20 and len(dataset.train) == 60
    logits, labels = predictions(simulation, dataset.test.images, as_input), dataset.test.labels
    hits = logits.argmax(1) == labels
    assert records[-1].accuracy == hits.mean()
    assert records[-1].natural_accuracy == (logits[:, :4].argmax(1) == labels).mean()
    assert records[-1].per_class == [hits[labels == c].mean() for c in range(4)]
    held = predictions(simulation, dataset.validation.images, as_input).argmax(1)
    assert records[-1].validation_accuracy == (held == dataset.validation.labels).mean()
    assert 0 < hits.mean() < 1 and len(set(logits.argmax(1))) > 1  # else all this could agree by chance


def test_no_validation_accuracy_without_validation_images(digit_simulation):
    assert digit_simulation().run_round().validation_accuracy is None


def test_evaluation_is_as_often_as_asked_for_and_at_the_end(point_simulation):
    simulation = point_simulation([A, B], rounds=5, evaluate_every=2, features_at=(1,))
    found = []
    for record in simulation:
        found.append(record.accuracy is not None)
        assert (record.per_class is None) == (record.natural_accuracy is None) == (not found[-1])
        assert (simulation.snapshot is not None) == (record.round == 1)
        assert (simulation.evaluation is not None) == found[-1]
    assert found == [True, True, False, True, True]


@pytest.fixture
def poisoned(quadratic):
    """An objective that turns NaN for clients with a sample of label 2."""

    class Poisoned(quadratic):
        def loss(self, batch):
            poison = torch.where((batch.labels == 2).any(), torch.nan, 1.0)
            return {name: term * poison for name, term in super().loss(batch).items()}

    return Poisoned()


def test_a_client_that_is_not_finite_is_left_out(point_simulation, weights_of, poisoned):
    """Round 1 is healthy, so that client 2 has a state of its own; in round 2 it goes wrong."""
    settings = {
        "labels": [0, 0, 0, 0, 2],
        "algorithm": "scaffold",
        "training": {"momentum": 0.25, "keep_momentum": True, "decay_per": "participation"},
    }
    healthy = point_simulation([A, B, C], **settings)
    healthy.run_round()
    experiment = point_simulation([A, B, C], objective=poisoned, **settings).experiment
    simulation = Simulation(experiment, state=healthy.state)
    record = simulation.run_round()
    assert record.clients == [0, 1, 2] and record.left_out == [2]
    assert np.isfinite(weights_of(simulation)).all()
    before, after = healthy.state, simulation.state
    assert all(after.clients[2][name] is before.clients[2][name] for name in ("control", "engine.momentum"))
    assert not after.clients[0]["control"].equal(before.clients[0]["control"])
    assert after.participations == {0: 2, 1: 2, 2: 2} and after.round == 2
    assert math.isfinite(record.loss["quadratic"]) and math.isfinite(record.drift)
    assert record.bytes == 3 * 2 * (3 + 1 + 3) * 4  # it was sent all the same


def test_the_others_are_averaged_as_if_it_had_not_been_there(point_simulation, weights_of, poisoned):
    labels = [0, 0, 0, 0, 2]
    simulation = point_simulation([A, B, C], labels=labels, training=MOMENTUM, objective=poisoned)
    record = simulation.run_round()
    assert weights_of(simulation).tolist() == [1, 10.5, 3.125]
    assert simulation.named_tensors()["batches"].tolist() == [1.75]
    assert record.loss == {"quadratic": 70.0} and record.left_out == [2]
    assert record.drift == pytest.approx((math.hypot(3, 10.5, 1.125) + math.hypot(1, 3.5, 0.375)) / 2)


def test_a_round_without_any_finite_client_stops_the_run(point_simulation, poisoned):
    simulation = point_simulation([C, C], labels=[2, 2], objective=poisoned)
    before = simulation.state
    with pytest.raises(VHLError, match=r"Round 1.*lower training\.lr \(now 0\.5\)"):
        simulation.run_round()
    assert simulation.state is before


class _Makes(FedAvg):
    """An average that comes out as a test says, from its second round on."""

    def __init__(self, make):
        super().__init__()
        object.__setattr__(self, "make", make)

    def aggregate(self, server, updates, clients):
        parameters, state = super().aggregate(server, updates, clients)
        return self.make(parameters, state) if server.parameters.any() else (parameters, state)


def test_a_method_that_makes_nan_of_numbers_stops_the_run(point_simulation):
    broken = _Makes(lambda parameters, state: (parameters * torch.nan, state))
    simulation = point_simulation([A, B], rounds=3, algorithm=broken)
    simulation.run_round()
    with pytest.raises(
        VHLError, match=r"Round 2: .*Makes made a model that is infinite or NaN .* round 1 is"
    ):
        simulation.run_round()
    assert simulation.state.round == 1 and simulation.state.server.parameters.isfinite().all()


def test_a_round_that_is_interrupted_on_the_server_has_not_happened(point_simulation):
    class Slow(FedAvg):
        def after_round(self, server, updates, stage):
            if stage.round == 2 and interrupts:
                raise interrupts.pop()
            return server

    interrupts = [KeyboardInterrupt()]
    simulation = point_simulation([A, B], rounds=2, algorithm=Slow())
    simulation.run_round()
    with pytest.raises(KeyboardInterrupt):
        simulation.run_round()
    assert simulation.run_round().round == 2
    whole = point_simulation([A, B], rounds=2)
    list(whole)
    assert simulation.state.server.parameters.equal(whole.state.server.parameters)


@pytest.mark.parametrize(
    "made", [torch.zeros(4), (torch.zeros(3), {}), (torch.zeros(4), None), ([0.0] * 4, {}), None]
)
def test_what_no_aggregate_can_be_is_refused(point_simulation, made):
    simulation = point_simulation([A, B], algorithm=_Makes(lambda *_: made))
    length = len(simulation.state.server.parameters)
    assert length not in (3, 4)  # vectors are padded
    simulation.run_round()
    with pytest.raises(VHLError, match=f"Makes: aggregate must return a tensor of {length} parameters and"):
        simulation.run_round()


@pytest.mark.parametrize(
    "terms",
    [
        lambda loss: loss,
        lambda loss: {},
        lambda loss: {"a": loss.item()},
        lambda loss: {"a": loss.repeat(2)},
        lambda loss: {"a": loss.detach()},
    ],
)
def test_what_no_loss_can_be_is_refused(point_simulation, quadratic, terms):
    class Wrong(quadratic):
        def loss(self, batch):
            return terms(*super().loss(batch).values())

    words = "loss must return its terms by name, tensors of one number each|no term of it has a gradient"
    with pytest.raises(VHLError, match=words):
        point_simulation([A, B], objective=Wrong()).run_round()


def test_too_high_a_learning_rate_stops_the_run(point_simulation):
    simulation = point_simulation([A, B], training={"lr": 1e30}, rounds=9)
    with pytest.raises(VHLError, match="every client's model became infinite or NaN"):
        list(simulation)
    assert simulation.state.server.parameters.isfinite().all()


def test_more_clients_than_there_are_is_refused_before_training(point_simulation):
    with pytest.raises(VHLError, match="there are 2 clients"):
        point_simulation([A, B], clients_per_round=3)


@pytest.mark.parametrize(
    ("precision", "dtype", "tolerance"), [("fp64", torch.float64, 1e-11), ("fp32", torch.float32, 1e-3)]
)
def test_centralized_is_plain_sgd(
    digit_simulation, small_digits, passes, torch_training, precision, dtype, tolerance
):
    """80 images in batches of 32, the last of 16; momentum goes on, the rate decays with each round."""
    simulation = digit_simulation(
        partition="centralized",
        training={"lr": 0.05, "lr_decay": 0.5, "batch_size": 32, "weight_decay": 0.01},
        rounds=3,
        data=small_digits(crop=0),
        engine={"precision": precision},
    )
    module, train = simulation.setup.blueprint.build().to(dtype), dataset_of(simulation).train
    pixels, labels = train.images.transpose(0, 3, 1, 2) / 255, torch.from_numpy(train.labels)
    images = torch.from_numpy((pixels - pixels.mean()) / pixels.std()).to(dtype)
    sgd = torch.optim.SGD(module.parameters(), 0.05, 0.9, weight_decay=0.01)
    for round_ in range(3):
        sgd.param_groups[0]["lr"] = 0.05 * 0.5**round_
        torch_training(module, sgd, images, labels, passes(0, round_, 0, 80, 32))
    list(simulation)
    trained = simulation.named_tensors()
    for name, tensor in module.state_dict().items():
        np.testing.assert_allclose(trained[name], tensor, rtol=tolerance, atol=tolerance / 100, err_msg=name)


OWN = """
import torch

class Softmax(torch.nn.Module):
    def __init__(self, classes, inputs):
        super().__init__()
        self.layer = torch.nn.Linear(inputs, classes)
        torch.nn.init.zeros_(self.layer.weight)
        torch.nn.init.zeros_(self.layer.bias)

    def forward(self, images):
        pixels = images.flatten(1)
        return {"last": pixels}, self.layer(pixels)

def build(classes, channels, size):
    return Softmax(classes, channels * size[0] * size[1])
"""


def test_own_network_on_own_images(tmp_path, passes):
    """Softmax regression in NumPy: the gradient of a row is (softmax − one-hot) xᵀ."""
    rng = np.random.default_rng(1)
    images, labels = rng.integers(0, 256, (12, 2, 2), np.uint8), np.arange(12) % 3
    sites = np.array(["north"] * 5 + ["south"] * 7)
    (tmp_path / "own.py").write_text(OWN)
    np.savez(
        tmp_path / "own.npz",
        images=images,
        labels=labels,
        sites=sites,
        test_images=images,
        test_labels=labels,
    )
    experiment = Experiment(
        data={"name": f"npz:{tmp_path / 'own.npz'}", "crop": 0, "mean": (0.5,), "std": (0.25,)},
        partition="given",
        model=f"{tmp_path / 'own.py'}:build",
        objective="plain",
        training={"lr": 0.1, "batch_size": 3, "lr_decay": 1.0, "weight_decay": 0.0},
        clients_per_round=2,
        rounds=2,
        device="cpu",
    )
    inputs = np.concatenate([(images.reshape(12, 4) / 255 - 0.5) / 0.25, np.ones((12, 1))], 1)
    server = np.zeros((3, 5))
    for round_ in range(2):
        clients = []
        for client, own in enumerate([np.arange(5), np.arange(5, 12)]):
            weights, velocity = server.copy(), np.zeros((3, 5))
            for batch in passes(0, round_, client, len(own), 3):
                rows = own[batch]
                powers = np.exp(inputs[rows] @ weights.T)
                error = powers / powers.sum(1, keepdims=True) - np.eye(3)[labels[rows]]
                velocity = 0.9 * velocity + error.T @ inputs[rows] / len(rows)
                weights -= 0.1 * velocity
            clients.append(weights)
        server = (5 * clients[0] + 7 * clients[1]) / 12
    simulation = Simulation(experiment)
    records = list(simulation)
    found = simulation.named_tensors()
    np.testing.assert_allclose(found["layer.weight"], server[:, :4], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["layer.bias"], server[:, 4], rtol=1e-4, atol=1e-6)
    assert records[-1].accuracy == np.mean((inputs @ server.T).argmax(1) == labels)
    assert [record.round for record in simulate(experiment)] == [1, 2]


def test_own_algorithm_needs_only_its_difference(point_simulation, weights_of):
    """Hooks in their order: gradients are doubled before momentum, weights are cut after the step."""

    class Own(SCAFFOLD):
        def correct_gradient(self, gradient, weights, client):
            gradient.mul_(2)

        def correct_weights(self, weights, rate, client):
            weights.clamp_(max=6)

    assert issubclass(Own, Algorithm)
    simulation = point_simulation([[(8, 0, 4)]], algorithm=Own(), training={"lr": 0.25})
    simulation.run_round()
    assert weights_of(simulation).tolist() == [4, 0, 2]
    simulation.run_round()
    assert weights_of(simulation).tolist() == [6, 0, 3]


def test_what_was_found_in_a_round_stays_as_it_is(digit_simulation):
    simulation = digit_simulation(features_at=(1,), training={"batch_size": 8, "lr": 0.3})
    simulation.run_round()
    tables = [simulation.evaluation.confusion, simulation.snapshot["confusion"]]
    before = [table.clone() for table in tables]
    simulation.run_round()
    assert not simulation.evaluation.confusion.equal(before[0])
    assert all(table.equal(old) for table, old in zip(tables, before, strict=True))


@pytest.mark.parametrize("kernels", [True, False])
def test_a_network_is_evaluated_by_kernels_where_there_are_any(digit_simulation, kernels):
    federation = digit_simulation().federation
    federation.lanes.kernels = kernels
    simulation = Simulation(federation.setup.experiment, federation=federation)
    layers = simulation.model.module.modules()
    assert {layer.fused for layer in layers if isinstance(layer, BatchNorm)} == {kernels}


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_a_network_is_evaluated_with_weights_cast_once(digit_simulation, precision, dtype):
    """Not in every forward pass: its layers hold them in the type that they compute in."""
    simulation = digit_simulation(engine={"precision": precision})
    assert simulation.model.module.head.weight.dtype == dtype
