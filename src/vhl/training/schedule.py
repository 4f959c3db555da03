"""What every step of some clients' rounds uses: which samples, how they count, how they are augmented.

It is worked out on the device for all clients of a round at once, in a few operations on long vectors, so
that a client costs the host next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vhl.chance import Purpose, Words, below, words
from vhl.training.streams import Stream

Schedule = dict[str, Tensor]
"""Of one client, by name; every tensor has the steps first.

``index`` are the samples of a natural batch and ``weights`` how they count: 1, or 0 for a filler. ``virtual``
are those of a virtual batch. What :meth:`Stream.choices` says of them has ``natural.`` or ``virtual.`` in
front.
"""


@dataclass(frozen=True)
class Round:
    """One client's local training in one round, as far as chance is concerned."""

    client: int
    round: int
    samples: Tensor
    """Its natural samples, as indices."""


def steps_per_epoch(samples: int, batch: int) -> int:
    return -(-samples // batch)


def natural_schedules(
    seed: int, clients: Sequence[Round], stream: Stream, batch: int, epochs: int
) -> list[Schedule]:
    """Each epoch is a shuffled pass; its last batch is filled up from its start by samples of weight 0."""
    sizes = [len(client.samples) for client in clients]
    parts = _Parts(clients, [epochs * size for size in sizes])
    size = parts.of_owner(sizes)
    epoch, place = parts.within // size, parts.within % size
    drawn = words(seed, Purpose.NATURAL, parts.round, parts.client, epoch, place)
    order = ((parts.owner * epochs + epoch) << 32 | drawn[0]).argsort(stable=True)
    samples = torch.cat([client.samples for client in clients])[parts.first(sizes) + place]

    lengths = [steps_per_epoch(own, batch) * batch for own in sizes]  # with fillers
    slots = _Parts(clients, [epochs * length for length in lengths])
    length, size = slots.of_owner(lengths), slots.of_owner(sizes)
    epoch, place = slots.within // length, slots.within % length
    chosen = order[slots.first([epochs * own for own in sizes]) + epoch * size + place % size]
    flat = {"index": samples[chosen], "weights": (place < size).float()}
    taken: Words = tuple(word[chosen] for word in drawn)  # type: ignore[assignment]
    flat |= {f"natural.{name}": values for name, values in stream.choices(taken).items()}
    return slots.split(flat, batch)


def virtual_schedules(
    seed: int, clients: Sequence[Round], stream: Stream, order: Tensor, rows: int, steps: Sequence[int]
) -> list[Schedule]:
    """A client goes through the round's shuffle of the virtual set, from a start of its own."""
    parts = _Parts(clients, [rows * own for own in steps])
    group, number = stream.tiles**2, parts.within
    start, *_ = words(seed, Purpose.VIRTUAL_START, parts.round, parts.client, 0, torch.zeros_like(number))
    first = below(start, len(order) // group) * group  # a mosaic's tiles stay together
    choices = stream.choices(words(seed, Purpose.VIRTUAL, parts.round, parts.client, 0, number))
    flat = {"virtual": order[(first + number) % len(order)]}
    flat |= {f"virtual.{name}": values for name, values in choices.items()}
    return parts.split(flat, rows)


class _Parts:
    """Vectors with a stretch for each client, laid one after the other."""

    def __init__(self, clients: Sequence[Round], lengths: Sequence[int]) -> None:
        self._device, self._lengths = clients[0].samples.device, list(lengths)
        counts = self._tensor(lengths)
        total = sum(lengths)
        every = torch.arange(len(clients), device=self._device)
        self.owner = torch.repeat_interleave(every, counts, output_size=total)
        """Whose stretch an element is in: the position among the clients."""
        self.within = torch.arange(total, device=self._device) - self.first(lengths)
        """Its place in the stretch."""
        self.client = self.of_owner([client.client for client in clients])
        self.round = self.of_owner([client.round for client in clients])

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64).to(self._device, non_blocking=True)

    def of_owner(self, numbers: Sequence[int]) -> Tensor:
        """Each element's owner's number."""
        return self._tensor(numbers)[self.owner]

    def first(self, lengths: Sequence[int]) -> Tensor:
        """Where the owner's stretch begins in vectors with stretches of these lengths."""
        ends = self._tensor(lengths).cumsum(0)
        return (ends - self._tensor(lengths))[self.owner]

    def split(self, flat: Schedule, columns: int) -> list[Schedule]:
        """A schedule for each client."""
        cut = {
            name: values.view(-1, columns).split([n // columns for n in self._lengths])
            for name, values in flat.items()
        }
        return [dict(zip(cut, own, strict=True)) for own in zip(*cut.values(), strict=True)]
