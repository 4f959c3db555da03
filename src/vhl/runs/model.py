"""The model that a run made."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from vhl.errors import VHLError
from vhl.models.files import cut_head, head_names, read_tensors
from vhl.models.vectors import Layout
from vhl.runs.checkpoint import read_server
from vhl.runs.classifier import Signature
from vhl.runs.folder import RunFolder


def trained_model(run: RunFolder, which: str | None = None) -> tuple[dict[str, Tensor], Signature]:
    """A run's model without its virtual outputs.

    ``which`` is ``best`` (by validation), ``last``, or a kept round's number; unset is ``best`` where there
    is one, else ``last``. The best on test data is not on offer: that would be choosing on test data.
    """
    experiment, data = run.experiment(), run.data()
    size = (int(data["size"][0]), int(data["size"][1]))

    def build(outputs: int) -> nn.Module:
        with torch.device("meta"):
            return experiment.model.build(outputs, data["channels"], size)

    tensors = saved_tensors(run, which, Layout(build(data["outputs"])))
    cut = cut_head(tensors, head_names(build), build, len(data["classes"]))
    signature = Signature(
        model=experiment.model.model_dump(mode="json", exclude_none=True),
        classes=tuple(data["classes"]),
        channels=data["channels"],
        size=size,
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
    )
    return cut, signature


def saved_tensors(run: RunFolder, which: str | None, layout: Layout) -> dict[str, Tensor]:
    """A run's model with all its outputs; ``which`` as for :func:`trained_model`."""
    manifest = run.manifest()
    if manifest is None:
        raise VHLError(f"{run.path} has no checkpoint yet; `vhl run --resume` continues it.")
    best = manifest["best"]
    if which == "best" and best is None:
        raise VHLError(f"{run.path} has no best model: set data.validation to choose one, or take last.")
    if best is not None and which in (None, "best"):
        return read_tensors(run.path / "models" / best["file"])[0]
    if which in (None, "last"):
        server = read_server(run.path / "state", manifest)
        return layout.unpack(server.final, server.buffers)
    return read_tensors(_kept(run, str(which)))[0]


def _kept(run: RunFolder, which: str) -> Path:
    file = run.path / "models" / f"round-{int(which):06d}.safetensors" if which.isdecimal() else None
    if file is None or not file.is_file():
        best = ["best"] if (run.manifest() or {}).get("best") else []
        has = ", ".join(map(str, [*best, "last", *kept_rounds(run)]))
        raise VHLError(f"{run.path} keeps no model {which!r}; it has {has}.")
    return file


def kept_rounds(run: RunFolder) -> list[int]:
    """Rounds whose models were kept, as ``keep_at`` says."""
    files = (run.path / "models").glob("round-*.safetensors")
    return sorted(int(file.stem.removeprefix("round-")) for file in files)
