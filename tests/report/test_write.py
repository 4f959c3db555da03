from __future__ import annotations

import base64
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vhl.data.sources.folder import Folder
from vhl.report.figure import as_json
from vhl.report.page import page
from vhl.report.write import write_report
from vhl.runs.folder import RunFolder

Write = Callable[..., RunFolder]


def data_of(html: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    data: dict[str, Any] = json.loads(found)
    return data


def test_what_is_returned_is_what_is_on_the_page(compared: list[RunFolder], tmp_path: Path) -> None:
    file = tmp_path / "new" / "folders" / "report.html"
    found = write_report(compared, file, target=0.25, title="Mine")
    html = file.read_text(encoding="utf-8")
    assert data_of(html) == json.loads(as_json(found)) and found["groups"][0]["target"] == 0.25
    assert "<title>Mine</title>" in html
    assert list(file.parent.iterdir()) == [file]


def test_the_page_may_ask_for_nothing_and_names_no_place(compared: list[RunFolder], tmp_path: Path) -> None:
    write_report(compared, tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in html
    for private in (compared[0].path.parent, tmp_path, Path.home(), Path.cwd()):
        assert str(private) not in html


def test_a_page_is_written_whole_or_not_at_all(
    compared: list[RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complains: Any
) -> None:
    file = tmp_path / "report.html"
    write_report(compared[:1], file)
    before = file.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with complains(file, "No space left"):
        write_report(compared, file)
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]


def test_nothing_is_written_where_there_is_nothing_to_show(write: Write, tmp_path: Path) -> None:
    run = write(tmp_path / "run", [])
    with pytest.raises(Exception, match="evaluated round"):
        write_report([run], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    "hostile", ["</script><b>", "{{data}} {{js}}", "<!--<script>", "a\"b'c&d", "\u2028é🦊"]
)
def test_no_word_breaks_out_of_its_place(hostile: str) -> None:
    html = page({"title": hostile, "runs": [hostile]})
    assert data_of(html) == {"title": hostile, "runs": [hostile]}
    plain = page({"title": "x", "runs": ["x"]})
    for tag in ("<script", "</script", "<b>", "<!--", "<style"):
        assert html.count(tag) == plain.count(tag)


# --- natural images ------------------------------------------------------------------------------------


def pictures(folder: Path, level: int) -> Path:
    """Grey images of this brightness in two classes."""
    for name in ("bright", "dim"):
        (folder / name).mkdir(parents=True)
        for number in range(5):
            Image.new("L", (8, 8), level).save(folder / name / f"{number}.png")
    return folder


def brightness(picture: str) -> int:
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture.partition(",")[2]))))
    return int(pixels[0, 0, 0])


@pytest.fixture
def two_problems(write: Write, tmp_path: Path) -> list[RunFolder]:
    """Runs of the same name on images of brightness 90 and 180; the second has two seeds."""
    runs = []
    for place, level, seed in (("a", 90, 0), ("b", 180, 0), ("c", 180, 1)):
        own = tmp_path / str(level)
        path = own if own.exists() else pictures(own, level)
        data = {"name": "folder", "path": str(path), "size": 8, "test_share": 0.2}
        problem = {"classes": ["bright", "dim"], "counts": [[4, 4], [level, 0]]}
        runs.append(write(tmp_path / place / "run", [0.5], problem, data=data, seeds={"batches": seed}))
    return runs


def test_natural_images_only_where_asked_for(two_problems: list[RunFolder], tmp_path: Path) -> None:
    found = write_report(two_problems, tmp_path / "report.html")
    assert "image/png" not in as_json(found)


def test_each_problem_has_its_own_natural_images(
    two_problems: list[RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even of runs that are called the same; a dataset is read once."""
    reads = []
    read = Folder.read
    monkeypatch.setattr(Folder, "read", lambda *given: reads.append(1) or read(*given))
    found = write_report(two_problems, tmp_path / "report.html", natural_from=tmp_path)
    assert len(reads) == 2
    natural = {figure.name: figure for figure in found["figures"] if figure.name.startswith("natural")}
    assert list(natural) == ["natural-1", "natural-2"]
    assert [brightness(figure.panels[0].address) for figure in natural.values()] == [90, 180]


def test_an_index_shows_no_natural_images(write: Write, tmp_path: Path) -> None:
    runs = [write(tmp_path / f"run{i}", [0.5], training={"lr": 0.01 * (i + 1)}) for i in range(21)]
    found = write_report(runs, tmp_path / "report.html", natural_from=tmp_path)
    assert not found["whole"] and "image/png" not in as_json(found)
