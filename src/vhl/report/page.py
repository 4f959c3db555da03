"""One HTML file that holds everything it shows: it opens from disk and asks for nothing."""

from __future__ import annotations

import html
import re
from importlib import resources
from typing import Any

from vhl.report.figure import as_json

_SCRIPTS = ("page.js", "charts.js", "painter.js", "sections.js", "index.js", "start.js")


def page(content: dict[str, Any]) -> str:
    parts = {
        "title": html.escape(content["title"]),
        "css": _static("report.css"),
        "data": _json(content),
        "echarts": _static("echarts.min.js"),
        "js": "\n".join(_static(name) for name in _SCRIPTS),
    }
    # In one pass, so that nothing in one part is taken for the place of another.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _static("report.html"))


def _json(content: dict[str, Any]) -> str:
    """Without a letter that could end the script it stands in, whatever a run or a class is called."""
    return as_json(content).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _static(name: str) -> str:
    return resources.files("vhl.report").joinpath("static", name).read_text(encoding="utf-8")
