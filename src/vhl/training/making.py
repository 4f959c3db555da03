"""How trainers of a task are made: with plain, fused or compiled steps, as far as these work."""

from __future__ import annotations

import torch

from vhl.training.fused import CompiledStep, FusedStep, has_kernels
from vhl.training.static import Note, Place, Static, first_line
from vhl.training.step import Step
from vhl.training.task import Task
from vhl.training.trainer import Begin, Trainer


class Maker:
    """What the first trainer of a task finds out holds for all of them."""

    def __init__(self, task: Task, static: Static, *, kernels: bool, compile_: bool, on_note: Note) -> None:
        self._static, self._on_note = static, on_note
        self._uncompiled = FusedStep(task) if kernels else Step(task)
        self._step = CompiledStep(self._uncompiled) if compile_ else self._uncompiled

    def trainer(self, begin: Begin, place: Place | None, *, frozen: bool = False) -> Trainer:
        """A trainer for this place on a GPU, rehearsed with a job there, or for the CPU.

        ``frozen`` is batch normalisation by the server's statistics.
        """
        try:
            return self._made(begin, place, frozen)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if self._step is self._uncompiled:
                raise
            # It was the compiler's, or the part's itself: then it is raised again, and clearer.
            self._step = self._uncompiled
            made = self._made(begin, place, frozen)
            self._on_note(f"Steps run uncompiled, which is slower: {first_line(error)}")
            return made

    def _made(self, begin: Begin, place: Place | None, frozen: bool) -> Trainer:
        trainer = Trainer(self._step, frozen=frozen)
        if place is None:
            return trainer
        if self._step is not self._uncompiled and not self._static.records("Steps"):
            # Nothing else rehearses it, and what cannot be compiled must be found out here.
            begin(trainer)
            with place.work(), place.own_chance():
                trainer.step()
        trainer.make_static(self._static, place, begin)
        return trainer


def wants_compiler(task: Task, asked: bool | None, *, recorded: bool, kernels: bool) -> bool:
    """Unless something is asked for, the compiler is for networks that have no kernels of ours."""
    return asked if asked is not None else recorded and kernels and not has_kernels(task.build())
