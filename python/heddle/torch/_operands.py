"""A call as the arguments of an operator of torch.library, and back.

Mods cross as text, so that a graph with the operator can be saved. Captures, options and block lists cross as tensors,
numbers as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._call import SETTINGS, Call, type_of
from ._inputs import bare
from ._lists import of_lists

# The arguments after query, key and value, and their types in the schema. Numbers of mods are sorted by their types.
# Empty lists of tensors and of integers cross as None, which AOTInductor makes of them (torch 2.11).
# `lse_words`: 0 for neither lse nor lse_rest, 1 for lse, 2 for both.
OPERANDS = {
    "score": "str", "mask": "str", "weight": "str", "capture_names": "str[]", "captures": "Tensor[]?",
    "option_names": "str[]", "options": "Tensor[]?", "int_names": "str[]", "ints": "SymInt[]?", "float_names": "str[]",
    "floats": "float[]", "bool_names": "str[]", "bools": "bool[]", **SETTINGS, "lists": "Tensor[]?",
    "list_sizes": "SymInt[]?", "lse_words": "int", "clamps": "bool"}
SCHEMA = "Tensor query, Tensor key, Tensor value, " + ", ".join(f"{kind} {name}" for name, kind in OPERANDS.items())
FIRST = 3  # query, key and value
PLACES = {name: place for place, name in enumerate(OPERANDS)}


def operands(call: Call, lse_words: int, lists: Sequence[torch.Tensor] = (),
             sizes: Sequence[int] = ()) -> tuple[Any, ...]:
    """The operator's arguments after query, key and value."""
    kinds: dict[str, tuple[list[str], list[Any]]] = {"i32": ([], []), "f32": ([], []), "bool": ([], [])}
    for name, number in call.params.items():
        names, numbers = kinds[type_of(number)]
        names.append(name)
        numbers.append(number)
    texts = ["" if mod is None else str(mod) for mod in (call.score, call.mask, call.weight)]
    return (*texts, list(call.captures), list(call.captures.values()) or None, list(call.options),
            list(call.options.values()) or None, kinds["i32"][0], kinds["i32"][1] or None, *kinds["f32"], *kinds["bool"],
            *(getattr(call, name) for name in SETTINGS), list(lists) or None, list(sizes) or None, lse_words,
            call.clamps)


def named(rest: Sequence[Any]) -> dict[str, Any]:
    """The arguments after query, key and value, by their names."""
    return dict(zip(OPERANDS, rest))


def without_lists(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Call:
    """The call of an operator's arguments, but for its block lists. Reads no tensor."""
    given = named(rest)
    params = {name: number for kind in ("int", "float", "bool")
              for name, number in zip(given[f"{kind}_names"], given[f"{kind}s"] or ())}
    return Call(
        query, key, value, score=given["score"] or None, mask=given["mask"] or None, weight=given["weight"] or None,
        captures=dict(zip(given["capture_names"], given["captures"] or ())), params=params,
        options=dict(zip(given["option_names"], given["options"] or ())), clamps=given["clamps"],
        with_lse=given["lse_words"] > 0, **{name: given[name] for name in SETTINGS})


def call_of(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Call:
    """The call of an operator's arguments. Block lists are copied to the CPU, each time: on a GPU it waits."""
    call, given = without_lists(query, key, value, *rest), named(rest)
    call = call.with_tensors(bare(call.tensors()))
    if given["lists"]:
        batch, heads = call.query.shape[:2]
        call.lists = of_lists(bare(given["lists"]), given["list_sizes"], batch, heads, call.exact_expression(call.mask))
    return call


class Count(int):
    """How many tensors stand in a place of the operands."""


def packed(rest: Sequence[Any]) -> tuple[list[Any], list[torch.Tensor]]:
    """The operands with counts in place of their tensors, and these tensors."""
    places = [isinstance(x, (list, tuple)) and any(isinstance(one, torch.Tensor) for one in x) for x in rest]
    return ([Count(len(x)) if holds else x for x, holds in zip(rest, places)],
            [one for x, holds in zip(rest, places) if holds for one in x])


def unpacked(template: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    """The inverse of packed(), for these tensors or for others of as many."""
    left = iter(tensors)
    return [[next(left) for _ in range(x)] if isinstance(x, Count) else x for x in template]
