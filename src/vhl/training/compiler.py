"""PyTorch's compiler, for functions that are part of a captured step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def compiled(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function compiled for shapes that never change.

    Dynamic shapes would make reductions several times slower, and a part that cannot be compiled must be
    noticed rather than run slowly: hence ``dynamic=False`` and ``fullgraph=True``.
    """
    import torch._dynamo
    import torch._inductor.config

    logging.getLogger("torch._inductor").setLevel(logging.ERROR)
    torch._dynamo.config.recompile_limit = 1000  # a sweep has many objectives; each is another compilation
    torch._dynamo.config.accumulated_recompile_limit = 1000
    # PyTorch's own random numbers, so that dropout is the same compiled or not
    torch._inductor.config.fallback_random = True
    return torch.compile(function, dynamic=False, fullgraph=True)
