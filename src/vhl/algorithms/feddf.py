"""FedDF (Lin et al., NeurIPS 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field, SerializeAsAny
from torch import Tensor, nn
from torch.nn.functional import kl_div

from vhl.algorithms.base import Server, Stage, Update
from vhl.algorithms.fedavg import FedAvg
from vhl.config.registry import part
from vhl.errors import VHLError
from vhl.models.vectors import FlatModel
from vhl.virtual.base import Generator

_DISTILLER = "distiller"


class FedDF(FedAvg):
    """FedAvg, then the server distils the round's client models into the average (Lin et al., 2020).

    On unlabelled images it minimises KL(softmax of the clients' mean logits ‖ softmax of its own) by Adam
    with cosine decay, and keeps the state that does best on validation images.
    """

    images: Annotated[SerializeAsAny[Generator], part(Generator, "algorithm.images")] | None = Field(
        None, description="what to distil on, as dataset:cifar100 or noise; unset is fresh noise every step"
    )
    batch_size: int | None = Field(
        None, ge=1, description="images of a step; unset is 64, or 128 of fresh noise"
    )
    steps: int = Field(10_000, ge=1, description="steps a round at most, over which the rate decays")
    lr: float = Field(1e-3, gt=0, description="Adam's learning rate")
    clip: float = Field(5.0, gt=0, description="largest norm of a gradient")
    check_every: int = Field(100, ge=1, description="steps between looks at the validation images")
    patience: int = Field(
        1_000, ge=1, description="steps without gain after which a round's distillation ends"
    )
    keep_average: bool = Field(False, description="let the average itself win where no step is better")

    @property
    def batch(self) -> int:
        """Images of a step."""
        return self.batch_size or (128 if self.images is None else 64)

    def prepare(self, stage: Stage) -> None:
        if not stage.can_validate():
            raise VHLError(
                f"algorithm = {self.name} chooses a model by validation images: set data.validation, "
                "as to 0.1."
            )
        stage.kept[_DISTILLER] = _Distiller(self, stage)

    def after_round(self, server: Server, updates: Sequence[Update], stage: Stage) -> Server:
        if len(updates) == 1:  # its model is the average: there is nothing to learn, and Adam would drift
            stage.report(distillation_steps=0)
            return server
        distiller: _Distiller = stage.kept[_DISTILLER]
        distilled, steps = distiller.distil(server, updates)
        stage.report(steps * self.batch, distillation_steps=steps)
        return distilled


class _Distiller:
    """A student and its teachers, at addresses that never change."""

    def __init__(self, settings: FedDF, stage: Stage) -> None:
        self._settings, self._stage = settings, stage
        self._stretch = min(settings.check_every, settings.steps)
        self._images = None
        if settings.images is not None:
            self._images = stage.images(settings.images, settings.batch, self._stretch)
        self._student, self._teachers = stage.model(), list[FlatModel]()
        self._taken, self._rate = (torch.zeros((), dtype=stage.dtype, device=stage.device) for _ in range(2))
        self._weights = nn.Parameter(self._student.parameters)
        self._weights.grad = self._student.gradient
        on_gpu = stage.device.type == "cuda"
        self._adam = torch.optim.Adam([self._weights], lr=self._rate, foreach=False, capturable=on_gpu)
        # Made here, because Adam by itself counts its steps in single precision.
        self._adam.state[self._weights] = {
            "step": torch.zeros_like(self._taken),
            "exp_avg": torch.zeros_like(self._weights),
            "exp_avg_sq": torch.zeros_like(self._weights),
        }
        self._step: Callable[[], None] | None = None
        self._frozen = False

    def distil(self, server: Server, updates: Sequence[Update]) -> tuple[Server, int]:
        """The distilled server, and the steps it took."""
        settings, stage = self._settings, self._stage
        with stage.working():
            self._prepare(server, updates)
            best = (stage.accuracy(self._student) if settings.keep_average else -1.0, 0, self._copy())
            taken = 0
            while taken < settings.steps and taken - best[1] < settings.patience:
                count = min(self._stretch, settings.steps - taken)
                self._take(taken, count)
                taken += count
                accuracy = stage.accuracy(self._student)
                if accuracy > best[0]:
                    best = (accuracy, taken, self._copy())
        return replace(server, parameters=best[2][0], buffers=best[2][1]), taken

    def _prepare(self, server: Server, updates: Sequence[Update]) -> None:
        stage = self._stage
        if stage.frozen != self._frozen:
            self._frozen, self._step = stage.frozen, None
        if len(updates) != len(self._teachers):  # a client may have been left out
            self._teachers, self._step = [stage.model() for _ in updates], None
        for teacher, update in zip(self._teachers, updates, strict=True):
            teacher.load(update.parameters, update.buffers)
            teacher.module.eval().requires_grad_(False)
        self._start_from(server)
        if self._step is None:  # making it static rehearses it, on images of no importance
            stage.training(self._student)
            if self._images is not None:
                self._images.draw(0, self._stretch)
            self._step = stage.static(self._distil, "Distillation steps")
            self._start_from(server)

    def _start_from(self, server: Server) -> None:
        self._student.load(server.parameters, server.buffers)
        for tensor in (self._taken, *self._adam.state[self._weights].values()):
            tensor.zero_()

    def _take(self, first: int, count: int) -> None:
        assert self._step is not None
        if self._images is not None:
            self._images.draw(first, count)
        self._stage.training(self._student)
        with self._stage.chance(first):
            for _ in range(count):
                self._step()

    def _distil(self) -> None:
        """One step: the student's logits towards the mean of its teachers'."""
        images = self._noise() if self._images is None else self._images.next()[0]
        taught = torch.stack(self._stage.all_logits(self._teachers, images)).mean(0).log_softmax(1)
        own = self._stage.logits(self._student, images).log_softmax(1)
        self._student.differentiate(kl_div(own, taught, reduction="batchmean", log_target=True))
        nn.utils.clip_grad_norm_([self._weights], self._settings.clip, foreach=False)
        progress = self._taken / self._settings.steps
        self._rate.copy_(self._settings.lr * (1 + (math.pi * progress).cos()) / 2)
        self._taken.add_(1)
        self._adam.step()
        self._student.refresh()

    def _noise(self) -> Tensor:
        """Scaled to [−1, 1] by the batch's extremes."""
        noise = self._stage.noise(self._settings.batch)
        return 2 * (noise - noise.min()) / (noise.max() - noise.min()) - 1

    def _copy(self) -> tuple[Tensor, Tensor]:
        return self._student.parameters.clone(), self._student.buffers.clone()
