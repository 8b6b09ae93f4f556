"""Every public name says what it is, and its examples run. (Those of Python files run by --doctest-modules.)"""

import doctest
import inspect

import pytest

import heddle

NAMES = [name for name in heddle.__all__ if name != "mods"]


def public_members(owner):
    for name, member in vars(owner).items():
        if not name.startswith("_") and (callable(member) or isinstance(member, (property, staticmethod))):
            yield name, member


def test_every_operation_has_a_public_name():
    missing = [name for name in heddle._core.OPERATIONS if getattr(heddle, name, None) is not getattr(heddle._core, name)]
    assert not missing, f"operations of src/expr/ops.def that heddle does not export: {missing}"
    assert set(heddle._core.OPERATIONS) <= set(heddle.__all__)


@pytest.mark.parametrize("name", NAMES + [f"mods.{name}" for name in heddle.mods.__all__])
def test_docstrings(name):
    thing = heddle
    for part in name.split("."):
        thing = getattr(thing, part)
    assert thing.__doc__, f"heddle.{name} has no docstring"
    if inspect.isclass(thing):
        without = [member for member, value in public_members(thing) if not value.__doc__]
        assert not without, f"members of heddle.{name} without docstring: {without}"
    elif name != "save":  # heddle.load's example saves
        assert ">>>" in thing.__doc__, f"heddle.{name} has no example"


@pytest.mark.parametrize("name", [name for name in NAMES if type(getattr(heddle, name)).__name__ == "nb_func"])
def test_examples_of_the_module(name):
    test = doctest.DocTestParser().get_doctest(getattr(heddle, name).__doc__, {}, name, None, None)
    assert test.examples
    result = doctest.DocTestRunner(verbose=False).run(test)
    assert result.failed == 0
