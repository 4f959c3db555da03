"""The strategy's half: what it sends, which replies count, and what it makes of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
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


def strategy_of(
    algorithm: Any = "fedavg", model: nn.Module | None = None, **options: Any
) -> AlgorithmStrategy:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    given = {"clients": 3, "min_train_nodes": 3, "fraction_evaluate": 0.0, **options}
    return AlgorithmStrategy(algorithm, model or network(), **given)


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


def answered(
    strategy: AlgorithmStrategy,
    replies: dict[int, Any],
    round_: int = 1,
    model: nn.Module | None = None,
) -> Any:
    """What the strategy makes of a round's replies, by node."""
    messages = ask(strategy, round_, model)
    return strategy.aggregate_train(
        round_, [Message(reply, reply_to=messages[node]) for node, reply in replies.items()]
    )


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


def test_good_replies_are_averaged_in_any_order_to_the_bit():
    ends = []
    for order in (NODES, NODES[::-1], [23, 21, 22]):
        arrays, metrics = answered(strategy_of(), {node: content(node, loss=node / 10) for node in order})
        close(arrays, mean_of(NODES))
        # (1·2.1 + 5·2.2 + 4·2.3)/10
        assert metrics["loss"] == pytest.approx(2.23) and metrics["steps"] == pytest.approx(2)
        ends.append(arrays.to_torch_state_dict())
    assert all(tensor.equal(end[name]) for end in ends for name, tensor in ends[0].items())


Spoil = Callable[[RecordDict], None]


def array(name: str, change: Callable[[Tensor], Tensor]) -> Spoil:
    def spoil(reply: RecordDict) -> None:
        tensor = torch.tensor(reply["arrays"][name].numpy())
        reply["arrays"][name] = Array(change(tensor).numpy())

    return spoil


def put(record: str, value: Any, key: str | None = None) -> Spoil:
    """Another record in place of one, or another value in it."""

    def spoil(reply: RecordDict) -> None:
        where, what = (reply, record) if key is None else (reply[record], key)
        where[what] = value

    return spoil


def drop(record: str, key: str | None = None) -> Spoil:
    def spoil(reply: RecordDict) -> None:
        where, what = (reply, record) if key is None else (reply[record], key)
        del where[what]

    return spoil


# What arrays can be wrong in is in tests/deploy/test_wire.py.
BAD: dict[str, Spoil] = {
    "an array lacks": drop("arrays", "3.bias"),
    "a counter lacks": drop("arrays", "1.num_batches_tracked"),
    "an array more": put("arrays", Array(torch.zeros(1).numpy()), "more"),
    "a shape that would spread": array("3.bias", lambda t: t[:1]),
    "another type": array("3.bias", lambda t: t.double()),
    "nan": array("3.bias", lambda t: t * torch.nan),
    "nan in a buffer": array("1.running_var", lambda t: t * torch.nan),
    "no arrays": drop("arrays"),
    "no metrics": drop("metrics"),
    "metrics are settings": put("metrics", ConfigRecord({"num-examples": 3, "steps": 1})),
    **{f"samples {n}": put("metrics", n, "num-examples") for n in (0, -5, 5.0, [5], 10**12)},
    "samples lack": drop("metrics", "num-examples"),
    **{f"steps {n}": put("metrics", n, "steps") for n in (0, -1, 2.0, float("nan"))},
    "steps lack": drop("metrics", "steps"),
    "the algorithm lacks": drop("algorithm"),
    "the algorithm says nothing": put("algorithm", ArrayRecord()),
    "the algorithm says something else": put("algorithm", to_arrays({"control": torch.zeros(1)})),
    "the algorithm is short": put("algorithm", to_arrays({"control_change": torch.zeros(1)})),
    "empty": lambda reply: reply.clear(),
}


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """What Flower's log warns of."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("flwr").addHandler(handler)
    yield found
    logging.getLogger("flwr").removeHandler(handler)


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_reply_is_left_out_and_the_others_count(name, position, warnings):
    strategy, bad = strategy_of("scaffold"), NODES[position]
    ask(strategy)  # from here it has vectors of its own
    contents = {node: content(node, control(strategy, node)) for node in NODES}
    BAD[name](contents[bad])
    arrays, metrics = answered(strategy, contents)
    good = [node for node in NODES if node != bad]
    close(arrays, mean_of(good))
    assert metrics is not None and metrics["steps"] == pytest.approx(2)
    # c = (|S|/K) · mean(Δc_i) = Σ Δc_i / K
    sent = ask(strategy, 2)[21].content["algorithm"]["control"].numpy()
    assert sent == pytest.approx(sum(good) / 3)
    assert [warning for warning in warnings if f"node {bad} is left out" in warning]


def test_flowers_errors_are_left_out():
    arrays, _ = answered(strategy_of(), {21: Error(5, "gone"), **{node: content(node) for node in NODES[1:]}})
    close(arrays, mean_of([22, 23]))


def test_a_round_without_a_good_reply_changes_nothing():
    strategy = strategy_of("scaffold")
    ask(strategy)
    answered(strategy, {node: content(node, control(strategy, node)) for node in NODES})
    before = ask(strategy, 2)[21].content["algorithm"]["control"].numpy()
    assert before.any()
    assert answered(strategy, {node: Error(5, "gone") for node in NODES}, 2) == (None, None)
    assert answered(strategy, {}, 2) == (None, None)
    assert (ask(strategy, 3)[21].content["algorithm"]["control"].numpy() == before).all()


def aggregated(metrics: dict[int, dict[str, Any]]) -> MetricRecord:
    found: MetricRecord = answered(
        strategy_of(), {node: content(node, **own) for node, own in metrics.items()}
    )[1]
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
    steps, lengths = {21: 1, 22: 3, 23: 1}, {21: 1.0, 22: 4.25, 23: 1.0}
    strategy = strategy_of("fednova", momentum=0.5)
    arrays, _ = answered(strategy, {node: content(node, steps=steps[node]) for node in NODES})
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
    replies = {
        node: RecordDict(
            {
                "arrays": ArrayRecord(_Tied(node).state_dict()),
                "metrics": MetricRecord({"num-examples": 1, "steps": 1}),
            }
        )
        for node in NODES
    }
    arrays, _ = answered(strategy_of(model=_Tied()), replies, model=_Tied())
    model, mean = _Tied(), sum(_Tied(node).first.weight.detach() for node in NODES) / 3
    model.load_state_dict(arrays.to_torch_state_dict())
    torch.testing.assert_close(model.first.weight.detach(), mean)


def test_flowers_own_options_hold():
    strategy = strategy_of(fraction_train=0.5, min_train_nodes=2)
    assert len(ask(strategy)) == 2
    strategy = strategy_of(fraction_train=0.0)
    assert ask(strategy) == {}
