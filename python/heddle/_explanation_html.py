"""An explanation as a table, for notebooks."""

from __future__ import annotations

import html
from typing import Any

STYLE = (
    "<style>.heddle{border-collapse:collapse;font:13px sans-serif}.heddle td{padding:2px 10px;vertical-align:top;"
    "border:0;text-align:left!important}.heddle tr.stage td{font-weight:600;padding-top:8px;"
    "border-bottom:1px solid #bbb}.heddle code{white-space:pre-wrap;font:12px monospace}</style>")


def table(stages: dict[str, Any]) -> str:
    """A heading for each stage, and a row for each of its entries."""
    rows = []
    for stage, content in stages.items():
        rows.append(f'<tr class="stage"><td colspan="2">{html.escape(stage)}</td></tr>')
        entries = content.items() if isinstance(content, dict) else [("", content)]
        rows += [f"<tr><td>{html.escape(str(name))}</td><td>{cell(value)}</td></tr>" for name, value in entries]
    return f'{STYLE}<table class="heddle">{"".join(rows)}</table>'


def cell(value: Any) -> str:
    if isinstance(value, dict):
        return "<br>".join(f"{html.escape(str(name))}: {cell(one)}" for name, one in value.items()) or "none"
    if isinstance(value, list):
        return "<br>".join(cell(one) for one in value) or "none"
    return f"<code>{html.escape(str(value))}</code>"
