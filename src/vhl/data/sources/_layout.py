"""What the folders of a user's own images mean: parts, sites and classes, told by depth and name."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from vhl.data.decode import SUFFIXES
from vhl.errors import VHLError

_PARTS = dict.fromkeys(("train", "training"), "train")
_PARTS |= dict.fromkeys(("test", "testing", "val", "valid", "validation"), "test")
_DEEPEST = 3
_LAYOUTS = "CLASS/image, SITE/CLASS/image, or either with train and test folders"


@dataclass(frozen=True)
class Picture:
    """An image file (its path below the root) and what its folders say of it."""

    file: str
    label: str
    site: str = ""
    part: str = "train"


def survey(root: Path) -> list[Picture]:
    """Every image below ``root`` with its class, site and part, in the order of their paths."""
    if not root.is_dir():
        state = "is not a folder" if root.exists() else "does not exist"
        raise VHLError(f"{root} {state}; give the path of a folder, whole or relative to the current one.")
    try:
        paths = sorted(_walk(root, ()))
    except OSError as error:
        raise VHLError(
            f"{error.filename} cannot be read ({error.strerror}); check its permissions."
        ) from error
    images = [path for path in paths if path[-1]]
    if not images:
        raise VHLError(f"{root} holds no images; it needs {_LAYOUTS}.")
    roles = _roles(root, images)
    pictures = [_describe(path, roles) for path in images]
    bare = {path[: len(roles)] for path in paths if not path[-1] and len(path) > len(roles)}
    empty = [_describe((*path, ""), roles) for path in sorted(bare)]
    _check(root, pictures, empty)
    return pictures


def passed_over(root: Path) -> dict[str, int]:
    """How many files below ``root`` are no images to us, by their suffix; hidden ones do not count."""
    files = (path for path in root.rglob("*") if path.is_file())
    seen = (file for file in files if not any(map(_is_hidden, file.relative_to(root).parts)))
    return dict(sorted(Counter(f.suffix.lower() for f in seen if f.suffix.lower() not in SUFFIXES).items()))


def empty_folders(root: Path, pictures: Iterable[Picture]) -> list[str]:
    """Folders above those of classes with no image anywhere below, as of a site that was not copied."""
    classes = {PurePath(name) for name in {picture.file.rpartition("/")[0] for picture in pictures}}
    above = {folder for name in classes for folder in name.parents}
    with_classes = {name.parent for name in classes}  # a site may lack one of them
    inside = (entry for folder in above - with_classes for entry in (root / folder).iterdir())
    names = [entry.relative_to(root) for entry in inside if entry.is_dir() and not _is_hidden(entry.name)]
    return sorted(name.as_posix() for name in names if name not in above)


def is_for_tests(folder: str) -> bool:
    """Whether a folder's name says that its images are to be tested on."""
    return _PARTS.get(PurePath(folder).name.lower()) == "test"


def _is_hidden(name: str) -> bool:
    """Whether to pass a file or folder over, as .DS_Store and __MACOSX."""
    return name.startswith((".", "__"))


def _walk(folder: Path, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every image as its folders' names and its own; an empty folder as its names and "" for the image."""
    inside = [entry for entry in folder.iterdir() if not _is_hidden(entry.name)]
    folders = [entry for entry in inside if entry.is_dir()]
    images = [entry for entry in inside if entry.suffix.lower() in SUFFIXES and entry.is_file()]
    for image in images:
        yield (*above, image.name)
    if len(above) <= _DEEPEST:  # one deeper than any layout, to say so; no further, for links may be circular
        for deeper in folders:
            yield from _walk(deeper, (*above, deeper.name))
    if not images and not folders:
        yield (*above, "")


def _roles(root: Path, images: list[tuple[str, ...]]) -> tuple[str, ...]:
    """What each level of folders says of an image: its part, its site or its label."""
    shortest, longest = min(images, key=len), max(images, key=len)
    if len(shortest) != len(longest):
        raise VHLError(
            f"{root} has images at different depths ({'/'.join(shortest)} and {'/'.join(longest)}); "
            f"it needs {_LAYOUTS}."
        )
    depth = len(shortest) - 1
    names = [{path[level] for path in images} for level in range(depth)]
    roles = _by_name(root, names)
    if not roles or _are_parts(root, names[-1], strict=False):
        raise VHLError(f"{root / '/'.join(shortest)} is not in a class folder as expected; use {_LAYOUTS}.")
    return roles


def _by_name(root: Path, names: list[set[str]]) -> tuple[str, ...]:
    """The roles of levels with these folder names; none where they fit no layout."""
    if len(names) == 1:
        return ("label",)
    if len(names) == 2:
        return ("part", "label") if _are_parts(root, names[0]) else ("site", "label")
    if len(names) == _DEEPEST and _are_parts(root, names[0]):
        return ("part", "site", "label")
    if len(names) == _DEEPEST and _are_parts(root, names[1]):
        return ("site", "part", "label")
    return ()


def _are_parts(root: Path, names: set[str], strict: bool = True) -> bool:
    """Whether a level's folders are train and test; ``strict`` refuses those that are so in part."""
    known = {name for name in names if name.lower() in _PARTS}
    if not strict or not known:
        return known == names
    if known != names:
        odd = min(names - known)
        raise VHLError(
            f"{root} mixes {_listed(known)} folders with others such as {odd}; move one kind away."
        )
    for part in ("train", "test"):
        twins = {name for name in known if _PARTS[name.lower()] == part}
        if len(twins) > 1:
            raise VHLError(f"{root} has {_listed(twins)} folders, which mean the same; keep one of them.")
    if "train" not in {_PARTS[name.lower()] for name in known}:
        raise VHLError(f"{root} has a {_listed(known)} folder but no train folder; add one.")
    return True


def _describe(path: tuple[str, ...], roles: tuple[str, ...]) -> Picture:
    # Names in one form: macOS writes an accented letter as two characters, and others as one.
    said = {role: unicodedata.normalize("NFC", name) for role, name in zip(roles, path, strict=False)}
    part = _PARTS.get(said.get("part", "train").lower(), "train")
    return Picture("/".join(path), said["label"], said.get("site", ""), part)


def _check(root: Path, pictures: list[Picture], empty: list[Picture]) -> None:
    """Refuse classes without images, and train and test folders with different classes."""
    filled = {(picture.part, picture.label) for picture in pictures}
    for folder in empty:  # a site may lack a class, but a class needs images somewhere
        if (folder.part, folder.label) not in filled:
            raise VHLError(f"The class folder {root / folder.file} holds no images; fill it or remove it.")
    classes = {part: {label for p, label in filled if p == part} for part in ("train", "test")}
    if classes["test"] and classes["train"] != classes["test"]:
        odd = min(classes["train"] ^ classes["test"])
        has, lacks = ("train", "test") if odd in classes["train"] else ("test", "train")
        raise VHLError(f"{root} has class {odd} in {has} but not in {lacks}; both need the same classes.")


def _listed(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))
