"""Rounds of FedDF, its distillation against PyTorch's own Adam and losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vhl.algorithms.base import Server, Update, Work
from vhl.errors import VHLError
from vhl.models.vectors import FlatModel
from vhl.rounds.simulation import Simulation
from vhl.rounds.stage import ServerStage

REAL = {"name": "noise", "per_class": 10, "crop": 1}
"""Forty images of four classes; to the distiller they are as real as any."""
OPTIONS = {"name": "feddf", "steps": 6, "check_every": 3, "batch_size": 5}
Make = Callable[..., Simulation]


@pytest.fixture
def make(digit_simulation: Make, small_digits: Any) -> Make:
    def simulation(
        objective: str = "plain", state: Any = None, training: Any = None, **options: Any
    ) -> Simulation:
        return digit_simulation(
            data=small_digits(validation=0.25),
            algorithm={**OPTIONS, **options},
            objective=objective,
            engine={"precision": "fp64"},
            state=state,
            training={"batch_size": 8, **(training or {})},
        )

    return simulation


class Watched(ServerStage):
    """A stage whose noise and accuracies are given where a test says so; it keeps what the teachers saw."""

    def __init__(
        self, simulation: Simulation, noise: Sequence[Tensor] = (), accuracies: Sequence[float] = ()
    ) -> None:
        lanes = simulation.federation.lanes
        super().__init__(simulation.setup, simulation.clients, lanes.static(), kernels=False)
        self._noise, self._accuracies = list(noise), list(accuracies)
        self.seen: list[Tensor] = []
        self.states: dict[int, Tensor] = {}
        """What was looked at, by the steps taken until then."""
        self._method = simulation.experiment.algorithm
        self._method.prepare(self)

    def distil(self, server: Server, updates: Sequence[Update], round_: int = 1) -> tuple[Server, float]:
        """The distilled server, and the steps it took."""
        self.begin(round_)
        return self._method.after_round(server, updates, self), self.numbers["distillation_steps"]

    def noise(self, batch: int) -> Tensor:
        return self._noise.pop(0) if self._noise else super().noise(batch)

    def accuracy(self, model: FlatModel) -> float:
        self.states[len(self.seen)] = torch.cat([model.parameters, model.buffers])
        return self._accuracies.pop(0) if self._accuracies else super().accuracy(model)

    def all_logits(self, models: Sequence[FlatModel], images: Tensor) -> list[Tensor]:
        self.seen.append(images.clone())
        return super().all_logits(models, images)


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
    module = simulation.setup.blueprint.build().double()
    module.load_state_dict(simulation.model.layout.unpack(parameters, buffers))
    return module


@pytest.mark.parametrize("objective", ["plain", "vhl"])
@pytest.mark.parametrize(("clip", "check_every"), [(5.0, 6), (0.01, 2), (5.0, 100)])
def test_it_is_what_pytorch_computes(make: Make, objective: str, clip: float, check_every: int) -> None:
    """Six steps on given noise, scaled to [−1, 1], however often they are looked at; the last is the best."""
    made = make(objective, clip=clip, check_every=check_every, lr=0.01)
    noise = torch.randn(6, 5, 1, 8, 8, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    updates, server = updates_of(made), made.state.server
    found, steps = Watched(made, noise, [0.1, 0.2, 0.3]).distil(server, updates)

    student = network_of(made, server.parameters, server.buffers).train()
    teachers = [network_of(made, update.parameters, update.buffers).eval() for update in updates]
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    for step, own in enumerate(noise):
        images = 2 * (own - own.min()) / (own.max() - own.min()) - 1
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (1 + math.cos(math.pi * step / 6)) / 2
        with torch.no_grad():
            target = torch.stack([teacher(images)[1] for teacher in teachers]).mean(0).softmax(1)
        says = student(images)[1].softmax(1)
        optimizer.zero_grad()
        (target * (target.log() - says.log())).sum(1).mean().backward()
        nn.utils.clip_grad_norm_(student.parameters(), clip)
        optimizer.step()
    assert steps == 6 and says.shape[1] == (8 if objective == "vhl" else 4)
    tensors = made.model.layout.unpack(found.parameters, found.buffers)
    for name, tensor in student.state_dict().items():
        torch.testing.assert_close(tensors[name], tensor, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("accuracies", "options", "steps", "kept"),
    [
        ([0.1, 0.3, 0.2, 0.25], {}, 12, 6),
        ([0.1, 0.3, 0.3, 0.1], {}, 12, 6),  # of equals the first
        ([0.1, 0.2, 0.3], {"check_every": 5}, 12, 12),  # the last stretch is shorter
        ([0.3, 0.1, 0.2], {"patience": 6}, 9, 3),
        ([0.3, 0.1, 0.4, 0.2], {"patience": 6}, 12, 9),
        ([0.5, 0.1, 0.2, 0.3, 0.4], {"keep_average": True}, 12, 0),
        ([0.5, 0.1, 0.2], {"keep_average": True, "patience": 6}, 6, 0),
        ([0.1, 0.2, 0.1, 0.1, 0.1], {"keep_average": True}, 12, 3),
    ],
)
def test_which_state_is_kept(make: Make, accuracies: Any, options: Any, steps: int, kept: int) -> None:
    made = make(**{"steps": 12, **options})
    stage = Watched(made, accuracies=accuracies)
    server, taken = stage.distil(made.state.server, updates_of(made))
    found = torch.cat([server.parameters, server.buffers])
    assert taken == steps and stage._accuracies == []
    assert [step for step, state in stage.states.items() if state.equal(found)] == [kept]


@pytest.mark.parametrize("images", [None, REAL])
def test_what_the_teachers_see(make: Make, images: Any) -> None:
    """Fresh noise each step, from −1 to 1; or images of a set, another batch each step."""
    made = make(images=images)
    stage = Watched(made)
    stage.distil(made.state.server, updates_of(made))
    assert len(stage.seen) == 6 and all(own.shape == (5, 1, 8, 8) for own in stage.seen)
    assert len({float(own.sum()) for own in stage.seen}) == 6
    ends = {(float(own.min()), float(own.max())) for own in stage.seen}
    assert (ends == {(-1.0, 1.0)}) == (images is None)


@pytest.mark.parametrize("images", [None, REAL])
def test_the_same_round_gives_the_same_bits_and_another_one_others(make: Make, images: Any) -> None:
    made, again = make(images=images), make(images=images)
    updates, server = updates_of(made), made.state.server
    stage, fresh = Watched(made), Watched(again)
    first, _ = stage.distil(server, updates, 3)
    assert stage.distil(server, updates, 3)[0].parameters.equal(first.parameters)
    assert fresh.distil(server, updates, 3)[0].parameters.equal(first.parameters)
    assert not fresh.distil(server, updates, 4)[0].parameters.equal(first.parameters)


def test_a_client_more_or_less(make: Make) -> None:
    """As when one is left out. The server's own vectors stay."""
    made, fresh = make(images=REAL), make(images=REAL)
    stage, server = Watched(made), replace(made.state.server, state={"kept": torch.ones(2)})
    stage.distil(server, updates_of(made, 4))
    two = updates_of(made, 2)
    found, alone = (own.distil(server, two, 2)[0] for own in (stage, Watched(fresh)))
    assert found.parameters.equal(alone.parameters) and found.state["kept"].tolist() == [1, 1]


def test_of_one_client_there_is_nothing_to_learn(make: Make) -> None:
    """Its model is the average; on noise, by batch statistics, the student would leave it."""
    made = make()
    assert Watched(made).distil(made.state.server, updates_of(made, 1)) == (made.state.server, 0)


def test_rounds_of_feddf(make: Make, assert_same_state: Any) -> None:
    """The record says what was done, and a run that is continued is the same to the bit."""
    made = make(images=REAL)
    records = list(made)
    assert [record.server for record in records] == [{"distillation_steps": 6}] * 2
    assert [record.samples for record in records] == [sum(made.setup.sizes) + 6 * 5] * 2
    half = make(images=REAL)
    half.run_round()
    rest = make(images=REAL, state=half.state)
    rest.run_round()
    assert_same_state(rest, made)


def test_validation_images_are_asked_for(digit_simulation: Make) -> None:
    with pytest.raises(VHLError, match=r"algorithm = feddf .* data\.validation"):
        digit_simulation(algorithm="feddf")


def test_frozen_statistics_stay_from_their_round_on(make: Make) -> None:
    """Two rounds by batch statistics, then by fixed ones, then one by batch statistics again."""
    made = make(training={"freeze_batch_norm": 2})
    stage, server = Watched(made), made.state.server
    for round_ in (1, 2, 3, 4, 1):
        found, _ = stage.distil(server, updates_of(made), round_)
        assert found.buffers.equal(server.buffers) == (round_ > 2)
        assert not found.parameters.equal(server.parameters)
