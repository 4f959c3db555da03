"""What the import contract of `make lint` cannot say: what begins with an underscore is its room's own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import vhl

SOURCE = Path(vhl.__file__).parent
FILES = {str(file.relative_to(SOURCE)): file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py")}


def private_imports(room: str, text: str) -> set[str]:
    """What a file in a room imports of others that is theirs alone."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    others = {name for name in found if name.startswith("vhl.") and name.split(".")[1] != room}
    return {name for name in others if "._" in name.replace(".__", ".")}


@pytest.mark.parametrize("file", sorted(FILES))
def test_nothing_private_is_imported_from_another_room(file: str) -> None:
    assert private_imports(file.split("/")[0], FILES[file]) == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from vhl.models._network import fuse", {"vhl.models._network.fuse"}),
        ("def late():\n    import vhl.models._network", {"vhl.models._network"}),
        ("from vhl.models import _network", {"vhl.models._network"}),
        ("from vhl.rounds._own import helper", set()),
        ("from vhl.version import __version__\nimport vhl.models.cnn\nimport torch._C", set()),
    ],
)
def test_private_imports_are_found(text: str, found: set[str]) -> None:
    assert private_imports("rounds", text) == found
