"""VHL in one file against the package: the same numbers, and the whole of it runs."""

from __future__ import annotations

import copy
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from vhl.models.base import Model
from vhl.objectives.base import Batch
from vhl.objectives.distances.supcon import supcon
from vhl.objectives.vhl import VHL
from vhl.rounds.sampling import learning_rate
from vhl.training.task import Job

FILE = Path(__file__).parents[2] / "examples" / "vhl_in_one_file.py"
SCRIPT = SimpleNamespace(**runpy.run_path(str(FILE)))
CLASSES = SCRIPT.CLASSES


class _Tapped(nn.Module):
    """The file's network as the package wants one: features by tap."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.network = SCRIPT.Network(outputs)

    def forward(self, images: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        features, logits = self.network(images)
        return {"last": features}, logits


class _OneFile(Model):
    """The network of the file."""

    def build(self, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
        return _Tapped(classes)


def random_batch(natural: int = 9, virtual: int = 14) -> tuple[torch.Tensor, ...]:
    """Features and logits in float64, natural labels and virtual ones; class 0 is natural only, and alone."""
    random = torch.Generator().manual_seed(natural)
    rows = natural + virtual
    features = torch.randn(rows, 12, generator=random, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(rows, 2 * CLASSES, generator=random, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(1, 4, (natural,), generator=random)
    labels[0] = 0
    return features, logits, labels, torch.randint(1, CLASSES, (virtual,), generator=random)


def test_it_imports_nothing_of_the_package():
    lines = FILE.read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if line.startswith(("import vhl", "from vhl"))]


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_its_supcon_is_ours(temperature):
    features, _, labels, virtual = random_batch()
    every = torch.cat([labels, virtual])
    found, wanted = (own(features, every, temperature=temperature) for own in (SCRIPT.supcon, supcon))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("pull", [1.0, 0.3])
def test_its_objective_is_ours_with_its_gradients(pull):
    features, logits, labels, virtual = random_batch()
    batch = Batch({"last": features}, logits, labels, torch.ones(9, dtype=torch.float64), CLASSES, virtual)
    wanted = sum(VHL(calibration=pull).loss(batch).values())
    found = SCRIPT.objective(features, logits, labels, virtual, pull)
    for one, other in zip(
        (found, *torch.autograd.grad(found, (features, logits))),
        (wanted, *torch.autograd.grad(wanted, (features, logits))),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("with_vhl", [False, True])
def test_a_local_step_goes_down_the_gradient_of_one_forward_pass(with_vhl):
    torch.manual_seed(0)
    model = SCRIPT.Network(2 * CLASSES)
    twin = copy.deepcopy(model)
    images, labels, noise, virtual = torch.randn(6, 1, 8, 8), torch.arange(6), *SCRIPT.noise(1)
    joined = (noise, virtual) if with_vhl else None
    SCRIPT.local_step(model, torch.optim.SGD(model.parameters(), 0.5), (images, labels), joined)
    features, logits = twin(torch.cat([images, noise]) if with_vhl else images)
    vhl = (features, logits, labels, virtual)
    loss = SCRIPT.objective(*vhl) if with_vhl else cross_entropy(logits, labels)
    gradients = torch.autograd.grad(loss, list(twin.parameters()))
    for after, before, gradient in zip(model.parameters(), twin.parameters(), gradients, strict=True):
        torch.testing.assert_close(after, before - 0.5 * gradient)
    for name, buffer in twin.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), buffer)


def test_models_are_averaged_by_samples_with_their_batch_norm():
    models = [SCRIPT.Network(CLASSES) for _ in range(2)]
    models[0](torch.randn(4, 1, 8, 8))
    mean = SCRIPT.average(models, [30, 10])
    assert any(name.endswith("running_var") for name in mean)
    for name, value in mean.items():
        one, other = (model.state_dict()[name] for model in models)
        torch.testing.assert_close(value, 0.75 * one + 0.25 * other)


def test_every_digit_is_dealt_out_once_and_shares_are_unequal():
    (_, labels), _ = SCRIPT.digits()
    parts = SCRIPT.deal(labels, np.random.default_rng(0))
    assert sorted(torch.cat(parts).tolist()) == list(range(len(labels)))
    assert len(parts) == SCRIPT.CLIENTS and min(map(len, parts)) >= CLASSES
    largest = [labels[part].bincount().max() / len(part) for part in parts]
    assert np.mean(largest) > 0.5  # of one class, where equal shares would give a tenth


def test_it_runs_to_its_end(capsys, one_thread):
    SCRIPT.main(seeds=1, rounds=2, last=1)
    heading, line = capsys.readouterr().out.splitlines()
    assert "last 1 of 2 rounds" in heading
    assert line.startswith("seed 0:") and line.count("%") == 4 and "FedAvg + VHL" in line
    assert SCRIPT.federated(True, 0, 1) == SCRIPT.federated(True, 0, 1)


@pytest.mark.parametrize("objective", ["plain", "vhl"])
def test_the_engine_is_equal_to_it(digit_simulation, objective, one_thread):
    """Two rounds in float64, with batches of 64 for clients whose samples are no multiple of 64."""
    simulation = digit_simulation(
        data={"name": "digits", "size": 8},
        objective=objective,
        model=_OneFile(),
        training={"batch_size": 64, "epochs": 2, "lr": 0.05},
        engine={"precision": "fp64"},
    )
    clients, server = simulation.clients, copy.deepcopy(simulation.setup.blueprint.build()).double()
    sizes = simulation.setup.sizes
    assert any(size % 64 for size in sizes)
    for round_ in range(2):
        parts = [Job(k, round_, clients.data.parts[k], 0.0, {}) for k in range(len(sizes))]
        models = []
        for size, schedule in zip(sizes, clients.task.schedules(parts), strict=True):
            model = copy.deepcopy(server).train()
            rate = learning_rate(simulation.experiment, round_, round_)
            optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=1e-4)
            for step, rows in enumerate(clients.task.rows(size)):
                natural, virtual = (_drawn(clients.task, schedule, kind, step, rows) for kind in KINDS)
                SCRIPT.local_step(_Untapped(model), optimizer, natural, virtual)
            models.append(model)
        server.load_state_dict(SCRIPT.average(models, list(sizes)))
    list(simulation)
    found = simulation.named_tensors()
    for name, wanted in server.state_dict().items():
        if wanted.is_floating_point():
            torch.testing.assert_close(found[name], wanted, rtol=1e-12, atol=1e-12)


KINDS = ("natural", "virtual")


def _drawn(task, schedule, kind, step, rows):
    """The images and labels of one step that the engine's schedule names."""
    stream, index = (task.natural, "index") if kind == "natural" else (task.virtual, "virtual")
    if index not in schedule:
        return None
    own = {name: v[step][: rows if kind == "natural" else None] for name, v in schedule.items()}
    choices = {name.removeprefix(f"{kind}."): v for name, v in own.items() if name.startswith(f"{kind}.")}
    return stream.batch(own[index], choices).contiguous(), stream.labels[own[index]]


class _Untapped:
    """The other way round: what the file's step calls."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features, logits = self._model(images)
        return features["last"], logits
