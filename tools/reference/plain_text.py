"""Docstrings and comments, which are plain text with `code` in backticks, as reStructuredText."""

import re

CODE = re.compile(r"``(.+?)``|`([^`\n]+)`")
SPECIAL = re.compile(r"([\\*|_`])")
PUBLIC = re.compile(r"(?<![\w.`])heddle(?:\.\w+)+")
BULLET = re.compile(r"( *)(?:[-*]|\d+\.) ")


def _escaped(text, names):
    """Words without markup; full names of the package lead to their pages."""
    parts, end = [], 0
    for match in PUBLIC.finditer(text):
        if match[0] in names:
            parts += [SPECIAL.sub(r"\\\1", text[end:match.start()]), f"\\ :py:obj:`{match[0]}`\\ "]
            end = match.end()
    return "".join(parts) + SPECIAL.sub(r"\\\1", text[end:])


def inline(text, names=()):
    """One paragraph: code becomes literal, everything else stands for itself."""
    parts, end = [], 0
    for match in CODE.finditer(text):
        code = match[1] or match[2]
        full = next((name for name in (code, f"heddle.{code}") if name in names), None)
        parts += [_escaped(text[end:match.start()], names),
                  f"\\ :py:obj:`{code} <{full}>`\\ " if full else f"\\ ``{code}``\\ "]
        end = match.end()
    return "".join(parts) + _escaped(text[end:], names)


def _blocks(lines):
    """("doctest", lines), ("literal", lines) or ("text", lines), each up to the next empty line or bullet."""
    kind, block = None, []
    for line in [*lines, ""]:
        if kind == "doctest" and line.strip():
            block.append(line)
            continue
        bullet = BULLET.match(line)
        if block and (not line.strip() or bullet or line.startswith(">>>")):
            yield kind, block
            kind, block = None, []
        if not line.strip():
            continue
        if not block:
            kind = "doctest" if line.startswith(">>>") else "item" if bullet else (
                "literal" if line.startswith("  ") else "text")
        block.append(line)


def rst(text, names=(), indent=""):
    """`text` as reStructuredText whose lines begin with `indent`. `names`: the public names that have a page."""
    out, before = [], None
    for kind, block in _blocks(text.split("\n")):
        if kind == "doctest":
            lines = block
        elif kind == "literal":
            lines = ([".. code-block:: text", ""] if before != "literal" else []) + ["   " + line for line in block]
        elif kind == "item":
            depth = len(BULLET.match(block[0])[1])
            body = " ".join([block[0].strip().split(" ", 1)[1], *(line.strip() for line in block[1:])])
            lines = [" " * depth + "- " + inline(body, names)]
        else:
            lines = [inline(" ".join(line.strip() for line in block), names)]
        out += [*(indent + line for line in lines), ""]
        before = kind
    return "\n".join(out)
