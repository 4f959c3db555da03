"""What an exchange must look like: names, types and shapes of all vectors, worked out on either side."""

from __future__ import annotations

import torch

from vhl.algorithms.base import Algorithm, Client, Server, Vectors, Work
from vhl.deploy.wire import Form, flatten, form, prefixed
from vhl.objectives.base import Batch
from vhl.rounds.setup import Setup
from vhl.training.step import hit_names


def model_forms(setup: Setup) -> dict[str, Form]:
    """Of a model's vectors."""
    return {name: form(vector) for name, vector in flatten(_blank(setup)).items() if "." not in name}


def server_forms(setup: Setup) -> dict[str, Form]:
    """Of what a server sends to train from."""
    return {name: form(vector) for name, vector in flatten(_blank(setup)).items()}


def update_forms(setup: Setup) -> dict[str, Form]:
    """Of what a client sends back: its model, and what its algorithm says beside it."""
    server = _blank(setup)
    said = prefixed("message.", blank_message(setup.experiment.algorithm, server))
    vectors = {"parameters": server.parameters, "buffers": server.buffers, **said}
    return {name: form(vector) for name, vector in vectors.items()}


def blank_message(algorithm: Algorithm, server: Server) -> Vectors:
    """What a client's half says at the end, in form."""
    own = algorithm.client_state(server)
    client = Client(server.parameters, algorithm.sent(server.state), own, server.buffers, server.buffers)
    return algorithm.finish(server.parameters, client, Work(1, 1, 1.0, 0.0))[0]


def total_names(setup: Setup) -> set[str]:
    """What a client adds up over its steps: found by the losses of a batch of zeros."""
    objective, algorithm = setup.experiment.objective, setup.experiment.algorithm
    natural, device = setup.experiment.training.batch_size, setup.precision.device
    virtual = objective.virtual_images(natural)
    rows = natural + (0 if virtual is None else virtual.rows)

    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    features = {tap: zeros(rows, length) for tap, length in setup.blueprint.known.lengths.items()}
    batch = Batch(
        features,
        zeros(rows, setup.blueprint.outputs),
        zeros(natural, dtype=torch.int64),
        torch.ones(natural, device=device),
        setup.classes,
        None if virtual is None else zeros(virtual.rows, dtype=torch.int64),
        setup.shared,
        natural,
        lambda shape: zeros(*shape),
    )
    references = dict.fromkeys(algorithm.references, features["last"][:natural])
    return {*objective.loss(batch), *algorithm.loss(batch, references), *hit_names(virtual is not None)}


def _blank(setup: Setup) -> Server:
    """A server of the right form, full of zeros."""
    blueprint, algorithm = setup.blueprint, setup.experiment.algorithm
    packed = blueprint.layout.pack(blueprint.known.module.state_dict())
    parameters, buffers = (torch.zeros_like(vector, dtype=setup.precision.dtype) for vector in packed)
    return Server(parameters, buffers, algorithm.sent(algorithm.server_state(parameters)))
