"""Each recipe of docs/guide/recipes.md: the Python call, the text, and the picture say the same.

tests/docs compares the text with what C++'s call prints, test_mods.py each mod with its definition."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import heddle
from heddle import mods

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "make_recipes.py"
spec = importlib.util.spec_from_file_location("make_recipes", SCRIPT)
make_recipes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_recipes)

RECIPES = {name: text for name, _, text in make_recipes.recipes()}
MADE = make_recipes.made()
ARRAYS = {name: value for name, value in MADE.items() if isinstance(value, np.ndarray)}
# Ready-made mods that stand in a recipe's sentence alone.
BESIDE = {"causal_lower_right", "documents_from_starts", "neighbourhood_2d"}


@pytest.mark.parametrize("name", RECIPES)
def test_text_and_picture(name):
    text = RECIPES[name]
    found = make_recipes.values(name, MADE[name])
    read = {array: value for array, value in ARRAYS.items() if re.search(rf"\b{array}\b", text)}
    np.testing.assert_array_equal(make_recipes.values(name, text, read), found)
    assert len(np.unique(found)) > 1
    stored = (make_recipes.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert make_recipes.svg(name, found) == stored, "docs/pictures/make_recipes.py draws another picture"


def test_every_ready_made_mod_has_a_recipe():
    made = {name for name in mods.__all__ if name not in ("Mod", "alibi_slopes", "document_starts", "tree_intervals")}
    page = make_recipes.PAGE.read_text(encoding="utf-8")
    assert made - BESIDE <= set(re.findall(r"\bmods\.(\w+)\(", page))
    assert {path.stem for path in make_recipes.FOLDER.glob("*.svg")} == set(RECIPES)


def test_others_by_name():
    """The texts of the table, each with its definition in NumPy."""
    page = make_recipes.PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([^|:(]+?) ?[:(].*\| `([^`]*idx[^`]*)` \|$", page, re.M))
    space, time = re.findall(r"^\| Sparse VideoGen.*\| `(.*)` \|$", page, re.M)
    q_idx, kv_idx = np.arange(24)[:, None], np.arange(24)

    def shown(text, captures=None, params=None):
        lines = heddle.BlockMask.build(text, 24, 24, block=1, captures=captures, params=params).text().splitlines()
        return np.array([list(line) for line in lines]) == "#"

    first, last = np.array([0, 2, 9], np.int32), np.array([7, 9, 24], np.int32)
    want = (q_idx >= first[kv_idx // 8]) & (q_idx < last[kv_idx // 8])
    np.testing.assert_array_equal(shown(rows["Flamingo's images"], {"first": first, "last": last}, {"n": 8}), want)
    ends, prompts = np.array([0, 6, 10, 15, 20, 24]), np.array([0, 0, 0, 3, 3])  # documents, and the prompt of each
    document = np.repeat(np.arange(5), np.diff(ends))
    own = prompts[document]
    rows_of = {"start": ends[document], "prompt": ends[own], "prompt_end": np.where(own == document, ends[own], ends[own + 1])}
    same = document[:, None] == document
    want = same & (q_idx >= kv_idx) | (own[:, None] == document) & (document[:, None] != document)
    np.testing.assert_array_equal(shown(rows["Shared prefix"], {name: x.astype(np.int32) for name, x in rows_of.items()}), want)
    some = (q_idx < 4) | (kv_idx < 4)
    np.testing.assert_array_equal(shown(space, params={"text": 4, "width": 3}), some | (abs(q_idx - kv_idx) < 3))
    turned = abs((q_idx - 4) % 5 - (kv_idx - 4) % 5) < 2
    np.testing.assert_array_equal(shown(time, params={"text": 4, "frame": 5, "width": 2}), some | turned)
    table, factor = np.random.default_rng(0).standard_normal(47).astype(np.float32), np.array([1, 0.5], np.float32)
    x = np.random.default_rng(1).standard_normal((3, 1, 2, 24, 8)).astype(np.float32)
    got = heddle.attention(*x, score_mod=rows["Sandwich"], captures={"table": table, "factor": factor}, params={"n": 23})
    beside = mods.relative_bias(table * factor[:, None], 23)
    np.testing.assert_allclose(got, heddle.attention(*x, score_mod=beside), atol=1e-6)
