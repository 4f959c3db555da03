"""Algorithms in a Flower app of the user's own, against each paper's formulas in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vhl.algorithms.fedprox import FedProx
from vhl.deploy.wire import RefusedError, to_arrays
from vhl.dropin.loop import LocalAlgorithm
from vhl.dropin.strategy import AlgorithmStrategy
from vhl.errors import VHLError
from vhl.models.files import read_tensors

LR, MOMENTUM, ROUNDS = 0.05, 0.6, 4


def network() -> nn.Module:
    """In double precision, so that what differs is no rounding."""
    torch.manual_seed(3)
    parts = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)]
    return nn.Sequential(*parts).double()


@dataclass
class Node:
    """One client: its images, all of which are in every batch, and the steps that it takes."""

    number: int
    samples: int
    steps: int
    images: Tensor = field(init=False)
    labels: Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.number)
        self.images = torch.randn(self.samples, 2, 4, 4, generator=generator, dtype=torch.float64)
        self.labels = torch.randint(0, 3, (self.samples,), generator=generator)

    def loss(self, model: nn.Module) -> Tensor:
        return cross_entropy(model(self.images), self.labels)


NODES = [Node(11, 4, 3), Node(12, 9, 1), Node(13, 6, 2)]
TOTAL = sum(node.samples for node in NODES)


class Nodes:
    """What a strategy needs of Flower's grid; contents travel as bytes."""

    def __init__(self, answer: Callable[[Message, Node], Message]) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self._answer = answer

    def get_node_ids(self) -> list[int]:
        return [node.number for node in NODES]

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
        nodes, replies = {node.number: node for node in NODES}, []
        for message in messages:
            arrived = Message(_copied(message.content), message.metadata.dst_node_id, "train")
            reply = self._answer(arrived, nodes[message.metadata.dst_node_id])
            replies.append(Message(_copied(reply.content), reply_to=arrived))
        return replies


def _copied(content: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(content))


def deployed(
    algorithm: Any, states: Path, *, clients: int = 3, rounds: int = ROUNDS, momentum: float = MOMENTUM
) -> dict[str, Tensor]:
    """The model after some rounds of a user's own app."""

    def train(message: Message, node: Node) -> Message:
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum, weight_decay=0.01)
        file = states / f"{node.number}.safetensors"
        local = LocalAlgorithm(algorithm, model, message, lr=LR, momentum=momentum, state=file)
        for _ in range(node.steps):
            optimizer.zero_grad()
            loss = node.loss(model)
            loss.backward()
            local.before_step()
            optimizer.step()
            local.after_step()
        return local.reply(node.samples, {"loss": float(loss)})

    strategy = AlgorithmStrategy(
        algorithm, network(), clients=clients, momentum=momentum, fraction_evaluate=0.0, min_train_nodes=3
    )
    result = strategy.start(Nodes(train), ArrayRecord(network().state_dict()), num_rounds=rounds)
    return result.arrays.to_torch_state_dict()


class Paper:
    """FedAvg by hand, on named tensors; each method below states its difference."""

    uniform = False

    def __init__(self, clients: int = 3, momentum: float = MOMENTUM) -> None:
        model = network()
        self.clients, self.momentum, self.server = clients, momentum, model.state_dict()
        self.names = [name for name, _ in model.named_parameters()]
        self.memory = {node.number: self.zeros() for node in NODES}
        self.own = self.zeros()

    def zeros(self) -> dict[str, Tensor]:
        return {name: torch.zeros_like(self.server[name]) for name in self.names}

    def penalty(self, node: Node, model: nn.Module) -> Tensor:
        return torch.zeros(())

    def after_step(self, node: Node, model: nn.Module) -> None:
        pass

    def remember(self, node: Node, trained: dict[str, Tensor]) -> None:
        pass

    def average(self, trained: list[dict[str, Tensor]], name: str) -> Tensor:
        weights = [1 / len(NODES) if self.uniform else node.samples / TOTAL for node in NODES]
        return torch.stack([w * own[name] for w, own in zip(weights, trained, strict=True)]).sum(0)

    def new(self, trained: list[dict[str, Tensor]], name: str) -> Tensor:
        return self.average(trained, name)

    def train(self, node: Node) -> dict[str, Tensor]:
        model = network()
        model.load_state_dict(self.server)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=self.momentum, weight_decay=0.01)
        for _ in range(node.steps):
            optimizer.zero_grad()
            (node.loss(model) + self.penalty(node, model)).backward()
            optimizer.step()
            with torch.no_grad():
                self.after_step(node, model)
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def run(self, rounds: int = ROUNDS) -> dict[str, Tensor]:
        for _ in range(rounds):
            trained = [self.train(node) for node in NODES]
            for node, own in zip(NODES, trained, strict=True):
                self.remember(node, own)
            self.finish(trained)
            averages = {
                name: self.new(trained, name) if name in self.names else self.average(trained, name)
                for name in self.server
            }
            # PyTorch's counters of batches cannot be averaged: the first node's stand
            self.server = {
                name: new if self.server[name].is_floating_point() else trained[0][name]
                for name, new in averages.items()
            }
        return self.server

    def finish(self, trained: list[dict[str, Tensor]]) -> None:
        pass


class Prox(Paper):
    def penalty(self, node: Node, model: nn.Module) -> Tensor:
        moved = [(p - self.server[n]).square().sum() for n, p in model.named_parameters()]
        return 0.7 / 2 * torch.stack(moved).sum()


class Scaffold(Paper):
    def after_step(self, node: Node, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            parameter -= LR * (self.own[name] - self.memory[node.number][name])

    def remember(self, node: Node, trained: dict[str, Tensor]) -> None:
        old = self.memory[node.number]
        self.memory[node.number] = {
            n: old[n] - self.own[n] + (self.server[n] - trained[n]) / (node.steps * LR) for n in self.names
        }
        change = self.__dict__.setdefault("change", self.zeros())
        for name in self.names:
            change[name] += self.memory[node.number][name] - old[name]

    def finish(self, trained: list[dict[str, Tensor]]) -> None:
        # |S|/K times the mean over S is the sum over S by K
        change = self.__dict__.pop("change")
        self.own = {name: self.own[name] + change[name] / self.clients for name in self.names}


class Nova(Paper):
    def length(self, node: Node) -> float:
        """How far unit gradients carry, step by step."""
        velocity = total = 0.0
        for _ in range(node.steps):
            velocity = self.momentum * velocity + 1
            total += velocity
        return total

    def new(self, trained: list[dict[str, Tensor]], name: str) -> Tensor:
        start, shares = self.server[name], [node.samples / TOTAL for node in NODES]
        lengths = [self.length(node) for node in NODES]
        direction = sum(
            p * (start - own[name]) / a for p, own, a in zip(shares, trained, lengths, strict=True)
        )
        effective = sum(p * a for p, a in zip(shares, lengths, strict=True))
        moved: Tensor = start - effective * direction
        return moved


class Momentum(Paper):
    def new(self, trained: list[dict[str, Tensor]], name: str) -> Tensor:
        self.own[name] = 0.8 * self.own[name] + self.average(trained, name) - self.server[name]
        return self.server[name] + 0.5 * self.own[name]


class Dynamic(Paper):
    uniform = True
    alpha = 0.3

    def penalty(self, node: Node, model: nn.Module) -> Tensor:
        own, terms = self.memory[node.number], []
        for name, parameter in model.named_parameters():
            moved = (parameter - self.server[name]).square().sum()
            terms.append(self.alpha / 2 * moved - (own[name] * parameter).sum())
        return torch.stack(terms).sum()

    def remember(self, node: Node, trained: dict[str, Tensor]) -> None:
        own = self.memory[node.number]
        for name in self.names:
            own[name] = own[name] - self.alpha * (trained[name] - self.server[name])

    def new(self, trained: list[dict[str, Tensor]], name: str) -> Tensor:
        moved = sum(own[name] - self.server[name] for own in trained)
        self.own[name] = self.own[name] - self.alpha / self.clients * moved
        return self.average(trained, name) - self.own[name] / self.alpha


METHODS: dict[str, tuple[Any, type[Paper]]] = {
    "fedavg": ("fedavg", Paper),
    "fedprox": ({"name": "fedprox", "mu": 0.7}, Prox),
    "scaffold": ("scaffold", Scaffold),
    "fednova": ("fednova", Nova),
    "fedavgm": ({"name": "fedavgm", "server_momentum": 0.8, "server_lr": 0.5}, Momentum),
    "feddyn": ({"name": "feddyn", "alpha": 0.3}, Dynamic),
}


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("clients", [3, 7])
@pytest.mark.parametrize("method", METHODS)
def test_rounds_equal_the_papers_formulas(method, clients, tmp_path):
    algorithm, paper = METHODS[method]
    close(deployed(algorithm, tmp_path, clients=clients), paper(clients).run())


def test_the_methods_differ(tmp_path):
    """Else the test above would say little."""
    ends = [paper().run()["4.weight"] for _, paper in METHODS.values()]
    assert all((a - b).abs().max() > 1e-4 for i, a in enumerate(ends) for b in ends[:i])


def test_a_mapping_and_an_object_are_the_same_algorithm(tmp_path):
    one, other = deployed({"name": "fedprox", "mu": 0.7}, tmp_path), deployed(FedProx(mu=0.7), tmp_path)
    assert all(tensor.equal(other[name]) for name, tensor in one.items())


def test_clients_keep_what_they_should(tmp_path):
    paper = Scaffold()
    paper.run()
    deployed("scaffold", tmp_path)
    assert {file.stem for file in tmp_path.iterdir()} == {"11", "12", "13"}
    for node in NODES:
        control = read_tensors(tmp_path / f"{node.number}.safetensors")[0]["control"]
        kept = torch.cat([paper.memory[node.number][name].flatten() for name in paper.names])
        # a vector has the same numbers, in another order and with gaps of zeros
        assert torch.allclose(control[control != 0].sort().values, kept.sort().values, rtol=1e-8)


def test_nothing_is_kept_where_an_algorithm_keeps_nothing(tmp_path):
    deployed("fedavgm", tmp_path, rounds=1)
    assert not any(tmp_path.iterdir())


def message(algorithm: str = "fedavg", model: nn.Module | None = None, **records: Any) -> Message:
    """What a strategy sends in the first round."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    model = model or network()
    strategy = AlgorithmStrategy(algorithm, model, clients=3, fraction_evaluate=0.0)
    sent, *_ = strategy.configure_train(
        1, ArrayRecord(model.state_dict()), ConfigRecord(), Nodes(lambda m, n: m)
    )
    for key, value in records.items():
        sent.content[key] = value
    return sent


def half(algorithm: Any, model: nn.Module | None = None, sent: Message | None = None, **options: Any) -> Any:
    """The client's half in the first round."""
    model = model or network()
    return LocalAlgorithm(algorithm, model, sent or message(algorithm, model), **{"lr": LR, **options})


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [(name, "vhl deploy init") for name in ("moon", "feddf", "ccvr")]
    + [("fedsomething", "")]
    + [(name, "give state a file") for name in ("scaffold", "feddyn")],
)
def test_algorithms_that_are_refused(complains, algorithm, words):
    sent = message(algorithm) if "state" in words else message()
    with complains(algorithm, words):
        half(algorithm, sent=sent)


def test_a_message_of_another_strategy_is_refused(tmp_path, complains):
    sent = message()
    del sent.content["algorithm"]
    with complains("scaffold", "AlgorithmStrategy"):
        half("scaffold", sent=sent, state=tmp_path / "state")
    for vectors in ({}, {"control": torch.zeros(1)}, {"dual": torch.zeros(1)}):
        with pytest.raises((RefusedError, VHLError)):
            half("scaffold", sent=message(algorithm=to_arrays(vectors)), state=tmp_path / "state")


def test_a_gradient_that_lacks_is_named(complains):
    model = network()
    local = half("fedprox", model)
    NODES[0].loss(model).backward()
    model[4].bias.grad = None
    with complains("4.bias"):
        local.before_step()


def test_a_frozen_parameter_needs_no_gradient_and_stays():
    model = network()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    local = half({"name": "fedprox", "mu": 0.7}, model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LR)
    for _ in range(2):
        optimizer.zero_grad()
        NODES[0].loss(model).backward()
        local.before_step()
        optimizer.step()
        local.after_step()
    assert model[0].weight.equal(before) and local.steps == 2
    sent = local.reply(4).content["arrays"].to_torch_state_dict()
    assert sent["0.weight"].equal(before) and not sent["4.weight"].equal(network()[4].weight)


def test_a_reply_says_what_was_done():
    model = network()
    local = half("fedavg", model)
    local.after_step()
    content = local.reply(7, {"loss": 0.5, "steps": 99.0}).content
    assert dict(content["metrics"]) == {"loss": 0.5, "num-examples": 7, "steps": 1}
    assert set(content) == {"arrays", "metrics"}
    assert all(t.equal(model.state_dict()[n]) for n, t in content["arrays"].to_torch_state_dict().items())


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """What a client has kept after a step of SCAFFOLD."""
    one_step(tmp_path / "state", LR)
    return tmp_path / "state"


def one_step(file: Path, rate: float) -> None:
    model = network()
    local = half("scaffold", model, lr=rate, state=file)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    NODES[0].loss(model).backward()
    local.before_step()
    optimizer.step()
    if rate > 1:
        with torch.no_grad():
            model[4].weight.fill_(torch.inf)  # it diverged
    local.after_step()
    local.reply(4)


def test_a_round_that_came_to_nothing_does_not_spoil_what_the_client_keeps(kept, complains):
    """Its reply does not count; the client must be able to take part again."""
    before = read_tensors(kept)[0]["control"]
    one_step(kept, 1e30)
    with complains("step"):
        half("scaffold", state=kept).reply(4)
    assert read_tensors(kept)[0]["control"].equal(before)


def test_what_a_client_keeps_of_another_model_is_an_error(kept, complains):
    with complains(kept, "another model"):
        half("scaffold", nn.Linear(2, 2), state=kept)
