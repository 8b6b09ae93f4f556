"""An explanation as a table and a picture, for notebooks."""

from __future__ import annotations

import html
from typing import Any

STYLE = (
    "<style>.heddle{border-collapse:collapse;font:13px sans-serif}.heddle td{padding:2px 10px;vertical-align:top;"
    "border:0;text-align:left!important}.heddle tr.stage td{font-weight:600;padding-top:8px;"
    "border-bottom:1px solid #bbb}.heddle code{white-space:pre-wrap;font:12px monospace}"
    ".heddle .picture svg{width:420px;height:auto}</style>")


def table(stages: dict[str, Any], picture: str = "") -> str:
    """A heading for each stage, and a row for each of its entries; below the mask's stage its picture, as SVG."""
    rows = []
    for stage, content in stages.items():
        rows.append(f'<tr class="stage"><td colspan="2">{html.escape(stage)}</td></tr>')
        entries = content.items() if isinstance(content, dict) else [("", content)]
        rows += [f"<tr><td>{html.escape(str(name))}</td><td>{cell(value)}</td></tr>" for name, value in entries]
        if stage == "mask" and picture:
            rows.append(f'<tr><td>blocks</td><td><div class="picture">{picture}</div></td></tr>')
    return f'{STYLE}<table class="heddle">{"".join(rows)}</table>'


def cell(value: Any) -> str:
    if isinstance(value, dict):
        return "<br>".join(f"{html.escape(str(name))}: {cell(one)}" for name, one in value.items()) or "none"
    if isinstance(value, list):
        return "<br>".join(cell(one) for one in value) or "none"
    return f"<code>{html.escape(str(value))}</code>"
