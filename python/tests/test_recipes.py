"""Each recipe of docs/guide/recipes.md: the Python call, the text, and the picture say the same.

tests/docs compares the text with what C++'s call prints, test_mods.py each mod with its definition."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

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
