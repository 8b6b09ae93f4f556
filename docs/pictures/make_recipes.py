#!/usr/bin/env python3
"""Draws the pictures of docs/guide/recipes.md, from the page's own Python blocks.

    PYTHONPATH=build/release/python docs/pictures/make_recipes.py

python/tests/test_recipes.py compares the files with what this draws.
"""

import re
from pathlib import Path

import numpy as np

import heddle

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guide" / "recipes.md"
FOLDER = Path(__file__).resolve().parent / "recipes"
SECTION = re.compile(r"^### .*?(?=^##|\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOKENS, CELL, GAP = 32, 6, 12
HEADS = {"windows_by_head": 3, "alibi": 2}
SCORES = {"alibi", "relative_bias", "t5_bias", "swin_bias", "graph_bias", "softcap"}
WEIGHTS = {"dropout"}
LEAST, MOST, LEVELS = (0xF1, 0xF0, 0xEC), (0x2F, 0x6B, 0xA6), 12  # the colours of empty and of full blocks


def recipes():
    """The sections: name of the variable and the picture, Python's code, and the expression as text."""
    for section in SECTION.findall(PAGE.read_text(encoding="utf-8")):
        blocks = dict(BLOCK.findall(section))
        name = re.search(r"recipes/(\w+)\.svg", section)[1]
        yield name, blocks["python"], blocks["text"].strip()


def made():
    """What the page's Python blocks make, by name."""
    names = {}
    program = "\n".join(code for language, code in BLOCK.findall(PAGE.read_text(encoding="utf-8"))
                        if language == "python" and "print(" not in code)
    exec(compile(program, str(PAGE), "exec"), names)
    return names


def values(name, mod, captures=None):
    """[heads, queries, keys]: where the mask is true, the score, or the weight. It is computed by attention itself."""
    heads = HEADS.get(name, 1)
    q, k = np.zeros((2, 1, heads, TOKENS, 2), np.float32)
    options = {"normalizer": "none", "scale": 0.5, "captures": captures}
    if name in SCORES:
        if name == "softcap":  # scores of -0.5 times the distance above, and 0.5 below the diagonal
            place = np.arange(TOKENS, dtype=np.float32)
            q[..., 0], q[..., 1], k[..., 0], k[..., 1] = 1, place, -place, 1
        options["score_mod"] = mod
    else:
        options["score_mod"] = "1.0"
        options["weight_mod" if name in WEIGHTS else "mask_mod"] = mod
    identity = np.broadcast_to(np.eye(TOKENS, dtype=np.float32), (1, heads, TOKENS, TOKENS))
    return heddle.attention(q, k, identity, **options)[0]


def colour(level):
    return "#" + "".join(f"{round(a + (b - a) * level / (LEVELS - 1)):02x}" for a, b in zip(LEAST, MOST))


def svg(title, heads):
    """Panels of cells, one for each head; the darker the larger."""
    low, high = float(heads.min()), float(heads.max())
    levels = np.round((heads - low) / max(high - low, 1e-9) * (LEVELS - 1)).astype(int)
    side = TOKENS * CELL
    width = len(heads) * (side + GAP) - GAP
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{side}" viewBox="0 0 {width} {side}" '
             f'role="img"><title>{title}</title>']
    for head, panel in enumerate(levels):
        left = head * (side + GAP)
        parts.append(f'<rect x="{left}" width="{side}" height="{side}" fill="{colour(0)}"/>')
        for level in range(1, LEVELS):
            path = "".join(f"M{left + x * CELL} {y * CELL}h{n * CELL - 1}v{CELL - 1}h-{n * CELL - 1}z"
                           for y, row in enumerate(panel) for x, n in runs(row == level))
            if path:
                parts.append(f'<path fill="{colour(level)}" d="{path}"/>')
    return "\n".join([*parts, "</svg>", ""])


def runs(row):
    """(begin, length) of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
    return [(int(begin), int(end - begin)) for begin, end in zip(edges[::2], edges[1::2])]


def main():
    names = made()
    for name, _, _ in recipes():
        (FOLDER / f"{name}.svg").write_text(svg(name, values(name, names[name])), encoding="utf-8")
    print(f"{len(list(recipes()))} pictures in {FOLDER}")


if __name__ == "__main__":
    main()
