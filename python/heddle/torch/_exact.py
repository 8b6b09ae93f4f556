"""Mods whose integers leave i32 for the sizes and numbers of one call: torch's are of 64 bits, and so are the results of
what the library computes instead (src/expr/exact_integers.h)."""

from __future__ import annotations

from typing import Any

from .. import _core

LEAST, GREATEST = -(2**31), 2**31 - 1


def exact(expr: Any, sizes: tuple[int, int, int, int], params: dict[str, Any]) -> Any:
    """The expression itself where i32 holds all integers, else another one of the same values. It is no expression to
    hand in again: its sums wrap on purpose.

    `sizes`: batch, heads, queries and keys, which positions stay below.
    """
    made = _core.exact_integers(expr, *sizes, params)
    return expr if made is None else made


def numbers_of_i32(params: dict[str, Any]) -> dict[str, Any]:
    """The params without integers beyond i32: exact() makes literals of these."""
    if all(type(number) is not int or LEAST <= number <= GREATEST for number in params.values()):
        return params
    return {name: number for name, number in params.items() if type(number) is not int or LEAST <= number <= GREATEST}


def refuse_wide(expr: Any, sizes: tuple[int, int, int, int], params: dict[str, Any]) -> None:
    """Raises NotImplementedError if i32 does not hold all integers of an expression."""
    if expr is not None and _core.exact_integers(expr, *sizes, params) is not None:
        raise NotImplementedError(f"integers of `{expr}` leave 32 bits for {sizes[2]} queries, {sizes[3]} keys and the numbers "
                                  f"{dict(params)}; context parallelism computes mods in 32 bits")
