"""Chance: every random number is a function of a seed, a purpose and a place, and of nothing else.

So a number is the same in any order of work and after any resume, and two purposes never share one. Whole
numbers are the same on every device. This module owns the list of purposes: chance of a new kind is a new
line. Initial weights and dropout come from PyTorch's own generators.

The function is Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Its
key is (seed, purpose). Its counter is the place: (index, step, client, round). For a fixed key it is a
bijection of the counter, and different keys are different functions.
"""

from __future__ import annotations

import importlib.util
import math
from enum import IntEnum
from functools import cache

import numpy as np
import torch
from torch import Tensor

Words = tuple[Tensor, Tensor, Tensor, Tensor]
"""Four independent whole numbers from 0 to 2³² − 1 for each place, as int64."""
Place = int | Tensor
"""One coordinate of a place; tensors are broadcast."""

_MASK = 0xFFFFFFFF
_FACTORS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


class Purpose(IntEnum):
    """What random numbers are for."""

    NATURAL = 0
    """Order and augmentation of a client's natural samples."""
    VIRTUAL = 1
    """Augmentation of a client's virtual samples."""
    VIRTUAL_ORDER = 2
    """The shuffle of the virtual set in a round."""
    VIRTUAL_START = 3
    """Where in that shuffle a client begins."""
    OBJECTIVE = 4
    """What an objective draws in a step."""
    NETWORK = 5
    """Chance inside a network, as dropout."""
    CLIENTS = 6
    """Which clients take part in a round."""
    SERVER = 7
    """What a method does on the server after a round."""
    CONSTANTS = 8
    """What an objective draws once for all clients."""
    SERVER_ORDER = 9
    """The order of images that a method trains on on the server."""


def words(seed: Place, purpose: Purpose, round_: Place, client: Place, step: Place, index: Tensor) -> Words:
    """Four words for each place.

    >>> [word.item() for word in words(0, Purpose.NATURAL, 0, 0, 0, torch.zeros(1, dtype=torch.int64))]
    [1713891541, 3781805453, 3159862348, 2600524760]
    """
    if not torch.compiler.is_compiling() and index.is_cuda and has_triton():
        from vhl.chance._kernels import philox  # Triton is there on machines with a GPU alone

        first, second, third, fourth = philox(seed, int(purpose), round_, client, step, index)
        return first, second, third, fourth
    key: tuple[Place, Place] = seed, int(purpose)
    counter: tuple[Place, ...] = index, step, client, round_
    for _ in range(_ROUNDS):
        high, low = _multiply(counter[0], _FACTORS[0])
        other_high, other_low = _multiply(counter[2], _FACTORS[1])
        counter = other_high ^ counter[1] ^ key[0], other_low, high ^ counter[3] ^ key[1], low
        key = (key[0] + _WEYL[0]) & _MASK, (key[1] + _WEYL[1]) & _MASK
    first, second, third, fourth = torch.broadcast_tensors(*counter)
    return first, second, third, fourth


@cache
def has_triton() -> bool:
    """Whether kernels can be made here; PyTorch's builds for a CPU come without Triton."""
    return torch.cuda.is_available() and importlib.util.find_spec("triton") is not None


def _multiply(number: Place, factor: int) -> tuple[Place, Place]:
    """The high and low 32 bits of a product of 32-bit numbers; int64 wraps around, which loses neither."""
    product = number * factor
    return (product >> 32) & _MASK, product & _MASK


def below(word: Tensor, limit: int, bits: int = 32) -> Tensor:
    """A whole number from 0 to ``limit`` − 1 from a word of so many bits."""
    return (word * limit) >> bits


def halves(word: Tensor) -> tuple[Tensor, Tensor]:
    """Two words of 16 bits."""
    return word >> 16, word & 0xFFFF


def normals(
    seed: Place, round_: Place, client: Place, step: Place, shape: tuple[int, ...], like: Tensor
) -> Tensor:
    """An objective's standard normal numbers in one step, by Box and Muller; of the type of ``like``."""
    count = math.prod(shape)
    index = torch.arange(-(-count // 4), device=like.device)
    found = words(seed, Purpose.OBJECTIVE, round_, client, step, index)
    first, second, third, fourth = (word.to(torch.promote_types(like.dtype, torch.float32)) for word in found)
    pairs = []
    for radial, angular in ((first, second), (third, fourth)):
        radius = (-2 * ((radial + 1) / 2**32).log()).sqrt()
        angle = angular * (2 * math.pi / 2**32)
        pairs += [radius * angle.cos(), radius * angle.sin()]
    return torch.cat(pairs)[:count].view(shape).to(like.dtype)


def torch_seed(seed: int, round_: int, client: int) -> int:
    """A seed for PyTorch's own generator, from which a network draws while this client trains."""
    first, second, *_ = words(seed, Purpose.NETWORK, round_, client, 0, torch.zeros((), dtype=torch.int64))
    return int(first) << 31 | int(second) >> 1


def generator(seed: int, purpose: Purpose, *place: int) -> np.random.Generator:
    """NumPy's numbers for what happens once a round or once a run: up to three coordinates are the place."""
    counter = [0, *place, *[0] * (3 - len(place))]
    return np.random.Generator(np.random.Philox(key=[seed, int(purpose)], counter=counter))
