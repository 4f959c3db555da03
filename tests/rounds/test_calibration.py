"""CCVR's stage after the last round: its Gaussians as clients would send them, its classifier, its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from vhl.algorithms.base import FINAL, Calibration, Server
from vhl.errors import VHLError
from vhl.models.base import Model
from vhl.models.vectors import Layout
from vhl.rounds import calibration
from vhl.rounds.evaluation import look
from vhl.rounds.simulation import Simulation
from vhl.runs.model import trained_model
from vhl.session.session import Session

OPTIONS = {"name": "ccvr", "per_class": 30, "epochs": 2, "batch_size": 16}


@pytest.fixture
def made(digit_simulation: Any) -> Simulation:
    simulation: Simulation = digit_simulation(
        algorithm=OPTIONS, engine={"precision": "fp64"}, model={"name": "cnn", "width": 2}
    )
    return simulation


def test_pooled_gaussians_are_what_the_server_would_make_of_the_clients(made: Simulation) -> None:
    """Each client's means and covariances by NumPy, pooled by the paper's formulas (3) and (4)."""
    problem, model = made.problem, made.model
    found = calibration._gaussians(problem.moments(model))
    stream = problem.natural.train.plain()
    classes: dict[int, list[np.ndarray]] = {}
    for part in problem.parts:
        seen = look(model, stream, torch.from_numpy(part), problem.precision)
        for label in seen["labels"].unique().tolist():
            own = seen["features"][seen["labels"] == label].numpy()
            classes.setdefault(label, []).append(own)
    assert set(found) == set(classes) and max(map(len, classes.values())) > 1
    for label, clients in classes.items():
        sizes, means = [len(own) for own in clients], [own.mean(0) for own in clients]
        total = sum(sizes)
        mean = sum(n * m for n, m in zip(sizes, means, strict=True)) / total
        within = sum((len(own) - 1) * np.cov(own.T) if len(own) > 1 else 0 for own in clients)
        between = sum(n * np.outer(m, m) for n, m in zip(sizes, means, strict=True))
        covariance = (within + between - total * np.outer(mean, mean)) / (total - 1)
        np.testing.assert_allclose(found[label][0], mean, rtol=1e-9)
        root = found[label][1].numpy()
        np.testing.assert_allclose(root @ root.T, covariance, rtol=1e-6, atol=1e-10)


def test_a_class_with_one_image_is_drawn_where_that_lies() -> None:
    moments = {
        "counts": torch.tensor([1.0, 0.0]),
        "sums": torch.tensor([[2.0, 3.0], [0.0, 0.0]]).double(),
        "products": torch.tensor([[[4.0, 6.0], [6.0, 9.0]], [[0.0, 0.0], [0.0, 0.0]]]).double(),
    }
    ((label, (mean, root)),) = calibration._gaussians(moments).items()
    assert label == 0 and mean.tolist() == [2, 3] and not root.any()


def test_drawn_features_have_these_means_and_covariances() -> None:
    root = torch.tensor([[2.0, 0.0], [1.0, 0.5]]).double()
    gaussians = {3: (torch.tensor([1.0, -1.0]).double(), root), 5: (torch.zeros(2).double(), 0 * root)}
    features, labels = calibration._draw(gaussians, 40_000, np.random.default_rng(0))
    assert labels.tolist() == [3] * 40_000 + [5] * 40_000
    torch.testing.assert_close(features[:40_000].mean(0), gaussians[3][0], atol=0.03, rtol=0)
    torch.testing.assert_close(features[:40_000].T.cov(), root @ root.T, atol=0.08, rtol=0)
    assert not features[40_000:].any()


def test_the_classifier_by_an_independent_loop() -> None:
    """Softmax regression's gradient by hand."""
    rng = np.random.default_rng(1)
    features, labels = rng.standard_normal((10, 3)), rng.integers(0, 4, 10)
    weight, bias = rng.standard_normal((4, 3)), rng.standard_normal(4)
    settings = Calibration(per_class=1, epochs=2, lr=0.1, batch=4)
    found = calibration._train(
        (torch.from_numpy(weight), torch.from_numpy(bias)),
        torch.from_numpy(features),
        torch.from_numpy(labels),
        settings,
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


def test_only_the_classifier_changes_and_only_after_the_last_round(made: Simulation) -> None:
    made.run_round()
    assert FINAL not in made.state.server.state
    made.run_round()
    server, layout = made.state.server, made.model.layout
    before, after = layout.unpack(server.parameters, server.buffers), made.named_tensors()
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed == {"head.weight", "head.bias"} == set(made.problem.head)


def test_rounds_are_fedavgs_and_what_is_evaluated_is_the_new_classifier(
    made: Simulation, digit_simulation: Any
) -> None:
    plain = digit_simulation(engine={"precision": "fp64"}, model={"name": "cnn", "width": 2})
    records, others = list(made), list(plain)
    assert made.state.server.parameters.equal(plain.state.server.parameters)
    assert records[0].accuracy == others[0].accuracy
    network = made.problem.build(made.problem.shape.outputs).double().eval()
    network.load_state_dict(made.named_tensors())
    test = made.problem.natural.test
    with torch.no_grad():
        _, logits = network(test.batch(torch.arange(len(test)), {}))
    accuracy = (logits.argmax(1) == test.labels).double().mean().item()
    assert records[1].accuracy == pytest.approx(accuracy) and records[1].accuracy != others[1].accuracy
    sent = calibration.traffic(made.problem, made.model)
    assert records[1].bytes == others[1].bytes + sent and records[0].bytes == others[0].bytes
    down = sum(tensor.numel() for tensor in made.named_tensors().values())
    assert sent == 8 * 4 * (down + 4 * (1 + 8 + 36))  # 8 bytes, 4 clients, 4 classes, 8 features


def test_a_run_that_gets_more_rounds_goes_on_from_the_old_classifier(
    made: Simulation, digit_simulation: Any
) -> None:
    list(made)
    settings = {"algorithm": OPTIONS, "engine": {"precision": "fp64"}, "model": {"name": "cnn", "width": 2}}
    longer, whole = (digit_simulation(rounds=4, state=state, **settings) for state in (made.state, None))
    list(longer), list(whole)
    assert longer.state.server.parameters.equal(whole.state.server.parameters)
    assert longer.state.server.final.equal(whole.state.server.final)


def test_a_run_that_ended_gets_no_more_rounds(made: Simulation, tmp_path: Path, data_dir: Path) -> None:
    """Its last record is of the new classifier, which a longer run would not have had yet."""
    settings = {"data": "digits", "partition": {"name": "lda", "clients": 4}, "rounds": 1}
    experiment = made.experiment.with_(**settings)
    list(Session(experiment, tmp_path, data_dir=data_dir))
    assert list(Session(experiment, tmp_path, data_dir=data_dir, resume=True)) == []
    with pytest.raises(VHLError, match=r"ended with round 1, after which ccvr .* another name"):
        list(Session(experiment.with_(rounds=2), tmp_path, data_dir=data_dir, resume=True))


def test_a_classifier_that_is_not_finite_is_said(digit_simulation: Any) -> None:
    simulation = digit_simulation(algorithm={**OPTIONS, "lr": 1e300}, rounds=1)
    with pytest.raises(VHLError, match=r"Round 1: ccvr made a model that is infinite or NaN"):
        simulation.run_round()


def test_the_server_s_own_vectors_stay(made: Simulation) -> None:
    start, settings = made.state.server, Calibration(per_class=3, epochs=1, lr=0.01, batch=4)
    server = Server(start.parameters, start.buffers, {"kept": torch.ones(2)})
    found = calibration.calibrate(made.problem, made.model, server, settings)
    assert found.state.keys() == {"kept", FINAL}


def test_the_saved_model_is_the_calibrated_one(made: Simulation, tmp_path: Path, data_dir: Path) -> None:
    settings = {"data": "digits", "partition": {"name": "lda", "clients": 4}, "rounds": 1}
    session = Session(made.experiment.with_(**settings), tmp_path, data_dir=data_dir)
    list(session)
    assert session.problem is not None
    server = session.folder.load_state({**(session.folder.manifest() or {}), "clients": {}}).server
    assert not server.final.equal(server.parameters)
    layout = Layout(session.problem.build(10))
    saved, _ = trained_model(session.folder)
    assert saved["head.weight"].equal(layout.unpack(server.final, server.buffers)["head.weight"])


class _NoBias(nn.Module):
    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(inputs, 4), nn.Linear(4, classes, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        features = self.body(x.flatten(1))
        return {"last": features}, self.head(features)


class _NoBiasModel(Model):
    def build(self, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
        return _NoBias(channels * size[0] * size[1], classes)


def test_another_classifier_is_refused(digit_simulation: Any) -> None:
    with pytest.raises(VHLError, match="linear classifier with a bias"):
        digit_simulation(algorithm=OPTIONS, model=_NoBiasModel())


@pytest.mark.parametrize("objective", ["vhl", "naive", "vfa", "vftl"])
def test_with_every_objective(digit_simulation: Any, objective: str) -> None:
    simulation = digit_simulation(algorithm=OPTIONS, objective=objective, rounds=1)
    record = simulation.run_round()
    assert record.accuracy is not None and simulation.state.server.final.isfinite().all()


def test_it_is_of_the_server_whatever_the_model_held_before_and_of_the_experiment_s_chance(
    digit_simulation: Any,
) -> None:
    one, other = (digit_simulation(algorithm=OPTIONS, seeds={"batches": seed}) for seed in (0, 1))
    start, settings = one.state.server, Calibration(per_class=30, epochs=2, lr=0.01, batch=16)
    noise = torch.randn(start.parameters.shape, generator=torch.Generator().manual_seed(0))
    server = Server(start.parameters + 0.1 * noise, start.buffers + 0.1)

    def final(simulation: Simulation, held: Server) -> torch.Tensor:
        simulation.model.load(held.parameters, held.buffers)
        return calibration.calibrate(simulation.problem, simulation.model, server, settings).final

    assert final(one, start).equal(final(one, server))
    assert not final(one, server).equal(final(other, server))
