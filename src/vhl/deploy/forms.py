"""What an exchange must look like: names, types and shapes of all vectors, worked out on either side."""

from __future__ import annotations

import numpy as np
import torch

from vhl.algorithms.base import Algorithm, Client, Server, Vectors, Work
from vhl.deploy.wire import Form, flatten, form, prefixed
from vhl.models.vectors import FlatModel
from vhl.rounds.problem import Problem
from vhl.training.step import plain_pieces
from vhl.training.task import Task


def model_forms(problem: Problem) -> dict[str, Form]:
    """Of a model's vectors."""
    return {name: form(vector) for name, vector in flatten(_blank(problem)).items() if "." not in name}


def server_forms(problem: Problem) -> dict[str, Form]:
    """Of what a server sends to train from."""
    return {name: form(vector) for name, vector in flatten(_blank(problem)).items()}


def update_forms(problem: Problem) -> dict[str, Form]:
    """Of what a client sends back: its model, and what its algorithm says beside it."""
    server = _blank(problem)
    said = prefixed("message.", blank_message(problem.experiment.algorithm, server))
    vectors = {"parameters": server.parameters, "buffers": server.buffers, **said}
    return {name: form(vector) for name, vector in vectors.items()}


def blank_message(algorithm: Algorithm, server: Server) -> Vectors:
    """What a client's half says at the end, in form."""
    own = algorithm.client_state(server)
    client = Client(server.parameters, algorithm.sent(server.state), own, server.buffers, server.buffers)
    return algorithm.finish(server.parameters, client, Work(1, 1, 1.0, 0.0))[0]


def total_names(task: Task, outputs: int) -> set[str]:
    """What a client adds up over its steps: found by judging a batch of zeros."""
    plan = task.plan(0, 0, np.zeros(1, np.int64))
    draws = {name: torch.from_numpy(rows[0]).to(task.device) for name, rows in plan.items()}
    draws["labels"] = torch.zeros_like(draws.pop("index"))
    rows = len(draws["labels"])
    if "virtual" in draws:
        assert task.virtual is not None
        draws["virtual_labels"] = task.virtual.labels[draws.pop("virtual")]
        rows += len(draws["virtual_labels"])
    zeros = {tap: torch.zeros(rows, length, device=task.device) for tap, length in task.features.items()}
    for name in task.algorithm.references:
        draws[f"reference.{name}"] = zeros["last"][: len(draws["labels"])]
    _, values = plain_pieces(task).judge(zeros, torch.zeros(rows, outputs, device=task.device), draws)
    return set(values)


def _blank(problem: Problem) -> Server:
    """A server of the right form, full of zeros."""
    model = FlatModel(problem.build(problem.shape.outputs), torch.device("cpu"), problem.numerics.dtype)
    parameters, algorithm = torch.zeros_like(model.parameters), problem.experiment.algorithm
    state = algorithm.sent(algorithm.server_state(parameters))
    return Server(parameters, torch.zeros_like(model.buffers), state)
