"""How the steps of a task are taken on a device: fused, compiled, captured, as far as its parts allow."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vhl.training.capture import Captured, CaptureError, Place, first_line, random_numbers_from
from vhl.training.fusion import compiled_pieces, fused_pieces, has_kernels
from vhl.training.step import plain_pieces
from vhl.training.task import Task
from vhl.training.trainer import Trainer

Note = Callable[[str], None]
Step = Callable[[], None]
Begin = Callable[[Trainer], None]
"""Gives a trainer a job."""


class Recipe:
    """Found out by the first lane that tries, and the same for all lanes."""

    def __init__(
        self, task: Task, *, capture: bool, kernels: bool, compile_: bool | None, on_note: Note
    ) -> None:
        """``compile_`` unset is for networks that have no kernels of ours."""
        self._task, self._capture, self._on_note = task, capture, on_note
        plain = plain_pieces(task)
        self._uncompiled = fused_pieces(plain, task) if kernels else plain
        if compile_ is None:
            compile_ = capture and kernels and not has_kernels(task.build())
        self._pieces = compiled_pieces(self._uncompiled) if compile_ else self._uncompiled

    def trainer(self, begin: Begin, place: Place | None, *, frozen: bool = False) -> tuple[Trainer, Step]:
        """A trainer and its step; on a GPU they are for this place, and rehearsed with a job there.

        ``frozen`` is batch normalisation by the server's statistics.
        """
        try:
            return self._rehearse(begin, place, frozen)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if self._pieces is self._uncompiled:
                raise
            # Of the compiler, or of the part itself: then it is raised again, and clearer.
            self._pieces = self._uncompiled
            made = self._rehearse(begin, place, frozen)
            self._on_note(f"Steps run uncompiled, which is slower: {first_line(error)}")
            return made

    def _rehearse(self, begin: Begin, place: Place | None, frozen: bool) -> tuple[Trainer, Step]:
        trainer = Trainer(self._task, self._pieces, frozen=frozen)
        if place is None:
            return trainer, trainer.step
        if self._capture:
            begin(trainer)
            try:
                return trainer, Captured(trainer.step, place)
            except CaptureError as error:
                self._capture = False
                self._on_note(f"Steps run uncaptured, which is slower: {error}")

        def step() -> None:
            with place.work(), random_numbers_from(place.chance):
                trainer.step()

        if self._pieces is not self._uncompiled:
            begin(trainer)
            step()  # compiles, here where a failure is noticed
        return trainer, step
