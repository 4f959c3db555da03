"""Writing files so that a kill, a full disk or a power cut never leaves half of one."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vhl.errors import VHLError

if TYPE_CHECKING:
    from torch import Tensor


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file or nothing: to a neighbour first, then renamed into place."""
    neighbour = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with neighbour.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        neighbour.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        with contextlib.suppress(OSError):
            neighbour.unlink(missing_ok=True)


def cannot_write(path: Path, error: OSError) -> VHLError:
    reason = error.strerror or str(error)
    return VHLError(
        f"{path} cannot be written ({reason}); what was saved before is intact: make room or choose another "
        "place, then try again (a run with --resume)."
    )


def exists(path: str) -> bool:
    """Whether there is such a file or folder; a text too long for a name is none."""
    try:
        return Path(path).exists()
    except OSError:
        return False


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    from safetensors.torch import save  # late: what writes no tensors need not wait for PyTorch

    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_bytes(path, save(ready, dict(metadata) if metadata else None))


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise VHLError(f"{path.parent} is no complete run folder: {path.name} is missing.") from None
    except (OSError, ValueError) as error:
        raise VHLError(f"{path} cannot be read ({error}).") from None
