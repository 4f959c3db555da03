"""Any algorithm of this package as the strategy of a Flower app of your own."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import nn

from vhl.algorithms.base import Algorithm, Server, Update, Work, weighted_sum
from vhl.config.registry import build
from vhl.deploy.forms import blank_message
from vhl.deploy.wire import RefusedError, form, from_arrays, to_arrays
from vhl.errors import VHLError
from vhl.models.vectors import Layout

SAYS = "algorithm"
"""The record with an algorithm's own vectors, both ways."""
_MOST = 10**12  # samples or steps that a client can have


def find_algorithm(given: str | Mapping[str, Any] | Algorithm) -> Algorithm:
    """An algorithm by its name (``"scaffold"``) or table, of those that need no more than is here."""
    algorithm = build(Algorithm, "algorithm", given)
    if algorithm.references or type(algorithm).after_round is not Algorithm.after_round:
        raise VHLError(
            f"{algorithm.name} needs more than a strategy and a loop (other models, or data at the server); "
            "use the app that `vhl deploy init` writes."
        )
    return algorithm


class AlgorithmStrategy(FedAvg):
    """Flower's FedAvg, but that an algorithm of this package makes the new model of the clients' ones.

    To clients go, beside Flower's ``arrays`` and ``config``, the algorithm's vectors as ``algorithm``.
    A reply counts if it has

    - ``arrays``: the model's state dict, with just the names, types and shapes of ``model``, all finite;
    - ``metrics`` with ``num-examples`` and ``steps`` (optimiser steps taken), whole numbers above 0;
    - ``algorithm``: what the algorithm's client half says, where it says something (SCAFFOLD);
      :class:`vhl.dropin.loop.LocalAlgorithm` makes it.

    Each reply is looked at alone: one that is not so is named in the log and left out.
    """

    def __init__(
        self,
        algorithm: str | Mapping[str, Any] | Algorithm,
        model: nn.Module,
        *,
        clients: int,
        momentum: float = 0.0,
        **options: Any,
    ) -> None:
        """``clients`` there are in all; ``momentum`` is that of their optimiser, which FedNova must know.

        ``options`` are those of Flower's FedAvg.
        """
        super().__init__(**options)
        self._algorithm, self._clients, self._momentum = find_algorithm(algorithm), clients, momentum
        self._layout = Layout(model)
        self._forms = {name: form(tensor) for name, tensor in model.state_dict().items()}
        self._shared = _shared(model)
        self._server: Server | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        parameters, buffers = self._layout.pack(
            from_arrays(RecordDict({"arrays": arrays}), "arrays", self._forms)
        )
        state = self._algorithm.server_state(parameters) if self._server is None else self._server.state
        self._server = Server(parameters, buffers, state)
        said = to_arrays(self._algorithm.sent(state))
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            message.content[SAYS] = said
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        assert self._server is not None
        good = list(self._checked(replies))
        if not good:
            return None, None
        updates = [update for update, _ in good]
        parameters, state = self._algorithm.aggregate(self._server, updates, self._clients)
        shares = self._algorithm.shares(updates)
        buffers = weighted_sum([update.buffers for update in updates], shares)
        self._server = replace(self._server, parameters=parameters, buffers=buffers, state=state)
        tensors = dict(from_arrays(good[0][1], self.arrayrecord_key, self._forms))
        tensors |= self._layout.unpack(parameters, buffers)
        tensors |= {name: tensors[other] for name, other in self._shared.items()}
        return to_arrays(tensors), self._metrics([content for _, content in good])

    def _checked(self, replies: Iterable[Message]) -> Iterable[tuple[Update, RecordDict]]:
        """The replies that count, in the order of their nodes, in which sums run."""
        for number, reply in enumerate(sorted(replies, key=lambda reply: reply.metadata.src_node_id)):
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    raise RefusedError(
                        f"its app failed with Flower's code {reply.error.code}, and its log says why"
                    )
                yield self._update(number, reply.content), reply.content
            except RefusedError as error:
                log(logging.WARNING, "The reply of node %d is left out: %s.", node, error)

    def _update(self, number: int, content: RecordDict) -> Update:
        assert self._server is not None
        tensors = from_arrays(content, self.arrayrecord_key, self._forms)
        samples, steps = (_count(content, key) for key in (self.weighted_by_key, "steps"))
        blank = blank_message(self._algorithm, self._server)
        said = (
            from_arrays(content, SAYS, {name: form(vector) for name, vector in blank.items()})
            if blank
            else {}
        )
        parameters, buffers = self._layout.pack(tensors)
        return Update(number, Work(samples, steps, 1.0, self._momentum), parameters, buffers, said)

    def _metrics(self, contents: list[RecordDict]) -> MetricRecord:
        """Of those metrics that all replies have: one more or less must not stop the round."""
        records = [content.metric_records["metrics"] for content in contents]
        common = set.intersection(*({(k, _width(v)) for k, v in record.items()} for record in records))
        kept = [RecordDict({"metrics": MetricRecord({k: own[k] for k, _ in common})}) for own in records]
        return self.train_metrics_aggr_fn(kept, self.weighted_by_key)


def _shared(model: nn.Module) -> dict[str, str]:
    """Names under which a parameter or buffer is saved again, with the name it is averaged under."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    return {name: own for name, t in named if (own := first.setdefault(id(t), name)) != name}


def _width(value: Any) -> int | None:
    """Of a list of metrics; none of a single one."""
    return len(value) if isinstance(value, list) else None


def _count(content: RecordDict, key: str) -> int:
    metrics = content.get("metrics")
    value = metrics.get(key) if isinstance(metrics, MetricRecord) else None
    if not isinstance(value, int) or not 0 < value < _MOST:
        raise RefusedError(f"metrics say {key} = {value!r}, which should be a whole number above 0")
    return value
