from __future__ import annotations

import logging
from functools import partial

import pytest
import torch

from vhl.training import compiler


@pytest.fixture
def graphs(monkeypatch):
    """Counts what is handed to the compiler's back end, and computes it as it is."""
    import torch._dynamo
    import torch._inductor.config

    found = []

    def backend(graph, _):
        found.append(graph)
        return graph.forward

    dynamo, inductor = torch._dynamo.config, torch._inductor.config
    limits = {name: getattr(dynamo, name) for name in ("recompile_limit", "accumulated_recompile_limit")}
    log = logging.getLogger("torch._inductor")
    level = log.level
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    with dynamo.patch(limits), inductor.patch(fallback_random=inductor.fallback_random):  # set back
        yield found
    log.setLevel(level)
    torch._dynamo.reset()


def test_every_shape_is_compiled_for_itself(graphs):
    """A reduction for any shape would be slower than one for this shape."""
    ours = compiler.compiled(lambda x: (x * 2).sum())
    for rows in (3, 4, 5, 6, 3, 4):
        assert float(ours(torch.ones(rows))) == 2 * rows
    assert len(graphs) == 4


def test_what_cannot_be_compiled_whole_is_an_error(graphs):
    ours = compiler.compiled(lambda x: x * 2 if x.sum().item() > 0 else x)
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        ours(torch.ones(3))
