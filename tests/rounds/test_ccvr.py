"""CCVR after the last round: its Gaussians as clients would send them, its classifier, its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from vhl.algorithms.base import FINAL, Server
from vhl.algorithms.ccvr import CCVR, _draw, _gaussians
from vhl.data.images import ImageSet
from vhl.errors import VHLError
from vhl.models.base import Model
from vhl.rounds.simulation import Simulation
from vhl.runs.model import trained_model
from vhl.session.session import Session

OPTIONS = {"name": "ccvr", "per_class": 30, "epochs": 2, "batch_size": 16}
Make = Callable[..., Simulation]


@pytest.fixture
def make(digit_simulation: Make) -> Make:
    """Four clients, four classes, a network of eight features; double precision."""

    def simulation(algorithm: Any = OPTIONS, **settings: Any) -> Simulation:
        defaults = {"engine": {"precision": "fp64"}, "model": {"name": "cnn", "width": 2}}
        return digit_simulation(algorithm=algorithm, **{**defaults, **settings})

    return simulation


def features_of(simulation: Simulation, server: Server, images: ImageSet) -> np.ndarray:
    """What the server's network makes of images."""
    mean, std = (own.item() for own in simulation.setup.data.statistics)
    network = simulation.setup.blueprint.build().double().eval()
    network.load_state_dict(simulation.model.layout.unpack(server.parameters, server.buffers))
    with torch.no_grad():
        taps, _ = network(torch.from_numpy((images.images.transpose(0, 3, 1, 2) / 255 - mean) / std))
    return taps["last"].numpy()


# --- its parts -----------------------------------------------------------------------------------------


def test_pooled_gaussians_are_what_the_server_would_make_of_the_clients(make: Make) -> None:
    """Each client's means and covariances by NumPy, pooled by the paper's formulas (3) and (4)."""
    made = make()
    made.run_round()
    server, dataset = made.state.server, made.experiment.data.load(None, 0)
    clients, labels = made.experiment.partition.assign(dataset, 0), dataset.train.labels
    features = features_of(made, server, dataset.train)
    found = _gaussians(made.clients.moments(server))
    assert set(found) == {0, 1, 2, 3}
    for label, (mean, root) in found.items():
        held = [features[part][labels[part] == label] for part in clients]
        held = [own for own in held if len(own)]
        sizes, means = [len(own) for own in held], [own.mean(0) for own in held]
        total, pooled = sum(sizes), np.average(means, axis=0, weights=sizes)
        within = sum((len(own) - 1) * np.cov(own.T) if len(own) > 1 else 0 for own in held)
        between = sum(n * np.outer(m, m) for n, m in zip(sizes, means, strict=True))
        covariance = (within + between - total * np.outer(pooled, pooled)) / (total - 1)
        np.testing.assert_allclose(mean, pooled, rtol=1e-9)
        np.testing.assert_allclose(root @ root.T, covariance, rtol=1e-6, atol=1e-10)
        np.testing.assert_allclose(covariance, np.cov(features[labels == label].T), rtol=1e-6, atol=1e-10)
        assert len(held) > 1


def test_a_class_with_one_image_is_drawn_where_that_lies_and_one_without_is_left_out() -> None:
    moments = {
        "counts": torch.tensor([1.0, 0.0]),
        "sums": torch.tensor([[2.0, 3.0], [0.0, 0.0]]).double(),
        "products": torch.tensor([[[4.0, 6.0], [6.0, 9.0]], [[0.0, 0.0], [0.0, 0.0]]]).double(),
    }
    ((label, (mean, root)),) = _gaussians(moments).items()
    assert label == 0 and mean.tolist() == [2, 3] and not root.any()


def test_drawn_features_have_these_means_and_covariances() -> None:
    root = torch.tensor([[2.0, 0.0], [1.0, 0.5]]).double()
    gaussians = {3: (torch.tensor([1.0, -1.0]).double(), root), 5: (torch.zeros(2).double(), 0 * root)}
    features, labels = _draw(gaussians, 40_000, np.random.default_rng(0))
    assert labels.tolist() == [3] * 40_000 + [5] * 40_000
    torch.testing.assert_close(features[:40_000].mean(0), gaussians[3][0], atol=0.03, rtol=0)
    torch.testing.assert_close(features[:40_000].T.cov(), root @ root.T, atol=0.08, rtol=0)
    assert not features[40_000:].any()


def test_the_classifier_by_an_independent_loop() -> None:
    """Softmax regression's gradient by hand."""
    rng = np.random.default_rng(1)
    features, labels = rng.standard_normal((10, 3)), rng.integers(0, 4, 10)
    weight, bias = rng.standard_normal((4, 3)), rng.standard_normal(4)
    found = CCVR(per_class=1, epochs=2, lr=0.1, batch_size=4)._trained(
        (torch.from_numpy(weight), torch.from_numpy(bias)),
        torch.from_numpy(features),
        torch.from_numpy(labels),
        np.random.default_rng(5),
    )
    order, velocity = np.random.default_rng(5), [np.zeros((4, 3)), np.zeros(4)]
    for _ in range(2):
        shuffled = order.permutation(10)
        for batch in (shuffled[:4], shuffled[4:8], shuffled[8:]):
            logits = features[batch] @ weight.T + bias
            wrong = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - np.eye(4)[labels[batch]]
            gradients = wrong.T @ features[batch] / len(batch), wrong.mean(0)
            velocity = [0.9 * v + g for v, g in zip(velocity, gradients, strict=True)]
            weight, bias = weight - 0.1 * velocity[0], bias - 0.1 * velocity[1]
    np.testing.assert_allclose(found[0], weight, rtol=1e-9)
    np.testing.assert_allclose(found[1], bias, rtol=1e-9)


# --- its place in a run --------------------------------------------------------------------------------


def test_rounds_are_fedavgs_and_what_is_evaluated_is_the_new_classifier(make: Make) -> None:
    """Nothing but the head is new, and only after the last round; it is used, but not trained from."""
    made, plain = make(), make("fedavg")
    records, others = [made.run_round()], list(plain)
    assert FINAL not in made.state.server.state and records[0].server is None
    records.append(made.run_round())
    server, layout = made.state.server, made.model.layout
    assert server.parameters.equal(plain.state.server.parameters)
    before, after = layout.unpack(server.parameters, server.buffers), made.named_tensors()
    assert {name for name in before if not before[name].equal(after[name])} == {"head.weight", "head.bias"}

    test = made.experiment.data.load(None, 0).test
    features = features_of(made, server, test)
    says = (features @ after["head.weight"].numpy().T + after["head.bias"].numpy()).argmax(1)
    assert records[1].accuracy == (says == test.labels).mean() != others[1].accuracy
    assert records[0].accuracy == others[0].accuracy


def test_what_is_sent_for_it(make: Make) -> None:
    """Down the model; up, of 4 classes and 8 features, counts, sums and half of the symmetric products."""
    made = make()
    records, others = list(made), list(make("fedavg"))
    down = sum(tensor.numel() for tensor in made.named_tensors().values())
    sent = 8 * 4 * (down + 4 * (1 + 8 + 36))  # 8 bytes, 4 clients
    assert [a.bytes - b.bytes for a, b in zip(records, others, strict=True)] == [0, sent]


def test_a_run_that_gets_more_rounds_goes_on_from_the_old_classifier(make: Make) -> None:
    made, whole = make(), make(rounds=4)
    list(made)
    longer = make(rounds=4, state=made.state)
    list(longer), list(whole)
    assert longer.state.server.parameters.equal(whole.state.server.parameters)
    assert longer.state.server.final.equal(whole.state.server.final)


def test_it_is_of_the_server_and_of_the_experiments_chance(make: Make) -> None:
    """Whatever other models there were before; the server's own vectors stay."""

    def final(simulation: Simulation, offset: float = 0.0, seed: int = 0) -> torch.Tensor:
        start, stage = simulation.state.server, simulation.stage
        noise = torch.randn(start.parameters.shape, generator=torch.Generator().manual_seed(seed))
        parameters = start.parameters + 0.1 * noise
        server = Server(parameters, start.buffers + 0.1 + offset, {"kept": torch.ones(2)})
        stage.begin(2)
        found = simulation.experiment.algorithm.after_round(server, [], stage)
        assert found.state.keys() == {"kept", FINAL} and found.parameters.equal(parameters)
        return found.final

    one, other = make(), make(seeds={"batches": 1})
    first = final(one)
    assert not final(one, 0.3, 4).equal(first)
    assert final(one).equal(first) and not final(other).equal(first)


def test_a_classifier_that_is_not_finite_is_said(make: Make) -> None:
    with pytest.raises(VHLError, match=r"Round 1: ccvr made a model that is infinite or NaN"):
        make({**OPTIONS, "lr": 1e300}, rounds=1, engine={"precision": "fp32"}).run_round()


@pytest.mark.parametrize("objective", ["vhl", "naive", "vfa", "vftl"])
def test_with_every_objective(make: Make, objective: str) -> None:
    simulation = make(objective=objective, rounds=1)
    assert simulation.run_round().accuracy is not None and simulation.state.server.final.isfinite().all()


class _NoBias(Model):
    """A classifier without a bias."""

    def build(self, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.head = nn.Linear(channels * size[0] * size[1], classes, bias=False)

            def forward(self, images: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
                return {"last": images.flatten(1)}, self.head(images.flatten(1))

        return Net()


def test_a_classifier_that_cannot_be_retrained_is_an_error_before_training(make: Make) -> None:
    with pytest.raises(VHLError, match="linear classifier"):
        make(model=_NoBias())
    make("fedavg", model=_NoBias())


def test_a_run_in_its_folder(make: Make, tmp_path: Path, data_dir: Path) -> None:
    """The saved model is the retrained one, and a run that ended so gets no more rounds."""
    settings = {"data": "digits", "partition": {"name": "lda", "clients": 4}, "rounds": 1}
    experiment = make().experiment.with_(**settings)
    session = Session(experiment, tmp_path, data_dir=data_dir)
    list(session)
    server = session.folder.load_state(session.folder.manifest() or {}).server
    assert not server.final.equal(server.parameters)
    blueprint = Simulation(experiment, data_dir).setup.blueprint
    saved, _ = trained_model(session.folder)
    head = blueprint.linear_head(blueprint.layout.views(server.final, server.buffers))
    assert saved["head.weight"].equal(head[0]) and saved["head.bias"].equal(head[1])
    assert list(Session(experiment, tmp_path, data_dir=data_dir, resume=True)) == []
    with pytest.raises(VHLError, match=r"ended with round 1, after which ccvr .* another name"):
        list(Session(experiment.with_(rounds=2), tmp_path, data_dir=data_dir, resume=True))
