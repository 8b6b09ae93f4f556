"""Calls a function with each argument changed, and demands another result or an error: no argument is ignored."""

import inspect
from typing import Any, NamedTuple

import numpy as np

ERRORS = TypeError, ValueError, RuntimeError, NotImplementedError, AssertionError


class Beside:
    """A changed argument that means something beside others: both calls get those."""

    def __init__(self, value, **others):
        self.value, self.others = value, others


class Case(NamedTuple):
    """A call that is right, another value of each of its arguments, and the arguments without effect on the result."""

    function: Any
    given: dict
    changed: dict
    without_effect: dict = {}  # with the reason
    is_whole: bool = True  # whether each argument of the function stands in one of the tables


def arguments_of(function):
    return [name for name, one in inspect.signature(function).parameters.items()
            if one.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL) and name != "self"]


def flat(result):
    """The result's numbers, to compare."""
    if result is None or isinstance(result, (int, float, str, bool)):
        return [repr(result)]
    if isinstance(result, dict):
        return [one for name in sorted(result) for one in (name, *flat(result[name]))]
    if isinstance(result, (list, tuple)):
        return [str(type(result).__name__), *(one for part in result for one in flat(part))]
    if hasattr(result, "detach"):
        result = result.detach().resolve_neg()
        return [str(result.dtype), tuple(result.shape), result.double().contiguous().numpy().tobytes()]
    array = np.asarray(result)
    return [str(array.dtype), array.shape, array.tobytes()]


def check(case):
    if case.is_whole:
        assert sorted([*case.changed, *case.without_effect]) == sorted(arguments_of(case.function))
    right = flat(case.function(**case.given))
    for name, value in case.changed.items():
        others = value.others if isinstance(value, Beside) else {}
        want = flat(case.function(**{**case.given, **others})) if others else right
        try:
            got = case.function(**{**case.given, **others, name: value.value if isinstance(value, Beside) else value})
        except ERRORS:
            continue
        assert flat(got) != want, f"{name} is ignored"
