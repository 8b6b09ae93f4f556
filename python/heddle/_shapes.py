"""The shape of a block mask from what a user gives: sizes, lengths, or cumulative lengths."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

from . import _core
from ._options import refuse_arrays, refuse_type
from ._types import Array

Integers: TypeAlias = Any  # one int, a sequence or an array of them


def _each(name: str, given: Integers, count: int) -> list[int]:
    """`count` ints, from one int or from a sequence of `count`."""
    if is_one(given):
        try:
            return [operator.index(given)] * count
        except TypeError:
            refuse_type(name, given, "an int, or a list of ints,")
    if hasattr(given, "__len__") and len(given) != count:
        raise ValueError(f"{name} has {len(given)} elements; one for each of {count} sequences is accepted")
    values = given.tolist() if hasattr(given, "tolist") else list(given)
    if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
        raise TypeError(f"{name} is {given!r}; an int, or one for each of {count} sequences, is accepted")
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} elements; one for each of {count} sequences is accepted")
    return values


def sequences_of(
    q_len: int | None, kv_len: int | None, batch: int | None, q_lengths: Integers, kv_lengths: Integers,
    cu_seqlens_q: Array | None, cu_seqlens_kv: Array | None, q_start: Integers, kv_start: Integers,
) -> list[tuple[int, ...]]:
    """The shape's sequences, from sizes, from lengths or from cumulative lengths."""
    if cu_seqlens_q is not None or cu_seqlens_kv is not None:
        if cu_seqlens_q is None or cu_seqlens_kv is None:
            raise ValueError("one of cu_seqlens_q and cu_seqlens_kv is given; both or none are accepted")
        others = {"q_len": q_len, "kv_len": kv_len, "batch": batch, "q_lengths": q_lengths, "kv_lengths": kv_lengths}
        for name, other in others.items():
            if other is not None:
                raise ValueError(f"{name} is given beside cu_seqlens_q; one of them is accepted")
        try:
            packed = _core.packed_sequences(cu_seqlens_q, cu_seqlens_kv)
        except TypeError as error:
            refuse_arrays(error, {}, {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_kv": cu_seqlens_kv})
        q_starts, kv_starts = _each("q_start", q_start, len(packed)), _each("kv_start", kv_start, len(packed))
        return [(*one[:4], q, kv) for one, q, kv in zip(packed, q_starts, kv_starts)]
    if batch is None:
        lengths: Any = next((given for given in (q_lengths, kv_lengths) if given is not None), None)
        batch = 1 if lengths is None or is_one(lengths) else len(lengths)
    try:
        batch = operator.index(batch)
    except TypeError:
        refuse_type("batch", batch, "an int")
    if not 0 <= batch <= _core.MOST_SEQUENCES:
        raise ValueError(f"batch is {batch}; 0 to {_core.MOST_SEQUENCES} are accepted")
    for name, size, given in (("q_len", q_len, q_lengths), ("kv_len", kv_len, kv_lengths)):
        if size is None and given is None:
            raise ValueError(f"{name} is not given; give it, or {name[:-3]}lengths, or cu_seqlens_q and cu_seqlens_kv")
    for name, size in (("q_len", q_len), ("kv_len", kv_len)):
        if size is not None and is_int(size) and size < 0:
            raise ValueError(f"{name} is {size}; 0 and more are accepted")
    counts_q = _each("q_len", q_len, batch) if q_lengths is None else _each("q_lengths", q_lengths, batch)
    counts_kv = _each("kv_len", kv_len, batch) if kv_lengths is None else _each("kv_lengths", kv_lengths, batch)
    for name, size, counts in (("q_lengths", q_len, counts_q), ("kv_lengths", kv_len, counts_kv)):
        if size is not None and any(count > size for count in counts):
            raise ValueError(f"{name} has {max(counts)}; 0 to {size}, the padded size, is accepted")
    starts = zip(counts_q, counts_kv, _each("q_start", q_start, batch), _each("kv_start", kv_start, batch))
    return [(0, q, 0, kv, first_q, first_kv) for q, kv, first_q, first_kv in starts]


def checked_sizes(heads: int, block: int | Sequence[int], threads: int) -> tuple[int, int]:
    """The block's size, once it and the other numbers were found to be ints."""
    for name, number in (("heads", heads), ("threads", threads)):
        if not is_int(number):
            refuse_type(name, number, "an int")
    if is_int(block):
        return operator.index(block), operator.index(block)  # type: ignore[arg-type]
    if not isinstance(block, Sequence) or not all(is_int(size) for size in block):
        refuse_type("block", block, "(queries, keys), two ints, or one int for both")
    if len(block) != 2:
        raise ValueError(f"block has {len(block)} elements; (queries, keys) or one int is accepted")
    return operator.index(block[0]), operator.index(block[1])


def is_one(given: Any) -> bool:
    """Whether it is no list and no array with axes."""
    return not hasattr(given, "__len__") or getattr(given, "shape", None) == ()


def is_int(value: Any) -> bool:
    """Whether it is Python's int, or one of NumPy's."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return True
