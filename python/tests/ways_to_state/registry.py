"""The ways, by name."""

from collections.abc import Callable

WAYS: dict[str, Callable] = {}
KEPT: set[str] = set()
FREE: set[str] = set()  # kept or not: only the result is held against anything


def way(function):
    WAYS[function.__name__] = function
    return function


def kept(function):
    KEPT.add(function.__name__)
    return way(function)
