"""Distillation on the server: the clients' models teach their average (FedDF; Lin et al., NeurIPS 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

from vhl.algorithms.base import Distillation, Server, Update
from vhl.models._network import freeze_statistics, fuse
from vhl.models.vectors import FlatModel
from vhl.rounds.evaluation import Evaluation, evaluate
from vhl.rounds.problem import Problem
from vhl.training.capture import REHEARSALS, Captured, CaptureError, Place, at_once, random_numbers_from
from vhl.training.recipe import Note

_MEAN, _SQUARE, _TINY = 0.9, 0.999, 1e-8  # Adam's defaults


class Distiller:
    """A student, its teachers and a step between them, at addresses that never change."""

    def __init__(
        self,
        problem: Problem,
        settings: Distillation,
        *,
        capture: bool = False,
        kernels: bool = False,
        on_note: Note = lambda note: None,
    ) -> None:
        self._problem, self._settings, self._stream = problem, settings, problem.distillation
        self._capture, self._kernels, self._on_note = capture, kernels, on_note
        device, dtype = problem.device, problem.numerics.dtype
        self._place = Place(device) if device.type == "cuda" else None
        self._student = self._build()
        self._teachers: list[FlatModel] = []
        self._desks: list[torch.cuda.Stream] = []
        self._mean, self._square = (torch.zeros_like(self._student.parameters) for _ in range(2))
        self._step, self._row = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
        progress = torch.arange(settings.steps + REHEARSALS, dtype=torch.float64) / settings.steps
        self._stretch = min(settings.check_every, settings.steps)
        self._rates = (settings.lr * (1 + (math.pi * progress).cos()) / 2).to(device, dtype)
        self._plan: dict[str, Tensor] = {}
        self._run: Callable[[], None] | None = None
        self._frozen = False

    def _build(self) -> FlatModel:
        problem, numerics = self._problem, self._problem.numerics
        module = problem.build(problem.shape.outputs)
        if self._kernels:
            fuse(module)
        return FlatModel(module, problem.device, numerics.dtype, numerics.compute_dtype)

    def __call__(self, server: Server, updates: Sequence[Update], round_: int) -> tuple[Server, int]:
        """The distilled server, and the steps it took."""
        settings, problem = self._settings, self._problem
        if len(updates) == 1:  # its model is the average: there is nothing to learn, and Adam would drift
            return server, 0
        seed = np.random.SeedSequence(problem.experiment.seeds.batches, spawn_key=(round_,))
        rng = np.random.default_rng(seed)  # clients have two numbers in their key, the server one
        with nullcontext() if self._place is None else self._place.work(), problem.numerics.active():
            self._begin(server, updates, problem.experiment.training.freezes(round_))
            best = (self._accuracy() if settings.keep_average else -1.0, 0, self._copy())
            step = 0
            while step < settings.steps and step - best[1] < settings.patience:
                count = min(self._stretch, settings.steps - step)
                self._take_steps(count, rng)
                step += count
                accuracy = self._accuracy()
                if accuracy > best[0]:
                    best = (accuracy, step, self._copy())
        if self._place is not None:
            self._place.stream.synchronize()  # the last copy may be on its way, and others read it next
        return replace(server, parameters=best[2][0], buffers=best[2][1]), step

    def _begin(self, server: Server, updates: Sequence[Update], frozen: bool) -> None:
        if frozen != self._frozen:
            self._frozen, self._run = frozen, None
        if len(updates) != len(self._teachers):  # a client may have been left out
            self._teachers, self._run = [self._build() for _ in updates], None
            if self._place is not None:
                self._desks = [torch.cuda.Stream(self._problem.device) for _ in updates]
        for teacher, update in zip(self._teachers, updates, strict=True):
            teacher.load(update.parameters, update.buffers)
            teacher.module.eval().requires_grad_(False)
        if self._run is None:
            self._start_from(server)
            self._run = self._prepared()
        self._start_from(server)

    def _start_from(self, server: Server) -> None:
        self._student.load(server.parameters, server.buffers)
        for tensor in (self._mean, self._square, self._step, self._row):
            tensor.zero_()

    def _prepared(self) -> Callable[[], None]:
        """The step as it will be taken; where it is recorded, it is rehearsed on images of no importance."""
        place = self._place
        if place is None:
            return self._distil
        self._draw(np.random.default_rng(0), self._stretch)
        self._train()
        if self._capture:
            try:
                return Captured(self._distil, place)
            except CaptureError as error:
                self._on_note(f"Distillation runs uncaptured, which is slower: {error}")

        def step() -> None:
            with random_numbers_from(place.chance):
                self._distil()

        return step

    def _take_steps(self, count: int, rng: np.random.Generator) -> None:
        assert self._run is not None
        self._draw(rng, count)
        self._row.zero_()
        self._train()
        seed = int(rng.integers(2**63))
        if self._place is not None:
            self._place.chance.manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for _ in range(count):
                self._run()

    def _train(self) -> None:
        self._student.module.train()
        if self._frozen:
            freeze_statistics(self._student.module)

    def _draw(self, rng: np.random.Generator, count: int) -> None:
        """Which images the next steps use, and how they are augmented."""
        if self._stream is None:
            return
        shape = (count, self._settings.batch)
        plan = {"index": self._stream.order(rng, math.prod(shape)).reshape(shape)}
        plan |= self._stream.draw(rng, shape)
        for name, rows in plan.items():
            drawn = torch.from_numpy(rows)
            if name not in self._plan:
                whole = (self._stretch + REHEARSALS, *rows.shape[1:])
                self._plan[name] = torch.zeros(whole, dtype=drawn.dtype, device=self._problem.device)
            self._plan[name][:count].copy_(drawn)

    def _images(self) -> Tensor:
        if self._stream is not None:
            drawn = {name: rows.index_select(0, self._row)[0] for name, rows in self._plan.items()}
            images = self._stream.batch(drawn.pop("index"), drawn)
        else:
            height, width = self._problem.shape.size
            shape = (self._settings.batch, self._problem.shape.channels, height, width)
            noise = torch.randn(shape, dtype=self._rates.dtype, device=self._rates.device)
            images = 2 * (noise - noise.min()) / (noise.max() - noise.min()) - 1
        return images.to(self._problem.numerics.compute_dtype, memory_format=torch.channels_last)

    def _distil(self) -> None:
        """One step: the student's logits towards the mean of its teachers'."""
        images, numerics = self._images(), self._problem.numerics
        with numerics.autocast():
            taught = self._taught(images)
            _, logits = self._student.module(images)
        target = taught.log_softmax(1)
        own = logits.to(numerics.dtype).log_softmax(1)
        self._student.differentiate(kl_div(own, target, reduction="batchmean", log_target=True))
        self._descend()

    @torch.no_grad()
    def _taught(self, images: Tensor) -> Tensor:
        """The teachers' mean logits. One alone leaves most of a GPU idle, so there all answer at once.

        Eight ResNet-8 so take 0.36 of the time of one after the other, and batched weights 0.67.
        """
        asked = [partial(_logits, teacher.module, images) for teacher in self._teachers]
        answers = at_once(asked, self._desks) if self._desks else [ask() for ask in asked]
        return torch.stack([answer.to(self._problem.numerics.dtype) for answer in answers]).mean(0)

    def _descend(self) -> None:
        """Adam, at the rate of this step, with a clipped gradient."""
        gradient = self._student.gradient
        gradient.mul_((self._settings.clip / (gradient.norm() + 1e-6)).clamp(max=1))  # as PyTorch clips
        rate = self._rates.index_select(0, self._step)
        self._step.add_(1)
        self._row.add_(1)
        self._mean.lerp_(gradient, 1 - _MEAN)
        self._square.mul_(_SQUARE).addcmul_(gradient, gradient, value=1 - _SQUARE)
        step = self._step.to(rate.dtype)
        mean, square = self._mean / (1 - _MEAN**step), self._square / (1 - _SQUARE**step)
        self._student.parameters.sub_(rate * mean / (square.sqrt() + _TINY))
        self._student.refresh()

    def _accuracy(self) -> float:
        problem = self._problem
        assert problem.natural.validation is not None
        counts = evaluate(self._student, problem.natural.validation, problem.classes, problem.numerics)
        return Evaluation(*(count.cpu() for count in counts)).accuracy

    def _copy(self) -> tuple[Tensor, Tensor]:
        return self._student.parameters.clone(), self._student.buffers.clone()


def _logits(module: nn.Module, images: Tensor) -> Tensor:
    logits: Tensor = module(images)[1]
    return logits
