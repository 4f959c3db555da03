"""A network that can be built again and again, anywhere, and what is known of it before any training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from vhl.errors import VHLError
from vhl.models.base import Model
from vhl.models.cost import MultiplyAdds
from vhl.models.files import head_names, load_start
from vhl.models.vectors import Layout


@dataclass(frozen=True)
class Probe:
    """What a fresh network makes of one image."""

    module: nn.Module
    features: Mapping[str, Tensor]
    logits: Tensor
    multiply_adds: int
    """Of one image, forward."""

    @property
    def lengths(self) -> dict[str, int]:
        """How many numbers each tap has."""
        return {tap: feature[0].numel() for tap, feature in self.features.items()}


@dataclass(frozen=True)
class Blueprint:
    """All that decides a network; what it builds is the same every time."""

    model: Model
    outputs: int
    channels: int
    size: tuple[int, int]
    seed: int

    def build(self, outputs: int | None = None) -> nn.Module:
        """The initial network; its weights depend on the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)  # the CPU's alone: a GPU's may be the user's
            return self.model.build(outputs or self.outputs, self.channels, self.size)

    def start(self) -> nn.Module:
        """The network that training starts from: the initial one, or what ``model.start`` names."""
        module = self.build()
        if self.model.start is not None:
            load_start(module, Path(self.model.start), self.head)
        return module

    def probe(self, outputs: int | None = None, image: Tensor | None = None) -> Probe:
        """Pass one image, black unless given, through a network with so many outputs."""
        module = self.build(outputs).eval()
        pixels = torch.zeros(1, self.channels, *self.size) if image is None else image
        with torch.no_grad(), MultiplyAdds(module) as counter:
            result = module(pixels)
        features, logits = _checked(result, outputs or self.outputs, self.model.name)
        return Probe(module, features, logits, max(1, counter.total))

    @cached_property
    def known(self) -> Probe:
        return self.probe()

    @cached_property
    def head(self) -> tuple[str, ...]:
        """Names of the classifier's tensors."""
        with torch.device("meta"):
            return head_names(self.build)

    @cached_property
    def layout(self) -> Layout:
        """Where tensors lie in a model's vectors."""
        return Layout(self.known.module)

    def linear_head(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The classifier's weight and bias among a model's tensors."""
        parts = {tensors[name].dim(): tensors[name] for name in self.head}
        if set(parts) != {1, 2} or len(self.head) != 2:
            raise VHLError(
                f"A linear classifier with a bias is needed here; {self.model.name} has "
                f"{', '.join(self.head)}."
            )
        return parts[2], parts[1]

    def check_linear(self, whose: str) -> None:
        """Refuse a network whose logits are not a linear classifier's of the features ``last``."""
        image = torch.linspace(-1, 1, self.channels * self.size[0] * self.size[1])
        probe = self.probe(image=image.view(1, self.channels, *self.size))
        if not is_linear(probe.features["last"], probe.logits, self.linear_head(probe.module.state_dict())):
            raise VHLError(
                f"{whose} needs a linear classifier on the features 'last'; that of {self.model.name} is "
                "none."
            )

    def identity(self, outputs: int | None = None) -> str:
        """What :meth:`build` builds but for its weights, in words that are equal for equal networks."""
        words = [self.model.model_dump_json(), str((*self.size, self.channels)), str(outputs or self.outputs)]
        if self._has_other_tensors:
            words.append(f"seed {self.seed}")
        return " ".join(words)

    @cached_property
    def _has_other_tensors(self) -> bool:
        """Whether networks of two seeds may differ beyond what is loaded into them, as in whole numbers."""
        module = self.build()
        layout = Layout(module)
        loaded = {segment.name for segment in (*layout.parameters, *layout.buffers)}
        return any(name not in loaded for name, _ in module.named_buffers())


def is_linear(features: Tensor, logits: Tensor, head: tuple[Tensor, Tensor]) -> bool:
    """Whether logits are a linear classifier's of the features, but for rounding."""
    if features.dim() != 2 or features.shape[1] != head[0].shape[1] or len(head[1]) != logits.shape[1]:
        return False
    expected = features @ head[0].T + head[1]
    return torch.allclose(logits, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def _checked(result: object, outputs: int, model: str) -> tuple[dict[str, Tensor], Tensor]:
    match result:
        case (dict() as features, Tensor() as logits) if "last" in features and logits.shape == (1, outputs):
            return features, logits
    raise VHLError(
        f"model {model}: forward must return (features by tap, logits) with a tap 'last' and {outputs} "
        "logits; build(classes, channels, size) decides how many."
    )
