"""The arithmetic of a run: precision, and whether every bit must come out the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from vhl.config.sections import Engine
from vhl.config.sections import Precision as Name
from vhl.errors import VHLError


@dataclass(frozen=True)
class Precision:
    """How numbers are computed on a device."""

    device: torch.device
    name: Name
    deterministic: bool = False

    @classmethod
    def choose(cls, engine: Engine, device: torch.device) -> Precision:
        """What the settings ask for, or what suits the device."""
        gpu = device.type == "cuda"
        if engine.precision == "tf32" and not gpu:
            raise VHLError("engine.precision = tf32 is a GPU's; on a CPU choose fp32 or bf16.")
        automatic: Name = "bf16" if gpu and torch.cuda.is_bf16_supported(False) else "fp32"
        if engine.deterministic and gpu:
            # cuBLAS reads this when it starts: without it some products are summed in any order.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        return cls(device, engine.precision or automatic, engine.deterministic)

    @property
    def dtype(self) -> torch.dtype:
        """Of parameters, gradients and all that is averaged."""
        return torch.float64 if self.name == "fp64" else torch.float32

    @property
    def compute_dtype(self) -> torch.dtype:
        """Of images and of what convolutions work on."""
        return torch.bfloat16 if self.name == "bf16" else self.dtype

    def autocast(self) -> AbstractContextManager[object]:
        """For forward passes; weights are cast anew each time, because a captured step must do so."""
        if self.name != "bf16":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Set PyTorch's switches, and set them back: other code in the process has its own wishes."""
        if self.device.type != "cuda":
            yield
            return
        matmul = torch.backends.cuda.matmul
        products, strict = matmul.fp32_precision, torch.are_deterministic_algorithms_enabled()
        warn = torch.is_deterministic_algorithms_warn_only_enabled()
        wanted = "tf32" if self.name == "tf32" else "ieee"
        flags = torch.backends.cudnn.flags(
            enabled=True,
            benchmark=not self.deterministic,
            deterministic=self.deterministic,
            allow_tf32=self.name == "tf32",
        )
        with flags:
            try:
                matmul.fp32_precision = wanted
                if self.deterministic:
                    torch.use_deterministic_algorithms(True)
                yield
            finally:
                matmul.fp32_precision = products
                torch.use_deterministic_algorithms(strict, warn_only=warn)


def choose_device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise VHLError(f"device = {wanted!r} cannot be trained on; choose auto, cpu or cuda.")
    gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise VHLError(
            f"device = {wanted!r}, but PyTorch sees {gpus} GPUs; choose device=cpu or install a CUDA build."
        )
    return device
