"""Block masks: which blocks of the score matrices attend."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from . import _core
from ._alignment import aligned
from ._named_arguments import refuses_by_name
from ._options import Tracer, refuse_arrays, refuse_no_dict, values_of
from ._shapes import Integers, checked_sizes, sequences_of
from ._mod import MASK_ARGUMENTS
from ._types import Array, ModLike, ParamValue


def read_now(captures: Mapping[str, Any], params: Mapping[str, ParamValue]) -> _core.NamedValues:
    """The values, with copies of arrays that are not aligned: rows are found from the content at this time."""
    return values_of({name: aligned(x) for name, x in captures.items()}, params)


class Sequence(NamedTuple):
    """One sequence of the batch: its first rows in the tensors (q_begin and kv_begin, 0 unless the batch is packed),
    its numbers of queries and keys (q_len, kv_len), and the numbers added to its q_idx and its kv_idx (q_start,
    kv_start)."""

    q_begin: int
    q_len: int
    kv_begin: int
    kv_len: int
    q_start: int
    kv_start: int


class Run(NamedTuple):
    """Key blocks [begin, end) of one row of query blocks: all full, or all partial."""

    begin: int
    end: int
    full: bool


class Lists(NamedTuple):
    """The lists of PyTorch's BlockMask, i32: kv_num_blocks [B, H, Q], the number of partial blocks in each row, and
    kv_indices [B, H, Q, KV], their indices; full_kv_num_blocks and full_kv_indices are the same for full blocks."""

    kv_num_blocks: Any
    kv_indices: Any
    full_kv_num_blocks: Any
    full_kv_indices: Any


class BlockMask:
    """Which blocks of the score matrices are empty, full or partial. Made by `build` or `from_lists`.

    The dense mask is never formed. The result is exact: each block has the class that the dense mask would give. A
    block mask never changes by itself: if an array that its mask reads changes, call `update`.

    >>> import heddle
    >>> mask = heddle.BlockMask.build(lambda b, h, q_idx, kv_idx: kv_idx <= q_idx, 8, 8, block=2)
    >>> print(mask)
    +...
    #+..
    ##+.
    ###+
    >>> mask
    <heddle.BlockMask: 10 of 16 blocks attend, 6 of them full; batch 1, heads 1, queries 8, keys 8, block 2 x 2>
    """

    __slots__ = ("_captures", "_mask", "_params")
    _mask: _core.BlockMask
    _captures: dict[str, Any]
    _params: dict[str, ParamValue]
    __hash__ = None  # type: ignore[assignment]  # update() changes what it equals

    def __init__(self) -> None:
        raise TypeError("heddle.BlockMask has no constructor; BlockMask.build and BlockMask.from_lists make one")

    @classmethod
    def _of(cls, mask: _core.BlockMask, captures: Mapping[str, Any], params: Mapping[str, ParamValue]) -> BlockMask:
        made = object.__new__(cls)
        made._mask = mask
        of_captures, of_params = mask.names
        made._captures = {name: captures[name] for name in of_captures if name in captures}
        made._params = {name: params[name] for name in of_params if name in params}
        return made

    @staticmethod
    @refuses_by_name
    def build(
        mask_mod: ModLike, q_len: int | None = None, kv_len: int | None = None, *, batch: int | None = None,
        heads: int = 1, block: int | tuple[int, int] = 128, captures: Mapping[str, Array] | None = None,
        params: Mapping[str, ParamValue] | None = None, q_lengths: Integers = None, kv_lengths: Integers = None,
        cu_seqlens_q: Array | None = None, cu_seqlens_kv: Array | None = None, q_start: Integers = 0,
        kv_start: Integers = 0, threads: int = 0, reals: str = "f32", clamp_reads: bool = False,
    ) -> BlockMask:
        """Classifies a mask over all score matrices.

        mask_mod: a function (b, h, q_idx, kv_idx), text or an expression, as in heddle.attention; None: everything
        attends. Arrays that it reads must be on the CPU. captures and params are values for the names that it reads.

        The sequences are one of these:

        - `batch` (default 1) equal ones of q_len queries and kv_len keys.
        - Of q_lengths and kv_lengths, ints or arrays of ints [B]; q_len and kv_len are then the padded sizes.
        - A packed batch: cu_seqlens_q and cu_seqlens_kv, i32 or i64 [N + 1].

        `heads` is the number of query heads. `block` is the size of blocks: (queries, keys), or one int for both.
        q_start and kv_start (an int, or one for each sequence) are added to q_idx and kv_idx. `threads` 0 means all
        cores. `reals` is the type of the mask's arithmetic: "f64" for an attention on f64 inputs, else "f32".
        With clamp_reads a read that may fall outside its array gives the nearest element, and is not refused.

        Raises ValueError for a mask that is not boolean, sizes that are negative or do not fit, and reads that may
        fall outside their array; NotImplementedError for arrays on a GPU.

        >>> import numpy as np, heddle
        >>> ids = np.array([0, 0, 0, 1, 1, 1], np.int32)
        >>> mask = heddle.BlockMask.build(lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx], 6, 6, block=(2, 3))
        >>> print(mask)
        #.
        ++
        .#
        """
        if reals not in ("f32", "f64"):
            raise ValueError(f"reals is {reals!r}; 'f32' and 'f64' are accepted")
        sequences = sequences_of(
            q_len, kv_len, batch, q_lengths, kv_lengths, cu_seqlens_q, cu_seqlens_kv, q_start, kv_start)
        traced = Tracer(captures, params)
        mask = traced.of(mask_mod, MASK_ARGUMENTS)
        values = read_now(traced.captures, traced.params)
        size = checked_sizes(heads, block, threads)
        made = _core.BlockMask.build(mask, values, sequences, heads, size, threads, reals, clamp_reads)
        return BlockMask._of(made, traced.captures, traced.params)

    @staticmethod
    @refuses_by_name
    def from_lists(
        kv_num_blocks: Array, kv_indices: Array, full_kv_num_blocks: Array | None = None,
        full_kv_indices: Array | None = None, *, mask_mod: ModLike = None, q_len: int | None = None,
        kv_len: int | None = None, batch: int | None = None, heads: int | None = None,
        block: int | tuple[int, int] = 128, captures: Mapping[str, Array] | None = None,
        params: Mapping[str, ParamValue] | None = None, q_lengths: Integers = None, kv_lengths: Integers = None,
        cu_seqlens_q: Array | None = None, cu_seqlens_kv: Array | None = None, q_start: Integers = 0,
        kv_start: Integers = 0,
    ) -> BlockMask:
        """From PyTorch's lists: kv_num_blocks i32 [B, H, Q], kv_indices i32 [B, H, Q, KV], and full_kv_num_blocks and
        full_kv_indices, the same of full blocks (not given: every listed block is partial), on the CPU.

        Keys of unlisted blocks do not attend. mask_mod applies inside partial blocks; without it they count as full.
        B and H of the lists may be 1, shared by all; `batch` and `heads` not given are those of the lists. The other
        arguments are those of heddle.BlockMask.build; the lists are those of the longest sequence.

        Raises ValueError for duplicates, entries that are out of range or both partial and full, wrong shapes and
        dtypes, and a mask that is not boolean.

        >>> import numpy as np, heddle
        >>> counts = np.array([[[1, 2]]], np.int32); indices = np.array([[[[0, 0], [0, 1]]]], np.int32)
        >>> print(heddle.BlockMask.from_lists(counts, indices, q_len=8, kv_len=8, block=4))
        #.
        ##
        """
        extents: tuple[int, ...] = tuple(getattr(kv_num_blocks, "shape", ()))
        if batch is None and q_lengths is None and kv_lengths is None and cu_seqlens_q is None and len(extents) == 3:
            batch = int(extents[0])
        if heads is None:
            heads = int(extents[1]) if len(extents) == 3 else 1
        sequences = sequences_of(
            q_len, kv_len, batch, q_lengths, kv_lengths, cu_seqlens_q, cu_seqlens_kv, q_start, kv_start)
        traced = Tracer(captures, params)
        mask = traced.of(mask_mod, MASK_ARGUMENTS)
        size = checked_sizes(heads, block, 0)
        try:
            made = _core.BlockMask.from_lists(
                kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices, mask, sequences, heads, size)
        except TypeError as error:
            lists = {"kv_num_blocks": kv_num_blocks, "kv_indices": kv_indices,
                     "full_kv_num_blocks": full_kv_num_blocks, "full_kv_indices": full_kv_indices}
            refuse_arrays(error, {}, {name: one for name, one in lists.items() if one is not None})
        return BlockMask._of(made, traced.captures, traced.params)

    def to_lists(self) -> Lists:
        """The lists of PyTorch's BlockMask, as NumPy arrays i32. B (H) is 1 if all sequences (heads) share their rows;
        entries past a row's count are 0. Raises NotImplementedError if the sequences differ in length.

        >>> import heddle
        >>> lists = heddle.BlockMask.build("kv_idx <= q_idx", 6, 6, block=2).to_lists()
        >>> lists.kv_num_blocks, lists.full_kv_num_blocks
        (array([[[1, 1, 1]]], dtype=int32), array([[[0, 1, 2]]], dtype=int32))
        """
        return Lists(*self._mask.to_lists())

    @refuses_by_name
    def row(self, sequence: int, head: int, q_block: int) -> list[Run]:
        """The attending blocks in row q_block of one score matrix (sequence, head), sorted. Raises ValueError for a row
        that does not exist.

        >>> import heddle
        >>> heddle.BlockMask.build("kv_idx <= q_idx", 6, 6, block=2).row(0, 0, 2)
        [Run(begin=0, end=2, full=True), Run(begin=2, end=3, full=False)]
        """
        return [Run(*run) for run in self._mask.row(sequence, head, q_block)]

    def transposed(self) -> BlockMask:
        """The columns, for a backward pass: for each block of keys the query blocks that read it. Queries and keys are
        swapped in all properties; transposing twice gives an equal mask.

        >>> import heddle
        >>> print(heddle.BlockMask.build("kv_idx <= q_idx", 6, 6, block=2).transposed())
        +##
        .+#
        ..+
        """
        return BlockMask._of(self._mask.transposed(), self._captures, self._params)

    @refuses_by_name
    def update(
        self, *, captures: Mapping[str, Array] | None = None, params: Mapping[str, ParamValue] | None = None,
        threads: int = 0,
    ) -> None:
        """Rebuilds the rows, for these captures and params. Other names keep their arrays, whose content may have
        changed in place. Plans that were made with this mask keep the old rows. `threads` is as in `build`.

        Raises ValueError for a name that the mask does not read, and as `build`; then nothing has changed.

        >>> import heddle
        >>> mask = heddle.BlockMask.build("kv_idx < n", 4, 4, block=1, params={"n": 2})
        >>> mask.update(params={"n": 3})
        >>> mask.density
        0.75
        """
        all_captures, all_params = self._with(captures, params)
        self._mask = self._mask.updated(read_now(all_captures, all_params), threads)
        self._captures, self._params = all_captures, all_params

    def check_current(
        self, *, captures: Mapping[str, Array] | None = None, params: Mapping[str, ParamValue] | None = None,
    ) -> None:
        """Raises ValueError, naming the first one, if an array's content or a param differs from what the rows were
        built from. Names that are not in captures and params keep their earlier values. Arrays on a GPU are not
        compared.

        >>> import numpy as np, heddle
        >>> ids = np.zeros(4, np.int32)
        >>> mask = heddle.BlockMask.build(lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx], 4, 4, block=2)
        >>> mask.check_current()
        >>> ids[2:] = 1
        >>> mask.check_current()
        Traceback (most recent call last):
        ValueError: capture 'ids' differs from the one that the block mask was built from; update it first
        """
        self._mask.check_current(read_now(*self._with(captures, params)))

    def _with(
        self, captures: Mapping[str, Array] | None, params: Mapping[str, ParamValue] | None,
    ) -> tuple[dict[str, Any], dict[str, ParamValue]]:
        of_captures, of_params = self._mask.names
        for kind, given, known in (("capture", captures, of_captures), ("param", params, of_params)):
            if given:
                refuse_no_dict(f"{kind}s", given, "arrays" if kind == "capture" else "numbers")
            for name in given or ():
                if name not in known:
                    raise ValueError(f"the mask reads no {kind} '{name}'; it reads {', '.join(known) or 'none'}")
        return {**self._captures, **(captures or {})}, {**self._params, **(params or {})}

    @property
    def captures(self) -> Mapping[str, Any]:
        """The arrays that the mask reads, by name. heddle.attention takes them from here."""
        return MappingProxyType(self._captures)

    @property
    def params(self) -> Mapping[str, ParamValue]:
        """The values of the params that the mask reads, by name."""
        return MappingProxyType(self._params)

    @property
    def mask_mod(self) -> _core.Expr:
        """The mask's expression; empty text if everything attends."""
        return self._mask.mask

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(sequences, heads, queries of the longest sequence, keys of the longest sequence)."""
        each = self.sequences
        longest_q, longest_kv = (max((one[i] for one in each), default=0) for i in (1, 3))
        return len(each), self._mask.heads, longest_q, longest_kv

    @property
    def sequences(self) -> list[Sequence]:
        """Where each sequence stands, and its lengths."""
        return [Sequence(*numbers) for numbers in self._mask.sequences]

    @property
    def block(self) -> tuple[int, int]:
        """The size of a block: (queries, keys)."""
        return self._mask.block

    @refuses_by_name
    def q_blocks(self, sequence: int = 0) -> int:
        """The number of blocks of queries of a sequence. Raises ValueError for one that is not there."""
        return self._mask.q_blocks(sequence)

    @refuses_by_name
    def kv_blocks(self, sequence: int = 0) -> int:
        """The number of blocks of keys of a sequence. Raises ValueError for one that is not there."""
        return self._mask.kv_blocks(sequence)

    @property
    def is_transposed(self) -> bool:
        """Whether queries and keys have changed places."""
        return self._mask.is_transposed

    @property
    def is_from_lists(self) -> bool:
        """Whether `from_lists` made it: keys of unlisted blocks do not attend, whatever mask_mod says."""
        return self._mask.is_from_lists

    @property
    def shared_by_batch(self) -> bool:
        """Whether equal sequences share their rows: the mask does not read b."""
        return self._mask.shared_by_batch

    @property
    def shared_by_heads(self) -> bool:
        """Whether all heads share their rows: the mask does not read h."""
        return self._mask.shared_by_heads

    @property
    def reals(self) -> str:
        """The type of the mask's arithmetic: "f32" or "f64"."""
        return self._mask.reals

    def statistics(self) -> dict[str, int]:
        """Counts of blocks (`blocks`, `full`, `partial`, `empty`: over all score matrices), of what is stored
        (`different_rows`, `runs`, `bytes`) and of what building took (`classified_rows`, `evaluated_tiles`,
        `range_queries`).

        >>> import heddle
        >>> heddle.BlockMask.build("kv_idx <= q_idx", 6, 6, block=2).statistics()["partial"]
        3
        """
        return self._mask.statistics()

    @property
    def density(self) -> float:
        """The share of blocks that attend: 0 to 1."""
        counts = self._mask.statistics()
        return (counts["full"] + counts["partial"]) / counts["blocks"] if counts["blocks"] else 0.0

    @refuses_by_name
    def text(self, sequence: int = 0, head: int = 0) -> str:
        """One score matrix (sequence, head) as text: a line for each row of blocks, a character for each block: '#'
        full, '+' partial, '.' empty. Beyond 128 columns or lines a character stands for several blocks: it is '+' if
        they differ."""
        return self._mask.text(sequence, head)

    @refuses_by_name
    def svg(self, sequence: int = 0, head: int = 0) -> str:
        """One score matrix (sequence, head) as an SVG picture with axes in tokens and a legend. Notebooks show it."""
        return self._mask.svg(sequence, head)

    def _repr_svg_(self) -> str | None:
        return self.svg() if 0 not in self.shape[:2] else None

    def __str__(self) -> str:
        return self.text().rstrip("\n") if 0 not in self.shape[:2] else repr(self)

    def __repr__(self) -> str:
        counts = self._mask.statistics()
        batch, heads, queries, keys = self.shape
        return (
            f"<heddle.BlockMask: {counts['full'] + counts['partial']} of {counts['blocks']} blocks attend, "
            f"{counts['full']} of them full; batch {batch}, heads {heads}, queries {queries}, keys {keys}, "
            f"block {self.block[0]} x {self.block[1]}>"
        )

    def __eq__(self, other: object) -> bool:
        """Same sequences, heads, block size and rows."""
        if not isinstance(other, BlockMask):
            return NotImplemented
        return self._mask.equals(other._mask)
