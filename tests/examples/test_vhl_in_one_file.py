"""VHL in one file against the package: the same numbers, and the whole of it runs."""

from __future__ import annotations

import copy
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from vhl.objectives.base import Batch
from vhl.objectives.distances.supcon import supcon
from vhl.objectives.vhl import VHL

FILE = Path(__file__).parents[2] / "examples" / "vhl_in_one_file.py"
SCRIPT = SimpleNamespace(**runpy.run_path(str(FILE)))
CLASSES = SCRIPT.CLASSES


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
