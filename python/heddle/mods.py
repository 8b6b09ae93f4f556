"""Ready-made mods: masks, score biases and dropout, for score_mod, mask_mod and weight_mod.

Masks are combined with ``&``, ``|`` and ``~``, also with functions of your own; arrays that they read are captured.

>>> import numpy as np, heddle
>>> from heddle import mods
>>> ids = np.array([0, 0, 0, 1, 1, 1], np.int32)
>>> print(heddle.BlockMask.build(mods.causal() & mods.documents(ids), 6, 6, block=1))
#.....
##....
###...
...#..
...##.
...###
"""

from __future__ import annotations

import operator
from typing import Any

from . import _core, _mod
from ._core import Expr
from ._grid_mods import (
    natten_2d, natten_3d, neighbourhood_2d, sliding_tiles_2d, sliding_tiles_3d, swin_bias, swin_windows,
)
from ._mod import Mod
from ._named_arguments import checks_arguments, is_integer
from ._score_mods import alibi, alibi_slopes, dropout, graph_bias, relative_bias, softcap, t5_bias
from ._types import Array

__all__ = [
    "Mod", "alibi", "alibi_slopes", "block_diffusion", "block_diffusion_training", "causal", "causal_chunks",
    "causal_lower_right", "dilated_window", "document_starts", "documents", "documents_from_starts", "dropout",
    "global_and_window", "graph_bias", "natten_2d", "natten_3d", "neighbourhood_2d", "prefix_lm", "relative_bias",
    "sinks_and_window", "sliding_tiles_2d", "sliding_tiles_3d", "sliding_window", "softcap", "swin_bias",
    "swin_windows", "t5_bias", "tree", "tree_intervals", "windows_by_head",
]


@checks_arguments
def causal() -> Mod:
    """kv_idx <= q_idx: the upper-left corner is the origin.

    >>> import heddle
    >>> print(heddle.BlockMask.build(heddle.mods.causal(), 3, 4, block=1))
    #...
    ##..
    ###.
    """
    return _mod.checked(_mod.mask(_core.mod_causal, "causal"), _core.mod_causal)


@checks_arguments
def causal_lower_right() -> Mod:
    """Causal, with the last query aligned to the last key of its sequence.

    >>> import heddle
    >>> print(heddle.BlockMask.build(heddle.mods.causal_lower_right(), 3, 4, block=1))
    ##..
    ###.
    ####
    """
    return _mod.checked(_mod.mask(_core.mod_causal_lower_right, "causal_lower_right"), _core.mod_causal_lower_right)


@checks_arguments
def sliding_window(before: int, after: int = 0) -> Mod:
    """q_idx - before <= kv_idx <= q_idx + after. Raises ValueError for negative numbers.

    >>> import heddle
    >>> print(heddle.BlockMask.build(heddle.mods.sliding_window(1, 1), 4, 4, block=1))
    ##..
    ###.
    .###
    ..##
    """
    def expr() -> Any:
        return _core.mod_sliding_window(before, after)

    return _mod.checked(_mod.mask(expr, f"sliding_window({before}, {after})"), expr)


@checks_arguments
def dilated_window(before: int, step: int) -> Mod:
    """Every step-th key, counted back from the query's own, at most `before` keys back. Raises ValueError for before <
    0 and
    step < 1.

    >>> import heddle
    >>> print(heddle.BlockMask.build(heddle.mods.dilated_window(4, 2), 5, 5, block=1))
    #....
    .#...
    #.#..
    .#.#.
    #.#.#
    """
    def expr() -> Any:
        return _core.mod_dilated_window(before, step)

    return _mod.checked(_mod.mask(expr, f"dilated_window({before}, {step})"), expr)


@checks_arguments
def prefix_lm(prefix: int | Expr | Array) -> Mod:
    """Causal, and every query also sees the first `prefix` keys. `prefix` is an int, an expression, or an array of
    ints [B]: one for each batch entry. Raises ValueError for a negative int.

    >>> import heddle
    >>> print(heddle.BlockMask.build(heddle.mods.prefix_lm(2), 3, 4, block=1))
    ##..
    ##..
    ###.
    """
    if isinstance(prefix, Expr) or is_integer(prefix):
        def expr() -> Any:
            return _core.mod_prefix_lm(prefix if isinstance(prefix, Expr) else operator.index(prefix))  # type: ignore

        return _mod.checked(_mod.mask(expr, f"prefix_lm({prefix})"), expr)
    _mod.refuse_no_array("prefix", prefix)
    array: Any = prefix
    return Mod(
        lambda b, h, q_idx, kv_idx: _core.of_arguments(_core.mod_prefix_lm(array[b]), [b, h, q_idx, kv_idx]), "prefix_lm")


@checks_arguments
def global_and_window(global_tokens: int, window: int) -> Mod:
    """The first `global_tokens` tokens see all tokens and are seen by all. Between the other tokens
    |q_idx - kv_idx| <= window. Raises ValueError for negative numbers.

    >>> import heddle
    >>> print(heddle.BlockMask.build(heddle.mods.global_and_window(1, 0), 4, 4, block=1))
    ####
    ##..
    #.#.
    #..#
    """
    def expr() -> Any:
        return _core.mod_global_and_window(global_tokens, window)

    return _mod.checked(_mod.mask(expr, f"global_and_window({global_tokens}, {window})"), expr)


@checks_arguments
def sinks_and_window(sinks: int, before: int) -> Mod:
    """Causal over the last `before` keys, and every query also sees the first `sinks` keys: a stream with attention
    sinks. Raises ValueError for negative numbers.

    >>> import heddle
    >>> print(heddle.BlockMask.build(heddle.mods.sinks_and_window(1, 1), 5, 5, block=1))
    #....
    ##...
    ###..
    #.##.
    #..##
    """
    def expr() -> Any:
        return _core.mod_sinks_and_window(sinks, before)

    return _mod.checked(_mod.mask(expr, f"sinks_and_window({sinks}, {before})"), expr)


@checks_arguments
def windows_by_head(before: Any) -> Mod:
    """Causal, with a window for each head: `before` i32 or i64 [Hq] is the number of keys before the query. Raises
    TypeError for a value that is not an array, and at the call ValueError for other element types and ranks.

    >>> import numpy as np, heddle
    >>> mask = heddle.BlockMask.build(heddle.mods.windows_by_head(np.array([0, 2])), 4, 4, heads=2, block=1)
    >>> print(mask.text(head=1).strip())
    #...
    ##..
    ###.
    .###
    """
    _mod.refuse_no_array("before", before)
    return _mod.mask(lambda: _core.mod_windows_by_head(before), "windows_by_head")


@checks_arguments
def causal_chunks(chunk: int) -> Mod:
    """Causal within chunks of `chunk` tokens: 0 to chunk - 1, chunk to 2 chunk - 1, and so on. Raises ValueError for
    chunk < 1.

    >>> import heddle
    >>> print(heddle.BlockMask.build(heddle.mods.causal_chunks(2), 5, 5, block=1))
    #....
    ##...
    ..#..
    ..##.
    ....#
    """
    def expr() -> Any:
        return _core.mod_causal_chunks(chunk)

    return _mod.checked(_mod.mask(expr, f"causal_chunks({chunk})"), expr)


@checks_arguments
def documents(ids: Any) -> Mod:
    """Queries and keys see their own document. `ids` i32 or i64 [S], or [B, S]: the document of each token. Raises
    TypeError for a value that is no array, and at the call ValueError for other element types and ranks.

    >>> import numpy as np, heddle
    >>> print(heddle.BlockMask.build(heddle.mods.documents(np.array([0, 0, 1, 1])), 4, 4, block=1))
    ##..
    ##..
    ..##
    ..##
    """
    _mod.refuse_no_array("ids", ids)
    return _mod.mask(lambda: _core.mod_documents(ids), "documents")


@checks_arguments
def documents_from_starts(start_of: Any) -> Mod:
    """documents() from `start_of`, i32 or i64 [S]: the first position of each token's document, as document_starts
    makes it from offsets.

    >>> import numpy as np, heddle
    >>> starts = heddle.mods.document_starts(np.array([0, 1, 4]))
    >>> print(heddle.BlockMask.build(heddle.mods.documents_from_starts(starts), 4, 4, block=1))
    #...
    .###
    .###
    .###
    """
    _mod.refuse_no_array("start_of", start_of)
    return _mod.mask(lambda: _core.mod_documents_from_starts(start_of), "documents_from_starts")


@checks_arguments
def document_starts(offsets: Any) -> Any:
    """Each token's document start, i32 [S], from offsets i32 or i64 [N + 1] (0 = first <= ... <= last = S), S up to
    2**28. Raises ValueError for other offsets.

    >>> import numpy as np, heddle
    >>> heddle.mods.document_starts(np.array([0, 2, 5]))
    array([0, 0, 2, 2, 2], dtype=int32)
    """
    _mod.refuse_no_array("offsets", offsets)
    return _core.document_starts(offsets)


@checks_arguments
def tree(enter: Any, last: Any, first: Any = 0) -> Mod:
    """Speculative decoding: a draft token sees its ancestors, itself, and all keys before position `first`, where the
    draft starts. Positions are q_idx and kv_idx: if the queries are the draft alone, give q_start = first. `enter` and
    `last` i32 [draft] come from tree_intervals; `first` is an int, an expression, or an array of ints [B].

    >>> import numpy as np, heddle
    >>> enter, last = heddle.mods.tree_intervals(np.array([-1, 0, 0, 2]))
    >>> print(heddle.BlockMask.build(heddle.mods.tree(enter, last), 4, 4, block=1))
    #...
    ##..
    #.#.
    #.##
    """
    _mod.refuse_no_array("enter", enter)
    _mod.refuse_no_array("last", last)
    if isinstance(first, (int, Expr)):
        return _mod.mask(lambda: _core.mod_tree(enter, last, _core.as_expr(first)), "tree")
    _mod.refuse_no_array("first", first)
    return Mod(
        lambda b, h, q_idx, kv_idx: _core.of_arguments(_core.mod_tree(enter, last, first[b]), [b, h, q_idx, kv_idx]),
        "tree")


@checks_arguments
def tree_intervals(parents: Any) -> tuple[Any, Any]:
    """(enter, last), i32 [S] each: when a depth-first walk enters a token, and when it enters the token's last
    descendant. `parents` i32 or i64 [S], -1 for a root. Raises ValueError for a cycle or a parent out of range.

    >>> import numpy as np, heddle
    >>> heddle.mods.tree_intervals(np.array([-1, 0, 0]))
    (array([0, 2, 1], dtype=int32), array([2, 2, 1], dtype=int32))
    """
    _mod.refuse_no_array("parents", parents)
    return _core.tree_intervals(parents)


@checks_arguments
def block_diffusion(block: int) -> Mod:
    """A query sees its whole own block and all keys before it. Raises ValueError for block < 1.

    >>> import heddle
    >>> print(heddle.BlockMask.build(heddle.mods.block_diffusion(2), 4, 4, block=1))
    ##..
    ##..
    ####
    ####
    """
    def expr() -> Any:
        return _core.mod_block_diffusion(block)

    return _mod.checked(_mod.mask(expr, f"block_diffusion({block})"), expr)


@checks_arguments
def block_diffusion_training(length: int, block: int) -> Mod:
    """Training of block diffusion: `length` noisy tokens, then the same ones clean. Noisy tokens see their own block
    and the clean tokens of earlier blocks; clean ones see the clean tokens of their own and of earlier blocks. Raises
    ValueError for numbers below 1.

    >>> import heddle
    >>> print(heddle.BlockMask.build(heddle.mods.block_diffusion_training(4, 2), 8, 8, block=1))
    ##......
    ##......
    ..####..
    ..####..
    ....##..
    ....##..
    ....####
    ....####
    """
    def expr() -> Any:
        return _core.mod_block_diffusion_training(length, block)

    return _mod.checked(_mod.mask(expr, f"block_diffusion_training({length}, {block})"), expr)
