"""What others made and we ship is named, as it is."""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_notice_names_the_library_that_is_bundled() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    bundled = ROOT / "src" / "vhl" / "report" / "static" / "echarts.min.js"
    assert hashlib.sha256(bundled.read_bytes()).hexdigest() in notice
    assert str(bundled.relative_to(ROOT)) in notice
    for text in ("licenses/d3.txt", "licenses/zrender.txt"):
        assert text in notice and "Redistribution" in (ROOT / text).read_text(encoding="utf-8")
