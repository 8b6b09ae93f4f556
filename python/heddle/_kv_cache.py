"""append_kv: new keys and values for a cache. find_prefixes: what its sequences share."""

from __future__ import annotations

from typing import Any

from . import _core
from ._named_arguments import refuses_by_name
from ._options import refuse_arrays
from ._types import Array


@refuses_by_name
def append_kv(
    k: Array, v: Array | None, k_cache: Array, v_cache: Array | None, *, kv_lengths: Array, cu_seqlens: Array | None = None,
    page_table: Array | None = None, page_starts: Array | None = None, k_descale: Array | None = None, v_descale: Array | None = None,
    rotary_cos: Array | None = None, rotary_sin: Array | None = None, rotary_positions: Array | None = None,
    rotary_interleaved: bool = False, q: Array | None = None, q_out: Array | None = None,
    queries_at_first: bool = False, stream: int | None = None,
) -> None:
    """Appends new rows of keys and values to a cache, after its valid rows.

    - k [B, Hkv, n, Dqk], v [B, Hkv, n, Dv]: the new rows, of one floating dtype. v and v_cache may both be None.
    - k_cache [B, Hkv, rows, Dqk], v_cache [B, Hkv, rows, Dv]: written in place, in their dtypes; rounded once. In 8
      bits, larger magnitudes become the largest finite number.
    - kv_lengths, i32 or i64 [B]: the number of valid rows of each sequence before the call. New row i becomes row
      kv_lengths[b] + i.
    - cu_seqlens, i32 or i64 [N + 1]: the first row of each sequence in packed rows k [1, Hkv, T, Dqk].
    - page_table, i32 [B, max_pages]: the caches are pages [pages, Hkv, page_size, D].
    - page_starts, i32 [B + 1]: page_table is a list [entries], as attention takes it.
    - k_descale, v_descale, f32 [B, Hkv]: factors of an 8-bit cache, as attention takes them; the stored value is x /
      descale.
    - rotary_cos, rotary_sin [positions, R / 2]: the angles of a rotary embedding, which rotates R columns of k and q.
      It pairs neighbouring columns if rotary_interleaved, else columns i and i + R / 2.
    - rotary_positions, i32 or i64 [B]: the position of each sequence's first new row; without them its row in the cache.
    - q, q_out [B, Hq, Sq, Dqk]: queries, and the output for the rotated queries. Row i has the position of new row i;
      with queries_at_first all rows have the position of the first new row.

    On a CPU it raises ValueError, and writes nothing, for rows that do not fit, pages that do not exist, positions
    without an angle, and two new rows for the same place. On a GPU it enqueues one kernel on `stream`, which reads
    lengths and tables there: new rows without a valid place are not written.

    >>> import numpy as np, heddle
    >>> cache = np.zeros((2, 2, 1, 8, 4), np.float32)
    >>> new = np.ones((2, 1, 3, 4), np.float32)
    >>> heddle.append_kv(new, 2 * new, *cache, kv_lengths=np.array([0, 4], np.int32))
    >>> cache[1, 1, 0, :, 0]
    array([0., 0., 0., 0., 2., 2., 2., 0.], dtype=float32)
    """
    if (rotary_cos is None) != (rotary_sin is None):
        absent, there = ("rotary_cos", "rotary_sin") if rotary_cos is None else ("rotary_sin", "rotary_cos")
        raise ValueError(f"{there} is given without {absent}; both are accepted, or none")
    if rotary_cos is None:
        for name, told in (("rotary_positions", rotary_positions is not None), ("queries_at_first", queries_at_first),
                           ("rotary_interleaved", rotary_interleaved)):
            if told:
                raise ValueError(f"{name} is given without rotary_cos and rotary_sin, which turn rows; all are "
                                 "accepted, or none")
    try:
        _core.append_kv(k, v, k_cache, v_cache, kv_lengths, q, q_out, cu_seqlens, page_table, page_starts,
                        k_descale, v_descale, rotary_cos, rotary_sin, rotary_positions, bool(rotary_interleaved),
                        bool(queries_at_first), stream or 0)
    except TypeError as error:
        optional = {"v": v, "q": q, "cu_seqlens": cu_seqlens, "page_table": page_table, "page_starts": page_starts,
                    "k_descale": k_descale, "v_descale": v_descale, "rotary_cos": rotary_cos, "rotary_sin": rotary_sin,
                    "rotary_positions": rotary_positions}
        given = {name: x for name, x in optional.items() if x is not None}
        targets = {"k_cache": k_cache, "v_cache": v_cache, "q_out": q_out}
        outputs = {name: x for name, x in targets.items() if x is not None or name == "k_cache"}
        refuse_arrays(error, outputs, {"k": k, "kv_lengths": kv_lengths, **given})


@refuses_by_name
def find_prefixes(page_table: Array, kv_lengths: Array, page_size: int, *, page_starts: Array | None = None) -> tuple[Any, Any]:
    """Groups of sequences with the same first pages: prefix_group and prefix_len, i32 [B], as attention takes them.

    - page_table, i32 [B, max_pages], on the CPU; with page_starts, i32 [B + 1], a list [entries].
    - kv_lengths, i32 or i64 [B]: how many keys each sequence has.
    - page_size: keys of a page.

    It compares neighbouring sequences, so place sequences that share pages next to each other. The groups save the most
    reads of keys that groups of neighbours can save. prefix_group has the number of a group's first sequence, or -1 for
    a sequence without a group; prefix_len has the number of keys that all sequences of the group share.

    Raises ValueError for arrays of other shapes and dtypes, and for lengths of more rows than the pages have.

    >>> import numpy as np, heddle
    >>> table = np.array([[5, 1, 2], [5, 1, 3], [5, 4, 0], [6, 7, 8]], np.int32)
    >>> heddle.find_prefixes(table, np.array([48, 40, 30, 48], np.int32), 16)
    (array([ 0,  0, -1, -1], dtype=int32), array([32, 32,  0,  0], dtype=int32))
    """
    try:
        return _core.find_prefixes(page_table, kv_lengths, page_size, page_starts)
    except TypeError as error:
        given = {} if page_starts is None else {"page_starts": page_starts}
        refuse_arrays(error, {}, {"page_table": page_table, "kv_lengths": kv_lengths, **given})
