"""Every public name has a docstring that names its arguments, so that the reference has a page with them."""

import heddle.mods
import pytest
from documented import arguments_of, complaints, public_names

import heddle

NAMES = [*public_names("heddle"), *public_names("heddle.mods")]


@pytest.mark.parametrize("name, thing", NAMES, ids=[name for name, _ in NAMES])
def test_docstrings_name_all_arguments(name, thing):
    assert not list(complaints(name, thing))


def test_pictures_too():
    pytest.importorskip("matplotlib")
    assert not [line for name, thing in public_names("heddle.viz") for line in complaints(name, thing)]


def test_what_is_found():
    def half(first, second):
        """Takes first, as heddle.exp does."""

    class Whole:
        """Of parts."""

        def bare(self):
            pass

        def method(self, parts, other):
            """Nothing."""

    Whole.__module__ = "heddle.somewhere"
    assert list(complaints("heddle.half", half)) == ["heddle.half: its docstring does not name second"]
    assert list(complaints("heddle.Whole", Whole)) == [
        "heddle.Whole.bare has no docstring", "heddle.Whole.method: its docstring does not name other"]
    assert "x" in arguments_of(heddle.exp) and "kv_lengths" in arguments_of(heddle.attention)
