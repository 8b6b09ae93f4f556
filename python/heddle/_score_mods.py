"""Ready-made score biases, softcap and dropout."""

from __future__ import annotations

from typing import Any

from . import _core, _mod
from ._core import Expr
from ._mod import Mod
from ._named_arguments import checks_arguments, is_integer


@checks_arguments
def alibi(slopes: Any) -> Mod:
    """A score_mod: score + slopes[h] * (kv_idx - q_idx), slopes f32 [Hq].

    >>> import numpy as np, heddle
    >>> x = np.ones((1, 2, 3, 8), np.float32)
    >>> heddle.attention(x, x, x, score_mod=heddle.mods.alibi(heddle.mods.alibi_slopes(2))).shape
    (1, 2, 3, 8)
    """
    _mod.refuse_no_array("slopes", slopes)
    return _mod.score(lambda: _core.mod_alibi(slopes), "alibi")


@checks_arguments
def alibi_slopes(heads: int) -> Any:
    """f32 [heads]: 2^(-8 (h + 1) / heads) if `heads` is a power of two; otherwise what the paper's code gives. Raises
    ValueError for heads below 1 or above 65536.

    >>> import heddle
    >>> heddle.mods.alibi_slopes(2)
    array([0.0625    , 0.00390625], dtype=float32)
    """
    return _core.alibi_slopes(heads)


@checks_arguments
def relative_bias(table: Any, max_distance: int) -> Mod:
    """A score_mod: score + table[h, clip(kv_idx - q_idx, -max_distance, max_distance) + max_distance], table f32
    [Hq, 2 max_distance + 1].

    >>> import numpy as np, heddle
    >>> x = np.ones((1, 2, 3, 8), np.float32)
    >>> heddle.attention(x, x, x, score_mod=heddle.mods.relative_bias(np.zeros((2, 5), np.float32), 2)).shape
    (1, 2, 3, 8)
    """
    _mod.refuse_no_array("table", table)
    return _mod.score(lambda: _core.mod_relative_bias(table, max_distance), f"relative_bias({max_distance})")


@checks_arguments
def t5_bias(table: Any, buckets: int, max_distance: int, bidirectional: bool) -> Mod:
    """A score_mod: T5's buckets of distances: score + table[bucket, h], table f32 [buckets, Hq]. Half of the buckets
    are exact, the others logarithmic up to max_distance, where the last one begins. bidirectional: half of the buckets
    are for keys behind the query; else these count as distance 0. Raises ValueError for buckets below 2 (bidirectional:
    4) and a max_distance inside the exact ones.

    >>> import numpy as np, heddle
    >>> x = np.ones((1, 2, 3, 8), np.float32)
    >>> heddle.attention(x, x, x, score_mod=heddle.mods.t5_bias(np.zeros((8, 2), np.float32), 8, 32, True)).shape
    (1, 2, 3, 8)
    """
    _mod.refuse_no_array("table", table)
    return _mod.score(lambda: _core.mod_t5_bias(table, buckets, max_distance, bidirectional), f"t5_bias({buckets})")


@checks_arguments
def graph_bias(distances: Any, table: Any, largest: int) -> Mod:
    """A score_mod, Graphormer's bias by distance in a graph: score + table[clip(distances[q_idx, kv_idx], 0, largest),
    h]. distances [S, S] or [B, S, S] of integers, table f32 [largest + 1, Hq].

    >>> import numpy as np, heddle
    >>> x, table = np.ones((1, 2, 3, 8), np.float32), np.zeros((3, 2), np.float32)
    >>> distances = np.array([[0, 1, 2], [1, 0, 1], [2, 1, 0]], np.int32)
    >>> heddle.attention(x, x, x, score_mod=heddle.mods.graph_bias(distances, table, 2)).shape
    (1, 2, 3, 8)
    """
    _mod.refuse_no_array("distances", distances)
    _mod.refuse_no_array("table", table)
    return _mod.score(lambda: _core.mod_graph_bias(distances, table, largest), f"graph_bias({largest})")


@checks_arguments
def softcap(cap: float) -> Mod:
    """A score_mod: cap * tanh(score / cap). Raises ValueError for cap <= 0.

    >>> import numpy as np, heddle
    >>> x = np.ones((1, 1, 3, 8), np.float32)
    >>> heddle.attention(x, x, x, score_mod=heddle.mods.softcap(30.0)).shape
    (1, 1, 3, 8)
    """
    def expr() -> Any:
        return _core.mod_softcap(cap)

    return _mod.checked(_mod.score(expr, f"softcap({cap})"), expr)


@checks_arguments
def dropout(p: float, seed: int | Expr) -> Mod:
    """A weight_mod: 0 with probability p, else 1 / (1 - p). `seed` is an int or an expression, such as
    heddle.param("seed", "i32"), whose value a call may change. Raises ValueError for p outside [0, 1), and for a seed
    outside of i32.

    >>> import numpy as np, heddle
    >>> x = np.ones((1, 1, 3, 8), np.float32)
    >>> heddle.attention(x, x, x, weight_mod=heddle.mods.dropout(0.5, seed=7)).shape
    (1, 1, 3, 8)
    """
    if is_integer(seed) and not -2**31 <= int(seed) < 2**31:
        raise ValueError(f"seed of dropout must be {-2**31} to {2**31 - 1}, but is {seed}")

    def expr() -> Any:
        return _core.mod_dropout(p, _core.as_expr(seed))

    return _mod.checked(_mod.mask(expr, f"dropout({p})"), expr)
