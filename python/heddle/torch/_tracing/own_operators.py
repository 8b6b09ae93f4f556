"""Lengths of the sequence and random numbers as operators: ready-made mods read them, and no function of torch has them.

A trace makes expressions of both, and Dynamo writes them into a mod's graph. Called with numbers they raise
NotImplementedError, since no call of attention stands around them.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ... import _core
from .operations import op
from .values import Value, as_i32, elementwise

library = torch.library.Library("heddle", "FRAGMENT")  # type: ignore[no-untyped-call]
library.define("leaf(Tensor index, str name) -> Tensor")  # type: ignore[no-untyped-call]
library.define(  # type: ignore[no-untyped-call]
    "random_uniform(Tensor? seed, int number, Tensor b, Tensor h, Tensor q_idx, Tensor kv_idx) -> Tensor")

LEAVES = ("q_len", "kv_len", "q_start", "kv_start")


def leaf(index: torch.Tensor, name: str) -> Any:
    """One of LEAVES. `index`: any index of the mod's, which brings the trace along."""
    return torch.ops.heddle.leaf.default(index, name)


def random_uniform(seed: Any, *indices: torch.Tensor) -> Any:
    """A number in [0, 1) for each score. `seed`: a number, or a tensor of integers."""
    is_tensor = isinstance(seed, torch.Tensor)
    return torch.ops.heddle.random_uniform.default(seed if is_tensor else None, 0 if is_tensor else seed, *indices)


def refuse(what: str) -> NoReturn:
    raise NotImplementedError(f"a mod reads {what}, which has a value inside of heddle's attention alone; "
                              "heddle.torch.flex_attention and create_block_mask are accepted, torch's own are not")


def leaf_of_numbers(index: torch.Tensor, name: str) -> NoReturn:
    refuse(name)


def draw_of_numbers(*operands: Any) -> NoReturn:
    refuse("random_uniform")


library.impl("leaf", leaf_of_numbers, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
library.impl("random_uniform", draw_of_numbers, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake(
    "heddle::leaf", lambda index, name: torch.empty_like(index, dtype=torch.int32), lib=library)
torch.library.register_fake(
    "heddle::random_uniform", lambda seed, number, *indices: sum(indices).to(torch.float32), lib=library)


@op("leaf")
def leaf_of_a_trace(index: Any, name: str) -> Value:
    return Value.scalar(_core.leaf(name))


@op("random_uniform")
def draw_of_a_trace(seed: Any, number: Any, *indices: Any) -> Value:
    start = number if seed is None else seed
    return elementwise(lambda *all: _core.random_uniform(*map(as_i32, all)), start, *indices)
