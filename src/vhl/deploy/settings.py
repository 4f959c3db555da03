"""What a run of a deployment can be set to, and what a node can."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from vhl.config.registry import explain
from vhl.data.sources.base import data_directory
from vhl.deploy.terms import check_name
from vhl.errors import VHLError


class _Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        alias_generator=lambda name: name.replace("_", "-"),
        coerce_numbers_to_str=True,
    )
    place: ClassVar[str]
    """Where a user changes them."""

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """From Flower's configuration, which may hold other settings too."""
        try:
            return cls(**config)
        except ValidationError as error:
            sentence = str(explain(error, "", cls)).removesuffix(".")
            raise VHLError(f"{sentence}; change it in {cls.place}.") from None


class RunSettings(_Settings):
    """Of a run; a field is written with '-' in place of '_', and `--run-config` changes one for once."""

    place = "app/pyproject.toml or --run-config"

    sites: int = Field(2, ge=1, description="sites to wait for at the start")
    test: str = Field(
        "",
        description="'' sums the sites' held-out images; or 'experiment', 'folder:PATH', 'npz:PATH' at the "
        "server",
    )
    classes: str = Field(
        "", description="names of the classes, 'a, b, c'; '' lets the sites' folders say them"
    )
    runs_dir: str = Field("runs", description="where the run folder goes, on the server")
    resume: bool = Field(False, description="continue a run that was cut off, or give it more rounds")
    round_timeout: float = Field(
        600, ge=0, description="seconds until a round goes on without the sites that have not answered"
    )
    wait: float = Field(600, ge=0, description="seconds to wait for the sites to come")
    min_sites: int = Field(
        0,
        ge=0,
        description="sites without which a round does not count; 0 is half of the round's, at least 1",
    )
    data_dir: str = Field(
        "", description="where datasets lie, on the server; '' is $VHL_DATA, else the user's cache"
    )

    @property
    def class_names(self) -> tuple[str, ...]:
        """In the Unicode form of the names that the sites' folders give."""
        names = [name.strip() for name in unicodedata.normalize("NFC", self.classes).split(",")]
        return tuple(name for name in names if name)

    def needed(self, asked: int) -> int:
        """How many of the sites that were asked must answer."""
        return min(asked, self.min_sites) or max(1, asked // 2)


class NodeSettings(_Settings):
    """Of a node, the process at a site that waits for the server's messages."""

    place = "the node's configuration"

    name: Annotated[str, AfterValidator(check_name)] = Field(description="the site's name")
    data: str = Field(
        min_length=1,
        description="folder:PATH, npz:PATH, or for trials part:I, part I of the experiment's own data",
    )
    store: Annotated[Path, BeforeValidator(lambda given: data_directory(given).expanduser())] = Field(
        default_factory=data_directory, description="where the client's state and the site's caches lie"
    )
    device: str = Field("auto", description="auto, cpu or cuda")
    virtual: Literal["make", "receive"] = Field(
        "make", description="whether the site makes the virtual set itself or waits for the server's"
    )

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """In Flower's simulation runtime a node is known by a number: that part of the experiment's data."""
        if "partition-id" in config:
            part = int(config["partition-id"])
            config = {"name": f"part-{part:06d}", "data": f"part:{part}", **config}
        return super().read(config)
