"""FedDF's stage on the server, against PyTorch's own Adam and losses."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vhl.algorithms.base import Server, Update, Work
from vhl.errors import VHLError
from vhl.rounds.distillation import Distiller
from vhl.rounds.simulation import Simulation
from vhl.training.stream import Stream

REAL = {"name": "noise", "per_class": 10, "crop": 1}
"""Forty images of four classes; to the distiller they are as real as any."""


@pytest.fixture
def simulation(digit_simulation: Any, small_digits: Any) -> Callable[..., Simulation]:
    def make(objective: str = "plain", **options: Any) -> Simulation:
        made: Simulation = digit_simulation(
            data=small_digits(validation=0.25),
            algorithm={"name": "feddf", "steps": 6, "check_every": 3, "batch_size": 5, **options},
            objective=objective,
            engine={"precision": "fp64"},
        )
        return made

    return make


def distiller_of(simulation: Simulation) -> Distiller:
    assert simulation._distiller is not None
    return simulation._distiller


def updates_of(simulation: Simulation, count: int = 3) -> list[Update]:
    """Client models that differ from the server's and from each other, in weights and statistics."""
    server, updates = simulation.state.server, []
    for client in range(count):
        generator = torch.Generator().manual_seed(client)
        noise = torch.randn(server.parameters.shape, generator=generator, dtype=server.parameters.dtype)
        parameters, buffers = server.parameters + 0.1 * noise, server.buffers + 0.1 * (client + 1)
        updates.append(Update(client, Work(1, 1, 0.1, 0.9), parameters, buffers, {}))
    return updates


def network_of(simulation: Simulation, parameters: Tensor, buffers: Tensor) -> nn.Module:
    module = copy.deepcopy(simulation.problem.build(simulation.problem.shape.outputs)).double()
    module.load_state_dict(simulation.model.layout.unpack(parameters, buffers))
    return module


@pytest.mark.parametrize("objective", ["plain", "vhl"])
@pytest.mark.parametrize(("clip", "check_every"), [(5.0, 6), (0.01, 2), (5.0, 100)])
def test_it_is_what_pytorch_computes(
    simulation: Any, monkeypatch: Any, objective: str, clip: float, check_every: int
) -> None:
    """Six steps on given images, however often they are looked at, and the state after the last."""
    made = simulation(objective, clip=clip, check_every=check_every, lr=0.01)
    better = itertools.count()
    monkeypatch.setattr(Distiller, "_accuracy", lambda self: float(next(better)))
    images = torch.randn(6, 5, 1, 8, 8, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    given = iter(images)
    monkeypatch.setattr(Distiller, "_images", lambda self: next(given))
    updates, server = updates_of(made), made.state.server
    found, steps = distiller_of(made)(server, updates, 0)

    student = network_of(made, server.parameters, server.buffers).train()
    teachers = [network_of(made, update.parameters, update.buffers).eval() for update in updates]
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    for step, batch in enumerate(images):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (1 + math.cos(math.pi * step / 6)) / 2
        with torch.no_grad():
            target = torch.stack([teacher(batch)[1] for teacher in teachers]).mean(0).softmax(1)
        own = student(batch)[1].softmax(1)
        optimizer.zero_grad()
        (target * (target.log() - own.log())).sum(1).mean().backward()
        nn.utils.clip_grad_norm_(student.parameters(), clip)
        optimizer.step()
    assert steps == 6 and own.shape[1] == (8 if objective == "vhl" else 4)
    tensors = made.model.layout.unpack(found.parameters, found.buffers)
    for name, tensor in student.state_dict().items():
        torch.testing.assert_close(tensors[name], tensor, rtol=1e-9, atol=1e-11)


@pytest.fixture
def scripted(simulation: Any, monkeypatch: Any) -> Callable[..., tuple[Simulation, int, int | None]]:
    """Distil with given accuracies; the steps taken, and after how many of them the kept state was."""

    def run(accuracies: list[float], **options: Any) -> tuple[Simulation, int, int | None]:
        made = simulation(steps=12, **options)
        distiller, looks, states = distiller_of(made), iter(accuracies), {}

        def accuracy(self: Distiller) -> float:
            student = self._student
            states[int(self._step)] = torch.cat([student.parameters, student.buffers])
            return next(looks)

        monkeypatch.setattr(Distiller, "_accuracy", accuracy)
        server, steps = distiller(made.state.server, updates_of(made), 0)
        found = torch.cat([server.parameters, server.buffers])
        kept = [step for step, state in states.items() if state.equal(found)]
        return made, steps, kept[0] if kept else None

    return run


@pytest.mark.parametrize(
    ("accuracies", "options", "steps", "kept"),
    [
        ([0.1, 0.3, 0.2, 0.25], {}, 12, 6),
        ([0.1, 0.3, 0.3, 0.1], {}, 12, 6),  # of equals the first
        ([0.3, 0.1, 0.2], {"patience": 6}, 9, 3),
        ([0.3, 0.1, 0.4, 0.2], {"patience": 6}, 12, 9),
        ([0.5, 0.1, 0.2, 0.3, 0.4], {"keep_average": True}, 12, 0),
        ([0.5, 0.1, 0.2], {"keep_average": True, "patience": 6}, 6, 0),
        ([0.1, 0.2, 0.1, 0.1, 0.1], {"keep_average": True}, 12, 3),
    ],
)
def test_which_state_is_kept(scripted: Any, accuracies: Any, options: Any, steps: int, kept: int) -> None:
    _, found, best = scripted(accuracies, **options)
    assert (found, best) == (steps, kept)


def test_the_last_stretch_may_be_shorter(scripted: Any) -> None:
    _, steps, kept = scripted([0.1, 0.2, 0.3], check_every=5)
    assert (steps, kept) == (12, 12)


def test_fresh_noise_reaches_from_minus_1_to_1(simulation: Any, monkeypatch: Any) -> None:
    seen: list[Tensor] = []
    draw = Distiller._images
    monkeypatch.setattr(Distiller, "_images", lambda self: seen.append(draw(self)) or seen[-1])
    made = simulation()
    distiller_of(made)(made.state.server, updates_of(made), 0)
    assert len(seen) == 6 and all(images.shape == (5, 1, 8, 8) for images in seen)
    assert all((float(images.min()), float(images.max())) == (-1, 1) for images in seen)
    assert len({float(images.sum()) for images in seen}) == 6
    pixels = torch.stack(seen)
    assert abs(float(pixels.mean())) < 0.2 and 0.2 < float(pixels.std()) < 0.6


def test_images_of_a_set_come_in_passes_augmented_and_normalised_as_natural_ones(
    simulation: Any, monkeypatch: Any
) -> None:
    made = simulation(images=REAL, batch_size=20, steps=4, check_every=4)
    stream, natural = made.problem.distillation, made.problem.natural.train
    assert len(stream) == 40 and stream.padding == 1
    assert stream.scale.equal(natural.scale) and stream.shift.equal(natural.shift)
    plans: list[dict[str, Tensor]] = []
    draw = Distiller._images

    def images(self: Distiller) -> Tensor:
        plans.append({name: rows[int(self._row)].clone() for name, rows in self._plan.items()})
        found = draw(self)
        assert found.equal(stream.batch(plans[-1].pop("index"), plans[-1]).to(found.dtype))
        return found

    monkeypatch.setattr(Distiller, "_images", images)
    indices: list[np.ndarray] = []
    order = Stream.order
    monkeypatch.setattr(Stream, "order", lambda *a: indices.append(order(*a)) or indices[-1])
    distiller_of(made)(made.state.server, updates_of(made), 0)
    (drawn,) = indices
    assert sorted(drawn[:40]) == sorted(drawn[40:]) == list(range(40)) and len(plans) == 4


def test_the_same_round_gives_the_same_bits_and_another_one_others(simulation: Any) -> None:
    for options in ({}, {"images": REAL}):
        made, again = simulation(**options), simulation(**options)
        updates, server = updates_of(made), made.state.server
        first, _ = distiller_of(made)(server, updates, 3)
        assert distiller_of(made)(server, updates, 3)[0].parameters.equal(first.parameters)
        assert distiller_of(again)(server, updates, 3)[0].parameters.equal(first.parameters)
        assert not distiller_of(again)(server, updates, 4)[0].parameters.equal(first.parameters)


def test_the_server_s_own_vectors_stay(simulation: Any) -> None:
    made = simulation()
    server = Server(made.state.server.parameters, made.state.server.buffers, {"kept": torch.ones(2)})
    distilled, _ = distiller_of(made)(server, updates_of(made), 0)
    assert distilled.state["kept"].tolist() == [1, 1]


def test_a_client_more_or_less(simulation: Any) -> None:
    """As when one is left out."""
    made, fresh = simulation(images=REAL), simulation(images=REAL)
    server = made.state.server
    distiller_of(made)(server, updates_of(made, 4), 0)
    two = updates_of(made, 2)
    found, alone = (distiller_of(one)(server, two, 1)[0] for one in (made, fresh))
    assert found.parameters.equal(alone.parameters)


def test_of_one_client_there_is_nothing_to_learn(simulation: Any) -> None:
    """Its model is the average; on noise, by batch statistics, the student would leave it."""
    made = simulation()
    server = made.state.server
    assert distiller_of(made)(server, updates_of(made, 1), 0) == (server, 0)


def test_rounds_of_feddf(simulation: Any) -> None:
    """It starts from FedAvg's average, and a run that is continued is the same to the bit."""
    made = simulation(images=REAL)
    records = list(made)
    assert [record.server for record in records] == [{"distillation_steps": 6}] * 2
    for record in records:
        natural = sum(len(made.problem.parts[client]) for client in record.clients)
        assert record.samples == natural + 6 * 5
    half = simulation(images=REAL)
    half.run_round()
    rest = Simulation(half.experiment, problem=half.problem, state=half.state)
    rest.run_round()
    assert rest.state.server.parameters.equal(made.state.server.parameters)
    assert rest.state.server.buffers.equal(made.state.server.buffers)


def test_validation_images_are_asked_for(digit_simulation: Any) -> None:
    with pytest.raises(VHLError, match=r"algorithm = feddf .* data\.validation"):
        digit_simulation(algorithm="feddf")


def test_the_best_on_validation_images_over_all_outputs_is_kept(simulation: Any, monkeypatch: Any) -> None:
    """Four states that say one thing of every image: class 0, twin 5 (then class 1), class 2, class 3."""
    made = simulation("vhl", steps=12)
    natural, server = made.problem.natural, made.state.server
    natural.validation.labels = torch.tensor([1] * 10 + [0] * 6 + [2] * 3 + [3])
    natural.test.labels = torch.full_like(natural.test.labels, 2)
    order = iter([[0], [5, 1], [2], [3]])

    def steps(self: Distiller, count: int, rng: np.random.Generator) -> None:
        bias = self._student.layout.views(self._student.parameters, self._student.buffers)["head.bias"]
        bias.zero_()
        for rank, output in enumerate(next(order)):
            bias[output] = 1e6 / (1 + rank)

    monkeypatch.setattr(Distiller, "_take_steps", steps)
    found, _ = distiller_of(made)(server, updates_of(made), 0)
    assert int(made.model.layout.unpack(found.parameters, found.buffers)["head.bias"].argmax()) == 0


def test_frozen_statistics_stay_from_their_round_on(digit_simulation: Any, small_digits: Any) -> None:
    shared = {
        "data": small_digits(validation=0.25),
        "training": {"batch_size": 8, "freeze_batch_norm": 1},
        "engine": {"precision": "fp64"},
    }
    distilled = {"name": "feddf", "steps": 6, "check_every": 3, "batch_size": 5}
    made, average = (digit_simulation(algorithm=name, **shared) for name in (distilled, "fedavg"))
    server = made.state.server
    for round_ in (0, 1, 2, 0):
        found, _ = distiller_of(made)(server, updates_of(made), round_)
        assert found.buffers.equal(server.buffers) == (round_ >= 1)
        assert not found.parameters.equal(server.parameters)
    made.run_round()
    average.run_round()
    first = made.state.server.buffers
    assert not torch.allclose(first, average.state.server.buffers, rtol=1e-3)
    made.run_round()
    torch.testing.assert_close(made.state.server.buffers, first, rtol=1e-9, atol=1e-12)
