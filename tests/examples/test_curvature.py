"""The second derivative against how gradients change, and the limit against descent itself."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from vhl.algorithms.base import Server
from vhl.config.sections import Training
from vhl.experiment import Experiment
from vhl.rounds.local import local
from vhl.runs.folder import RunFolder
from vhl.runs.model import saved_tensors
from vhl.session.session import Session
from vhl.training.step import Step
from vhl.training.task import Job
from vhl.training.trainer import Trainer

FILE = Path(__file__).parents[2] / "examples" / "curvature.py"
SCRIPT = SimpleNamespace(**runpy.run_path(str(FILE)))
SMOOTH = """
from torch import nn
from vhl.models.layers.norm import BatchNorm

class Smooth(nn.Module):
    def __init__(self, classes, channels, size):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, 2, 3, stride=4), BatchNorm(2), nn.Tanh())
        self.head = nn.Linear(2, classes)

    def forward(self, images):
        last = self.body(images).mean((2, 3))
        return {"last": last}, self.head(last)
"""
"""A network of 84 parameters, with virtual outputs, whose gradient has no jumps."""
Make = Callable[..., RunFolder]


@pytest.fixture(scope="module")
def make_run(write_digits: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A short run with two clients."""
    folder = tmp_path_factory.mktemp("curvature")
    file = write_digits(folder / "digits.npz", 40)
    (folder / "smooth.py").write_text(SMOOTH, encoding="utf-8")

    def make(objective: str, model: Any) -> RunFolder:
        experiment = Experiment(
            data={"name": "npz", "path": str(file)},
            partition={"name": "iid", "clients": 2},
            virtual={"name": "noise", "per_class": 8},
            model=model or f"{folder / 'smooth.py'}:Smooth",
            objective=objective,
            training={"batch_size": 8},
            rounds=1,
            name=objective,
        )
        session = Session(experiment, folder / "runs", resume=True)
        for _ in session:
            pass
        return session.folder

    return make


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_descent_on_a_parabola_ends_at_the_limit(momentum: float) -> None:
    training = Training(lr=0.1, momentum=momentum)
    for share, grows in ((0.98, False), (1.02, True)):
        weight, speed = 1.0, 0.0
        for _ in range(2_000):
            speed = momentum * speed + share * SCRIPT.limit(training) * weight
            weight -= training.lr * speed
        assert (abs(weight) > 1) == grows


@pytest.mark.parametrize("statistics", ["batch", "fixed"])
def test_a_clients_loss_bends_as_its_gradient_changes(make_run: Make, statistics: str) -> None:
    """All second derivatives from gradients a hair apart, in double precision."""
    run = make_run("naive", None)
    clients = local(run.experiment().with_(engine={"precision": "fp64"})).clients
    trainer = Trainer(Step(clients.task), frozen=statistics == "fixed")
    model = trainer.model
    weights, buffers = (v.double() for v in model.layout.pack(saved_tensors(run, "last", model.layout)))
    job = Job(0, 1, clients.data.parts[0], 0.01, {})
    (schedule,) = clients.task.schedules([job])
    trainer.begin(job, clients.task, Server(weights, buffers, {}), schedule)

    def gradient(at: torch.Tensor) -> np.ndarray:
        model.parameters.copy_(at)
        model.differentiate(trainer.loss()[0])
        return model.gradient.numpy().copy()

    steps = 1e-5 * torch.eye(len(weights), dtype=torch.float64)
    hessian = np.stack([(gradient(weights + step) - gradient(weights - step)) / 2e-5 for step in steps])
    assert np.allclose(hessian, hessian.T, atol=1e-6) and hessian.any(0).sum() == 84
    found = next(SCRIPT.of_clients(run, "last"))
    assert found[statistics] == pytest.approx(np.linalg.eigvalsh(hessian).max(), rel=0.02)


def test_what_is_printed(
    make_run: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of mosaics with weighted statistics too, but not by their own."""
    run = make_run("vhl-light", {"name": "resnet8", "width": 4})
    monkeypatch.setattr(sys, "argv", [str(FILE), str(run.path)])
    SCRIPT.main()
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == ["client 0", "client 1"]
    assert all(line.endswith(" with fixed statistics") and "batch" not in line for line in lines)
    assert last == "A rate of 0.01 with momentum 0.9 bears 380."


def test_a_round_that_was_not_kept_is_said(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(FILE), str(make_run("naive", None).path), "--round", "7"])
    with pytest.raises(SystemExit) as caught:
        SCRIPT.main()
    assert str(caught.value.code).startswith("curvature: ") and "keeps no model '7'" in str(caught.value.code)
