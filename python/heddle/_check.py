"""Whether results are right, how they merge, and where they can be computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from . import _core
from ._alignment import align_captures
from ._core import CheckReport, DeviceInfo
from ._named_arguments import refuses_by_name
from ._options import Options, given_arguments, refuse_arrays
from ._rows import with_unit_row, with_unit_rows
from ._tensor import public
from ._types import Array


@refuses_by_name
def check(
    q: Array, k: Array, v: Array, o: Array, lse: Array | None = None, *, max_scores: Array | None = None,
    lse_rest: Array | None = None, **options: Unpack[Options],
) -> CheckReport:
    """Checks o, lse, max_scores and lse_rest of heddle.attention(q, k, v, **options), by one criterion for all
    backends. The error against attention in float64 is at most twice that of plain, unfused attention, and in no row of
    o and max_scores larger than rounding explains. `print` shows the figures; the report is true if all passed.

    o may have any floating dtype. It costs Sq * Skv interpreted elements a head, twice. Raises as heddle.attention.

    >>> import numpy as np, heddle
    >>> q = k = v = np.random.default_rng(0).standard_normal((1, 2, 16, 8), np.float32)
    >>> o = heddle.attention(q, k, v, mask_mod=heddle.mods.causal())
    >>> bool(heddle.check(q, k, v, o, mask_mod=heddle.mods.causal())), bool(heddle.check(q, k, v, o))
    (True, False)
    """
    arguments = given_arguments(options)
    given_arrays = q, k, v, o, lse, max_scores, lse_rest
    q, k, v, o, lse, max_scores, lse_rest = with_unit_rows(*given_arrays) or given_arrays
    align_captures(arguments)
    try:
        return _core.check(q, k, v, o, lse, arguments, max_scores, lse_rest)
    except TypeError as error:
        refuse_arrays(error, {}, {
            "q": q, "k": k, "v": v, "o": o,
            **{name: x for name, x in (("lse", lse), ("max_scores", max_scores), ("lse_rest", lse_rest))
               if x is not None}})


@refuses_by_name
def merge_states(
    o_parts: Sequence[Array], lse_parts: Sequence[Array], *, out: Array | None = None, lse: Array | None = None,
    return_lse: bool = False, stream: int | None = None,
) -> Any:
    """Merges partial results over disjoint sets of keys: o = sum(o_n exp(lse_n - lse)), lse = ln sum exp(lse_n).

    o_parts: arrays [B, Hq, Sq, Dv] of floating dtypes; lse_parts: for each of them an array [B, Hq, Sq] of f32 or f64,
    on one device. Returns o, of the first part's dtype, with return_lse (o, lse); or writes `out` and `lse`, which may
    be a part. On a GPU it enqueues on `stream` (the number of a stream) and returns.
    Raises ValueError for shapes and numbers of parts that do not fit.

    >>> import numpy as np, heddle
    >>> q = k = v = np.random.default_rng(0).standard_normal((1, 2, 16, 8), np.float32)
    >>> parts = [heddle.attention(q, k[:, :, keys], v[:, :, keys], return_lse=True)
    ...          for keys in (slice(0, 5), slice(5, 16))]
    >>> o = heddle.merge_states(*zip(*parts))
    >>> bool(np.allclose(o, heddle.attention(q, k, v), atol=1e-6))
    True
    """
    o_parts, lse_parts = ([x if x is out or x is lse else with_unit_row(x) for x in parts] for parts in (o_parts, lse_parts))
    try:
        o, made = _core.merge_states(o_parts, lse_parts, out, lse, return_lse, stream or 0)
    except TypeError as error:
        named = {f"o_parts[{i}]": part for i, part in enumerate(o_parts)}
        named |= {f"lse_parts[{i}]": part for i, part in enumerate(lse_parts)}
        refuse_arrays(error, {"out": out, "lse": lse}, named)
    o = public(o) if out is None else out
    if not return_lse:
        return o
    return o, public(made) if lse is None else lse


def devices() -> list[DeviceInfo]:
    """The devices that heddle can compute on: the CPU, then the GPUs in the driver's order.

    >>> import heddle
    >>> heddle.devices()[0].kind
    'cpu'
    """
    return _core.devices()


@refuses_by_name
def missing(kind: str) -> str:
    """A message that says why there is no device of this kind ("cpu", "cuda" or "rocm"); empty if there is one. Raises
    ValueError for another kind.

    >>> import heddle
    >>> heddle.missing("cpu")
    ''
    """
    return _core.missing(kind)
