# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Philox as one Triton kernel: as operations of PyTorch it takes a hundred launches."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

_BLOCK = 256


@triton.jit
def _coordinate(given, place, inside, IS_TENSOR: constexpr):
    """One coordinate of each place: a number of its own, or one for all."""
    numbers = tl.zeros_like(place)
    numbers += tl.load(given + place, inside, 0) if IS_TENSOR else given
    return numbers


@triton.jit
def _words_kernel(
    index, step, client, round_, seed, purpose, out, COUNT,
    STEP: constexpr, CLIENT: constexpr, ROUND: constexpr, SEED: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """Four words for each place, one after the other in ``out``."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < COUNT
    key = _coordinate(seed, place, inside, SEED) | (tl.zeros_like(place) + purpose) << 32
    first, second, third, fourth = tl.philox(
        key,
        tl.load(index + place, inside, 0).to(tl.uint32),
        _coordinate(step, place, inside, STEP).to(tl.uint32),
        _coordinate(client, place, inside, CLIENT).to(tl.uint32),
        _coordinate(round_, place, inside, ROUND).to(tl.uint32),
    )
    tl.store(out + place, first.to(tl.int64), inside)
    tl.store(out + COUNT + place, second.to(tl.int64), inside)
    tl.store(out + 2 * COUNT + place, third.to(tl.int64), inside)
    tl.store(out + 3 * COUNT + place, fourth.to(tl.int64), inside)


def philox(
    seed: int | Tensor,
    purpose: int,
    round_: int | Tensor,
    client: int | Tensor,
    step: int | Tensor,
    index: Tensor,
) -> Tensor:
    """What :func:`vhl.chance.words` gives for places on a GPU, as one tensor with the words first."""
    given = [step, client, round_, seed]
    shape = torch.broadcast_shapes(index.shape, *(own.shape for own in given if isinstance(own, Tensor)))
    wide = [own.expand(shape).contiguous() if isinstance(own, Tensor) else own for own in given]
    index = index.expand(shape).contiguous()
    out, count = torch.empty((4, *shape), dtype=torch.int64, device=index.device), index.numel()
    are_tensors = (isinstance(own, Tensor) for own in given)
    with torch.cuda.device_of(index):
        _words_kernel[(triton.cdiv(count, _BLOCK),)](
            index, *wide, purpose, out, count, *are_tensors, BLOCK=_BLOCK
        )
    return out
