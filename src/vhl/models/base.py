"""What a model is: a description that builds a network with feature taps."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import ConfigDict, Field, model_validator

from vhl.config.component import Component

if TYPE_CHECKING:
    from torch import nn

ALIASES = {"shallow": "stage2", "middle": "stage3", "deep": "stage4"}
"""The paper's names of the feature taps."""


class Model(Component):
    """Builds a network whose ``forward(images)`` returns ``(features by tap, logits)``.

    ``images`` is (N, C, H, W) floating point. The tap ``last`` is the pooled vector before the classifier;
    other taps may be maps of any shape. A new model is one file with a class that overrides :meth:`build`.
    """

    room: ClassVar[str] = "models"

    start: str | None = Field(
        None,
        description="safetensors file to start from, as of `vhl export`; a head of another width is fresh",
    )

    @classmethod
    def adopt(cls, name: str, found: Any) -> type[Self] | None:
        """A user may also name a function, or a network's class, that is called to build the network."""
        if not callable(found) or (isinstance(found, type) and issubclass(found, Component)):
            return super().adopt(name, found)
        made = _factory_model(name, found)
        return made if issubclass(made, cls) else None

    def build(self, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
        """A freshly initialised network for images of ``channels`` × ``size``: body first, classifier last.

        Initialising in that order lets runs with and without virtual outputs share the body's weights.
        """
        raise NotImplementedError


@cache
def _factory_model(name: str, factory: Callable[..., nn.Module]) -> type[Model]:
    """A model around a user's own ``build(classes, channels, size, **options)``."""

    class FactoryModel(Model):
        model_config = ConfigDict(extra="allow", frozen=True)

        @model_validator(mode="after")
        def _factory_takes_the_options(self) -> FactoryModel:
            try:
                inspect.signature(factory).bind(**self._arguments(1, 1, (1, 1)))
            except TypeError as error:
                raise ValueError(
                    f"{error}; it is called with classes, channels, size and the options"
                ) from None
            return self

        def _arguments(self, classes: int, channels: int, size: tuple[int, int]) -> dict[str, Any]:
            return {**(self.model_extra or {}), "classes": classes, "channels": channels, "size": size}

        def build(self, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
            return factory(**self._arguments(classes, channels, size))

    return FactoryModel
