"""The strategy's half: what it sends, which replies count, and what it makes of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor, nn

from vhl.deploy.wire import to_arrays
from vhl.dropin.strategy import AlgorithmStrategy

NODES = [21, 22, 23]
SAMPLES = {21: 1, 22: 5, 23: 4}


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3))
    with torch.no_grad():
        model[1].running_mean.uniform_()
        model[1].num_batches_tracked.fill_(seed)
    return model


class Grid:
    def get_node_ids(self) -> list[int]:
        return NODES


def strategy_of(algorithm: Any = "fedavg", **options: Any) -> AlgorithmStrategy:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    given = {"clients": 3, "min_train_nodes": 3, "fraction_evaluate": 0.0, **options}
    return AlgorithmStrategy(algorithm, network(), **given)


def ask(strategy: AlgorithmStrategy, round_: int = 1, model: nn.Module | None = None) -> dict[int, Message]:
    """The round's messages, by node."""
    arrays = ArrayRecord((model or network()).state_dict())
    sent = strategy.configure_train(round_, arrays, ConfigRecord({"lr": 0.5}), Grid())
    return {message.metadata.dst_node_id: message for message in sent}


def content(node: int, said: dict[str, Tensor] | None = None, **metrics: Any) -> RecordDict:
    """A good reply: each node has a network of its own."""
    counts = {"num-examples": SAMPLES[node], "steps": 2, **metrics}
    records = {"arrays": ArrayRecord(network(node).state_dict()), "metrics": MetricRecord(counts)}
    return RecordDict(records if said is None else {**records, "algorithm": to_arrays(said)})


def length(strategy: AlgorithmStrategy) -> int:
    return len(strategy._server.parameters)  # type: ignore[union-attr]


def control(strategy: AlgorithmStrategy, node: int) -> dict[str, Tensor]:
    return {"control_change": torch.full((length(strategy),), float(node))}


def mean_of(nodes: list[int]) -> dict[str, Tensor]:
    """The weighted average of these nodes' networks; counters are the first one's."""
    total = sum(SAMPLES[node] for node in nodes)
    states = [network(node).state_dict() for node in nodes]
    return {
        name: sum(SAMPLES[n] / total * s[name] for n, s in zip(nodes, states, strict=True))
        if first.is_floating_point()
        else first
        for name, first in states[0].items()
    }


def close(arrays: ArrayRecord | None, expected: dict[str, Tensor]) -> None:
    assert arrays is not None
    found = arrays.to_torch_state_dict()
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == network().state_dict()[name].dtype
        torch.testing.assert_close(found[name], tensor.to(found[name].dtype), rtol=1e-5, atol=1e-6)


def test_messages_have_flowers_records_and_the_algorithms():
    strategy = strategy_of("scaffold")
    messages = ask(strategy)
    assert sorted(messages) == NODES
    for message in messages.values():
        assert set(message.content) == {"arrays", "config", "algorithm"}
        assert message.content["config"] == ConfigRecord({"lr": 0.5, "server-round": 1})
        said = message.content["algorithm"]["control"].numpy()
        assert said.shape == (length(strategy),) and not said.any()


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "fedavgm", "feddyn"])
def test_what_stays_at_the_server_is_not_sent(algorithm):
    for message in ask(strategy_of(algorithm)).values():
        assert len(message.content["algorithm"]) == 0


def test_good_replies_are_averaged_in_any_order():
    for order in (NODES, NODES[::-1]):
        strategy = strategy_of()
        messages = ask(strategy)
        replies = [Message(content(node, loss=node / 10), reply_to=messages[node]) for node in order]
        arrays, metrics = strategy.aggregate_train(1, replies)
        close(arrays, mean_of(NODES))
        assert metrics is not None
        # (1·2.1 + 5·2.2 + 4·2.3)/10
        assert metrics["loss"] == pytest.approx(2.23) and metrics["steps"] == pytest.approx(2)


def test_the_average_depends_on_no_order_to_the_bit():
    ends = []
    for order in (NODES, [23, 21, 22]):
        strategy = strategy_of("fedyogi")
        messages = ask(strategy)
        arrays, _ = strategy.aggregate_train(1, [Message(content(n), reply_to=messages[n]) for n in order])
        assert arrays is not None
        ends.append(arrays.to_torch_state_dict())
    assert all(tensor.equal(ends[1][name]) for name, tensor in ends[0].items())


def _array(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[RecordDict], None]:
    def spoil(reply: RecordDict) -> None:
        tensor = reply["arrays"][name].numpy()
        reply["arrays"][name] = Array(change(torch.tensor(tensor)).numpy())

    return spoil


def _drop(name: str) -> Callable[[RecordDict], None]:
    def spoil(reply: RecordDict) -> None:
        del reply["arrays"][name]

    return spoil


def _metric(key: str, value: Any) -> Callable[[RecordDict], None]:
    def spoil(reply: RecordDict) -> None:
        reply["metrics"][key] = value

    return spoil


def _without(key: str) -> Callable[[RecordDict], None]:
    def spoil(reply: RecordDict) -> None:
        del reply["metrics"][key]

    return spoil


def _record(key: str, value: Any) -> Callable[[RecordDict], None]:
    def spoil(reply: RecordDict) -> None:
        reply[key] = value

    return spoil


def _gone(key: str) -> Callable[[RecordDict], None]:
    def spoil(reply: RecordDict) -> None:
        del reply[key]

    return spoil


def _lie(reply: RecordDict) -> None:
    """A header with a bracket that is never closed."""
    good = reply["arrays"]["3.bias"]
    data = good.data.replace(b"(3,), }", b"(3,),  ")
    assert data != good.data
    reply["arrays"]["3.bias"] = Array(good.dtype, good.shape, good.stype, data)


def _one_nan(tensor: Tensor) -> Tensor:
    tensor.view(-1)[-1] = torch.nan
    return tensor


BAD: dict[str, Callable[[RecordDict], None]] = {
    "an array lacks": _drop("3.bias"),
    "a counter lacks": _drop("1.num_batches_tracked"),
    "an array more": lambda reply: reply["arrays"].update({"more": Array(torch.zeros(1).numpy())}),
    "a shape that would spread": _array("3.bias", lambda t: t[:1]),
    "a shape of one": _array("0.weight", lambda t: t.view(-1)[:1]),
    "another shape": _array("3.weight", lambda t: t.t()),
    "a dimension more": _array("3.bias", lambda t: t[None]),
    "another type": _array("3.bias", lambda t: t.double()),
    "a whole number": _array("3.bias", lambda t: t.int()),
    "nan": _array("3.bias", _one_nan),
    "nan in a buffer": _array("1.running_var", _one_nan),
    "infinity": _array("0.weight", lambda t: t.fill_(torch.inf)),
    "a header that lies": _lie,
    "no arrays": _gone("arrays"),
    "arrays are metrics": _record("arrays", MetricRecord({"a": 1})),
    "no metrics": _gone("metrics"),
    "metrics are settings": _record("metrics", ConfigRecord({"num-examples": 3, "steps": 1})),
    "no samples": _metric("num-examples", 0),
    "samples below zero": _metric("num-examples", -5),
    "samples in pieces": _metric("num-examples", 5.0),
    "samples in a list": _metric("num-examples", [5]),
    "far too many samples": _metric("num-examples", 10**12),
    "samples lack": _without("num-examples"),
    "no steps": _metric("steps", 0),
    "steps below zero": _metric("steps", -1),
    "steps in pieces": _metric("steps", 2.0),
    "steps are no number": _metric("steps", float("nan")),
    "steps lack": _without("steps"),
    "the algorithm lacks": _gone("algorithm"),
    "the algorithm says nothing": _record("algorithm", ArrayRecord()),
    "the algorithm says something else": _record("algorithm", to_arrays({"control": torch.zeros(1)})),
    "the algorithm is short": _record("algorithm", to_arrays({"control_change": torch.zeros(1)})),
    "empty": lambda reply: [reply.pop(key) for key in list(reply)] and None,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_reply_is_left_out_and_the_others_count(name, position, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    strategy, bad = strategy_of("scaffold"), NODES[position]
    messages = ask(strategy)
    contents = {node: content(node, control(strategy, node)) for node in NODES}
    BAD[name](contents[bad])
    with caplog.at_level(logging.WARNING):
        arrays, metrics = strategy.aggregate_train(
            1, [Message(contents[node], reply_to=messages[node]) for node in NODES]
        )
    good = [node for node in NODES if node != bad]
    close(arrays, mean_of(good))
    assert metrics is not None and metrics["steps"] == pytest.approx(2)
    # c = (|S|/K) · mean(Δc_i) = Σ Δc_i / K
    sent = ask(strategy, 2)[21].content["algorithm"]["control"].numpy()
    assert sent == pytest.approx(sum(good) / 3)
    assert [r.getMessage() for r in caplog.records if f"node {bad} is left out" in r.getMessage()]


def test_flowers_errors_are_left_out():
    strategy = strategy_of()
    messages = ask(strategy)
    replies = [Message(content(node), reply_to=messages[node]) for node in NODES[1:]]
    arrays, _ = strategy.aggregate_train(1, [Message(Error(5, "gone"), reply_to=messages[21]), *replies])
    close(arrays, mean_of([22, 23]))


def test_a_round_without_a_good_reply_changes_nothing():
    strategy = strategy_of("scaffold")
    messages = ask(strategy)
    good = [Message(content(n, control(strategy, n)), reply_to=messages[n]) for n in NODES]
    strategy.aggregate_train(1, good)
    messages = ask(strategy, 2)
    before = messages[21].content["algorithm"]["control"].numpy()
    assert before.any()
    bad = [Message(Error(5, "gone"), reply_to=message) for message in messages.values()]
    assert strategy.aggregate_train(2, bad) == (None, None)
    assert strategy.aggregate_train(2, []) == (None, None)
    assert (ask(strategy, 3)[21].content["algorithm"]["control"].numpy() == before).all()


def aggregated(metrics: dict[int, dict[str, Any]]) -> MetricRecord:
    strategy = strategy_of()
    messages = ask(strategy)
    _, found = strategy.aggregate_train(
        1, [Message(content(node, **own), reply_to=messages[node]) for node, own in metrics.items()]
    )
    assert found is not None
    return found


def test_metrics_that_some_replies_lack_are_left_out():
    found = aggregated({21: {"loss": 1.0, "mine": 2.0}, 22: {"loss": 3.0}, 23: {"loss": 3.0, "yours": 1}})
    assert set(found) == {"loss", "steps"} and found["loss"] == pytest.approx(2.8)


def test_lists_of_metrics_are_averaged():
    found = aggregated({21: {"losses": [1.0, 2.0]}, 22: {"losses": [2.0, 4.0]}})
    assert found["losses"] == pytest.approx([(1 + 10) / 6, (2 + 20) / 6])


@pytest.mark.parametrize(
    "values",
    [(1.0, [1.0, 2.0], 1.0), ([1.0], [1.0, 2.0], [1.0]), ([1.0, 2.0], 1.0, 1.0)],
    ids=["a list among numbers", "lists of different lengths", "a number among lists"],
)
def test_metrics_that_do_not_fit_each_other_stop_no_round(values):
    found = aggregated({node: {"loss": own, "good": 1.0} for node, own in zip(NODES, values, strict=True)})
    assert found["good"] == pytest.approx(1)


@pytest.mark.parametrize("algorithm", ["moon", "feddf", "ccvr"])
def test_algorithms_that_need_more_are_refused(complains, algorithm):
    with complains(algorithm, "vhl deploy init"):
        strategy_of(algorithm)


def test_momentum_is_fednovas():
    """One step of a node counts 1, three with momentum ½ count 1 + 1.5 + 1.75."""
    start = network().state_dict()
    strategy = strategy_of("fednova", momentum=0.5)
    messages = ask(strategy)
    steps, lengths = {21: 1, 22: 3, 23: 1}, {21: 1.0, 22: 4.25, 23: 1.0}
    arrays, _ = strategy.aggregate_train(
        1, [Message(content(n, steps=steps[n]), reply_to=messages[n]) for n in NODES]
    )
    effective = sum(SAMPLES[n] / 10 * lengths[n] for n in NODES)
    expected = mean_of(NODES)
    for name, _ in network().named_parameters():
        moves = [SAMPLES[n] / 10 * (start[name] - network(n).state_dict()[name]) / lengths[n] for n in NODES]
        expected[name] = start[name] - effective * sum(moves)
    close(arrays, expected)


class _Tied(nn.Module):
    """Its last layer is its first, as in language models."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.last.weight = self.first.weight


def test_weights_that_two_layers_share_are_averaged_in_both():
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    strategy = AlgorithmStrategy("fedavg", _Tied(), clients=3, min_train_nodes=3, fraction_evaluate=0.0)
    messages = ask(strategy, model=_Tied())
    replies = []
    for node in NODES:
        metrics = MetricRecord({"num-examples": 1, "steps": 1})
        own = RecordDict({"arrays": ArrayRecord(_Tied(node).state_dict()), "metrics": metrics})
        replies.append(Message(own, reply_to=messages[node]))
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    model, mean = _Tied(), sum(_Tied(node).first.weight.detach() for node in NODES) / 3
    model.load_state_dict(arrays.to_torch_state_dict())
    torch.testing.assert_close(model.first.weight.detach(), mean)


def test_flowers_own_options_hold():
    strategy = strategy_of(fraction_train=0.5, min_train_nodes=2)
    assert len(ask(strategy)) == 2
    strategy = strategy_of(fraction_train=0.0)
    assert ask(strategy) == {}
