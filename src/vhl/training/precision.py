"""The arithmetic of a run: precision, and whether every bit must come out the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from vhl.config.sections import Engine, Precision
from vhl.errors import VHLError


@dataclass(frozen=True)
class Numerics:
    """How numbers are computed on a device."""

    device: torch.device
    precision: Precision
    deterministic: bool = False

    @classmethod
    def choose(cls, engine: Engine, device: torch.device) -> Numerics:
        """What the settings ask for, or what suits the device."""
        gpu = device.type == "cuda"
        if engine.precision == "tf32" and not gpu:
            raise VHLError("engine.precision = tf32 is a GPU's; on a CPU choose fp32 or bf16.")
        automatic: Precision = "bf16" if gpu and torch.cuda.is_bf16_supported(False) else "fp32"
        if engine.deterministic and gpu:
            # cuBLAS reads this when it starts: without it some products are summed in any order.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        return cls(device, engine.precision or automatic, engine.deterministic)

    @property
    def dtype(self) -> torch.dtype:
        """Of parameters, gradients and all that is averaged."""
        return torch.float64 if self.precision == "fp64" else torch.float32

    @property
    def compute_dtype(self) -> torch.dtype:
        """Of images and of what convolutions work on."""
        return torch.bfloat16 if self.precision == "bf16" else self.dtype

    def autocast(self) -> AbstractContextManager[object]:
        """For forward passes; weights are cast anew each time, because a captured step must do so."""
        if self.precision != "bf16":
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
        wanted = "tf32" if self.precision == "tf32" else "ieee"
        flags = torch.backends.cudnn.flags(
            enabled=True,
            benchmark=not self.deterministic,
            deterministic=self.deterministic,
            allow_tf32=self.precision == "tf32",
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
