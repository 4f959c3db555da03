"""The client's half of an algorithm in a training loop of your own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message, MetricRecord, RecordDict
from torch import Tensor, nn

from vhl.algorithms.base import Algorithm, Client, Server, Vectors, Work
from vhl.deploy.wire import form, from_arrays, to_arrays
from vhl.dropin.strategy import SAYS, find_algorithm
from vhl.errors import VHLError
from vhl.files import write_tensors
from vhl.models.files import read_tensors
from vhl.models.vectors import Layout


class LocalAlgorithm:
    """The client's half of an algorithm, in a training loop of your own.

    Make one when the model holds what the server sent, call :meth:`before_step` and :meth:`after_step` around
    ``optimizer.step()``, and return :meth:`reply`.
    """

    def __init__(
        self,
        algorithm: str | Mapping[str, Any] | Algorithm,
        model: nn.Module,
        message: Message,
        *,
        lr: float,
        momentum: float = 0.0,
        state: Path | None = None,
    ) -> None:
        """``lr`` and ``momentum`` are the optimiser's; ``state`` is a file for what a client keeps.

        One file for each run and client: a node's ``context.state`` does not outlive its process.
        """
        self._algorithm, self._model, self._message = find_algorithm(algorithm), model, message
        self._layout, self._lr, self._momentum, self._file = Layout(model), lr, momentum, state
        parameters, buffers = self._layout.pack(model.state_dict())
        if SAYS not in message.content:
            raise VHLError(
                f"The server has sent no vectors for {self._algorithm.name}; give it the strategy "
                "vhl.dropin.strategy.AlgorithmStrategy in place of one of Flower's own."
            )
        blank = self._algorithm.sent(self._algorithm.server_state(parameters))
        forms = {name: form(vector) for name, vector in blank.items()}
        received = {
            name: vector.to(parameters.device)
            for name, vector in from_arrays(message.content, SAYS, forms).items()
        }
        own = self._kept(parameters) or self._algorithm.client_state(Server(parameters, buffers, received))
        self._client = Client(parameters, received, own, buffers, buffers)
        if own and state is None:
            raise VHLError(f"{self._algorithm.name} keeps something at each client: give state a file.")
        self.steps = 0

    def _kept(self, parameters: Tensor) -> Vectors:
        if self._file is None or not self._file.is_file():
            return {}
        kept = read_tensors(self._file)[0]
        if any(form(vector) != form(parameters) for vector in kept.values()):
            raise VHLError(f"{self._file} holds what a client of another model kept; choose another file.")
        return {name: vector.to(parameters.device) for name, vector in kept.items()}

    @torch.no_grad()
    def before_step(self) -> None:
        """Let the algorithm change the gradients, after ``backward()``."""
        gradients = {}
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    raise VHLError(f"No gradient has reached {name}; freeze it or use it.")
                gradients[name] = parameter.grad
        gradient = self._layout.pack({**self._model.state_dict(), **gradients})[0]
        self._algorithm.correct_gradient(gradient, self._weights(), self._client)
        for segment in self._layout.parameters:
            gradients[segment.name].copy_(segment.view(gradient))

    @torch.no_grad()
    def after_step(self) -> None:
        """Let the algorithm change the weights, after ``optimizer.step()``."""
        weights = self._weights()
        rate = torch.tensor(self._lr, dtype=weights.dtype, device=weights.device)
        self._algorithm.correct_weights(weights, rate, self._client)
        named = dict(self._model.named_parameters())
        for segment in self._layout.parameters:
            named[segment.name].copy_(segment.view(weights))
        self.steps += 1

    def reply(self, samples: int, metrics: Mapping[str, float] | None = None) -> Message:
        """The reply that :class:`AlgorithmStrategy` expects, with metrics of your own."""
        if not self.steps:
            raise VHLError("No step was taken: call after_step after each, or do not reply.")
        work = Work(samples, self.steps, self._lr, self._momentum)
        said, own = self._algorithm.finish(self._weights(), self._client, work)
        # A round that diverged will not count, and must not spoil the next.
        finite = all(vector.isfinite().all() for vector in (*said.values(), *own.values()))
        if self._file is not None and own and finite:
            write_tensors(self._file, own)
        counts = {"num-examples": samples, "steps": self.steps}
        content = RecordDict(
            {
                "arrays": to_arrays(self._model.state_dict()),
                "metrics": MetricRecord({**(metrics or {}), **counts}),
            }
        )
        if said:
            content[SAYS] = to_arrays(said)
        return Message(content, reply_to=self._message)

    def _weights(self) -> Tensor:
        return self._layout.pack(self._model.state_dict())[0]
