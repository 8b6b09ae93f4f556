"""torch's block masks without the dense mask.

create_block_mask keeps the mask function as an expression. The lists of blocks are made when they are first read.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.nn.attention import flex_attention as flex

import heddle

from .. import _core
from .._mod import Mod
from .._named_arguments import is_integer
from . import _dense, _direct, _originals, _write_order
from ._block_lists import (
    LISTS, Blocks, BoundMask, LateMask, LazyLists, MaskMod, Versions, default_device, dense, lists_of, of_columns,
    ordered, same, versions, watched)
from ._block_text import counts_of_lists, picture_of, text_of
from ._exact import exact
from ._lists import of_lists
from ._mask_mods import counted, mod_kind, noop_mask
from ._named_tensors import names_arguments, pair_of_ints, require_sizes

DEFAULT_BLOCK = 128


def block_size(given: int | Sequence[int]) -> tuple[int, int]:
    is_one = not isinstance(given, (tuple, list)) and is_integer(given)  # Dynamo cannot ask a tuple for an integer
    return pair_of_ints("BLOCK_SIZE", (given, given) if is_one else given)


class BlockMask(flex.BlockMask):
    """Which blocks of the scores attend. torch's BlockMask, with all of its attributes and its constructor: seq_lengths
    (queries, keys), BLOCK_SIZE (queries, keys), mask_mod, and the lists, i32. kv_num_blocks [B, H, rows] and kv_indices
    [B, H, rows, columns] list each row's partial blocks, full_kv_num_blocks and full_kv_indices the full ones;
    q_num_blocks, q_indices, full_q_num_blocks and full_q_indices list them by columns. `later`: what later versions of
    torch take.

    - Made by create_block_mask: holds its mask_mod as an expression. Attention uses the expression, with blocks of the
      size that suits its kernel. The lists (kv_num_blocks, kv_indices, ...) are computed when they are first read. No
      dense mask is formed.
    - Made from lists: attention follows the lists. Unlisted blocks do not attend, mask_mod applies to partial blocks,
      and full blocks attend whole.
    - Changed by hand (an attribute is assigned, or a list is changed in place): from then on as made from lists. A
      graph of torch.compile does not see changes in place of the lists that create_block_mask's mask computed.

    >>> import heddle.torch
    >>> mask = heddle.torch.create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 256, 256, "cpu")
    >>> mask.shape, mask.kv_num_blocks.tolist(), mask.full_kv_num_blocks.tolist()
    ((1, 1, 256, 256), [[[1, 1]]], [[[0, 1]]])
    """

    def __init__(self, seq_lengths: tuple[int, int], kv_num_blocks: torch.Tensor, kv_indices: torch.Tensor,
                 full_kv_num_blocks: torch.Tensor | None, full_kv_indices: torch.Tensor | None,
                 q_num_blocks: torch.Tensor | None, q_indices: torch.Tensor | None,
                 full_q_num_blocks: torch.Tensor | None, full_q_indices: torch.Tensor | None,
                 BLOCK_SIZE: tuple[int, int], mask_mod: MaskMod, **later: Any) -> None:
        self._made_by: LazyLists | None = None
        super().__init__(seq_lengths, kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices, q_num_blocks,
                         q_indices, full_q_num_blocks, full_q_indices, BLOCK_SIZE, mask_mod, **later)

    @classmethod
    def _of(cls, lazy: LazyLists, mask_mod: MaskMod) -> "BlockMask":
        made = cls.__new__(cls)
        made._made_by = lazy
        made.seq_lengths, made.BLOCK_SIZE = lazy.lengths, lazy.block
        made.mask_mod = mask_mod
        _write_order.set_metadata(made, {})
        return made

    @property
    def _lazy(self) -> LazyLists | None:
        """The arguments that the mask was made of. None if it was made of lists, or if a list was changed by hand."""
        lazy: LazyLists | None = self._made_by
        if lazy is None or not lazy._versions or torch.compiler.is_dynamo_compiling() or not lazy.are_changed():
            return lazy
        self._follow_lists(lazy)
        return None

    def _follow_lists(self, lazy: LazyLists) -> None:
        self.__dict__.update({**lazy.lists(), **self.__dict__})
        self.__dict__["_made_by"] = None

    def __getattr__(self, name: str) -> Any:
        lazy = self.__dict__.get("_made_by")
        if lazy is not None and name in LISTS:
            if torch.compiler.is_dynamo_compiling():
                return getattr(self._torchs(), name)
            self.__dict__.update(lazy.lists())
            return self.__dict__[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def _torchs(self) -> flex.BlockMask:
        """torch's own block mask, of a dense mask: Dynamo can trace this, and not how the lists are made here."""
        made: flex.BlockMask = _originals.create_block_mask(self.mask_mod, *self.shape, self.device, self.BLOCK_SIZE)
        return made

    def sparsity(self) -> float:
        """The share of scores in blocks that are left out, in per cent; 0 where there are no scores."""
        if 0 in self.shape:
            return 0.0
        lazy = self._unmade()
        return super().sparsity() if lazy is None else lazy.sparsity()

    def __repr__(self) -> str:
        lazy = self._unmade()
        return super().__repr__() if lazy is None else text_of(self, lazy)

    def to_string(self, grid_size: int | tuple[int, int] = (20, 20), limit: int = 4) -> str:
        """`limit` score matrices as characters, in at most grid_size rows and columns each; -1: one for each block."""
        parent: Any = super()
        if torch.compiler.is_dynamo_compiling():
            return str(parent.to_string(grid_size, limit))
        blocks = -(-self.seq_lengths[0] // self.BLOCK_SIZE[0]), -(-self.seq_lengths[1] // self.BLOCK_SIZE[1])
        if (lazy := self._unmade()) is None:
            if tuple(self.kv_indices.shape[-2:]) != blocks:  # torch's own code says what it makes of them
                return str(parent.to_string(grid_size, limit))
            return picture_of(self.kv_indices.shape[:-2], blocks, counts_of_lists(self), grid_size, limit)
        core = lazy.core()._mask
        return picture_of((lazy.batch, lazy.heads), blocks, lambda matrix, *cell: core.counts_in_cells(*matrix, *cell),
                          grid_size, limit)

    def _unmade(self) -> LazyLists | None:
        """What the lists will be made of. None once they are there, and where Dynamo traces torch's own lists."""
        return None if torch.compiler.is_dynamo_compiling() or "kv_indices" in self.__dict__ else self._lazy

    def as_tuple(self, flatten: bool = True) -> tuple[Any, ...]:
        """The arguments of the constructor; `flatten`: the sizes one by one."""
        if self._lazy is not None and torch.compiler.is_dynamo_compiling() and "kv_indices" not in self.__dict__:
            torchs: Any = self._torchs()
            return tuple(torchs.as_tuple(flatten))  # once for all lists
        parent: Any = super()
        return tuple(parent.as_tuple(flatten))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _write_order.ESSENTIALS or name in LISTS:
            lazy = self.__dict__.get("_made_by")
            if lazy is not None and (name in self.__dict__ or name in LISTS):
                self._follow_lists(lazy)
        self.__dict__[name] = value

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles. Lists that can be computed again are left out."""
        left_out = () if self._lazy is None else LISTS
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __deepcopy__(self, memo: dict[int, Any]) -> "BlockMask":
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.__getstate__(), memo))
        if made._made_by is not None and made.mask_mod is not self.mask_mod:
            # A copied method, partial or object reads copied tensors. Its owner may be copied only in part as yet.
            made._made_by.mask = LateMask(made.mask_mod, made._made_by.device)
        return made

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, H, queries, keys)."""
        lazy = self._made_by
        if lazy is not None:
            return lazy.batch, lazy.heads, *self.seq_lengths
        return *self.kv_indices.shape[:-2], *self.seq_lengths

    @property
    def device(self) -> torch.device:
        """Where the lists are, or will be."""
        lazy = self._made_by
        return lazy.device if lazy is not None else self.kv_num_blocks.device

    @property
    def ndim(self) -> int:
        """The length of shape: models of transformers ask for it as for a tensor's."""
        return len(self.shape)

    @classmethod
    def from_kv_blocks(cls, kv_num_blocks: torch.Tensor, kv_indices: torch.Tensor,
                       full_kv_num_blocks: torch.Tensor | None = None, full_kv_indices: torch.Tensor | None = None,
                       BLOCK_SIZE: int | tuple[int, int] = DEFAULT_BLOCK, mask_mod: MaskMod | None = None,
                       seq_lengths: tuple[int, int] | None = None, compute_q_blocks: bool = True,
                       **later: Any) -> "BlockMask":
        """From lists of blocks, i32: kv_num_blocks [B, H, rows], kv_indices [B, H, rows, columns], and the same of full
        blocks, full_kv_num_blocks and full_kv_indices.

        Without full lists every listed block is partial. Without mask_mod everything in a listed block attends.
        seq_lengths not given are whole blocks. compute_q_blocks: with the lists by columns. `later`: arguments of later
        torch versions. Raises RuntimeError if the indices have less than 2 axes, and AssertionError if one of the full
        lists is given alone.

        >>> import torch
        >>> counts, indices = torch.tensor([[[1, 2]]]), torch.tensor([[[[0, 1], [0, 1]]]])
        >>> heddle.torch.BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=16).to_dense()
        tensor([[[[1, 0],
                  [1, 1]]]], dtype=torch.int32)
        """
        metadata = _write_order.of_arguments(later)
        if kv_indices.dim() < 2:
            raise RuntimeError("BlockMask must have at least 2 dimensions")
        if (full_kv_num_blocks is None) != (full_kv_indices is None):
            raise AssertionError("full_kv_num_blocks and full_kv_indices must be both provided or omitted")
        block = block_size(BLOCK_SIZE)
        if seq_lengths is None:
            seq_lengths = (kv_indices.shape[-2] * block[0], kv_indices.shape[-1] * block[1])
        q_blocks: Blocks = (None, None)
        full_q_blocks: Blocks = (None, None)
        if compute_q_blocks:
            q_blocks = of_columns(kv_num_blocks, kv_indices)
            full_q_blocks = of_columns(full_kv_num_blocks, full_kv_indices)
        return cls(seq_lengths, kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices, q_blocks[0],
                   q_blocks[1], full_q_blocks[0], full_q_blocks[1], block, noop_mask if mask_mod is None else mask_mod,
                   **metadata)

    def __getitem__(self, index: Any) -> "BlockMask":
        sliced = super().__getitem__(index)
        lists = {name: getattr(sliced, name) for name in LISTS}
        return type(self)(sliced.seq_lengths, **lists, BLOCK_SIZE=sliced.BLOCK_SIZE, mask_mod=sliced.mask_mod,
                          **_write_order.metadata_of(sliced))

    def _adjust(self, new_q_len: int, new_kv_len: int) -> "BlockMask":
        """Crops to the upper left. Exact for any length."""
        _write_order.refuse_tensor_order(self, "_adjust of")
        made = self._cropped(new_q_len, new_kv_len)
        _write_order.follow(made, self)
        return made

    def _cropped(self, new_q_len: int, new_kv_len: int) -> "BlockMask":
        if self._lazy is not None:
            return BlockMask._of(self._lazy.cropped(new_q_len, new_kv_len), self.mask_mod)
        rows, columns = -(-new_q_len // self.BLOCK_SIZE[0]), -(-new_kv_len // self.BLOCK_SIZE[1])
        counts, indices = ordered(dense(self.kv_num_blocks, self.kv_indices)[..., :rows, :columns])
        full: Blocks = (None, None)
        if self.full_kv_num_blocks is not None and self.full_kv_indices is not None:
            full = ordered(dense(self.full_kv_num_blocks, self.full_kv_indices)[..., :rows, :columns])
        return type(self).from_kv_blocks(
            counts, indices, full[0], full[1], self.BLOCK_SIZE, self.mask_mod, (new_q_len, new_kv_len),
            compute_q_blocks=self.q_indices is not None)

    def to(self, device: torch.device | str) -> "BlockMask":
        """The block mask with its lists on another device. Tensors that mask_mod reads are not moved."""
        device = torch.device(device)
        if self._lazy is not None and self._lazy.device == device:
            return self
        given = {**{name: getattr(self, name) for name in LISTS}, **_write_order.metadata_of(self)}
        moved: dict[str, Any] = {
            name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
        return type(self)(self.seq_lengths, **moved, BLOCK_SIZE=self.BLOCK_SIZE, mask_mod=self.mask_mod)

    def _repr_svg_(self) -> str:
        return self._core_mask().svg()

    def _core_mask(self) -> heddle.BlockMask:  # heddle.viz asks for it
        return made_for(self, self.shape[0], self.shape[1])[0]


class Made(NamedTuple):
    """The library's block mask for a block mask of torch's, and what it was made from."""

    sizes: tuple[Any, ...]
    lists: Versions
    core: heddle.BlockMask
    bound: BoundMask
    is_plain: bool  # whether the expression is the function's own (_exact.py)
    direct: _core.ListedMask | None  # for _direct.attend()


# By references, which are equal while the mask lives. A WeakKeyDictionary looks twice as long.
_made: dict[ref[flex.BlockMask], Made] = {}


def made_for(mask: flex.BlockMask, batch: int, heads: int) -> tuple[heddle.BlockMask, BoundMask]:
    """The library's block mask for scores of [batch, heads], and its function. Made once for what the object holds."""
    if isinstance(mask, BlockMask) and mask._lazy is not None:
        return mask._lazy.core(), mask._lazy.mask
    sizes = batch, heads, tuple(mask.seq_lengths), tuple(mask.BLOCK_SIZE)
    lists = versions(mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices)
    device = mask.kv_num_blocks.device
    bound = BoundMask(mask.mask_mod, device)  # each time: the numbers that it reads may have changed
    kept = _made.get(ref(mask))
    expr = exact(bound.expr, (batch, heads, *mask.seq_lengths), bound.params)
    if kept is not None and kept.sizes == sizes and same(kept.lists, lists) and bound.says_as(kept.bound) and (
            expr is bound.expr and kept.is_plain or bound.reads_as(kept.bound)):
        if bound.reads_as(kept.bound):
            return kept.core, kept.bound
        core = kept.core
    else:
        with temporarily_clear_interpreter_stack():  # transforms of torch.func wrap all results
            core = of_lists(lists_of(mask), sizes_of(mask), batch, heads, expr)
    direct = None
    attributes = watched(mask, lists)
    if attributes and (device.type == "cpu" or not bound.captures):  # on a GPU captures' content has a version that calls follow
        scope = batch, heads, mask.seq_lengths[0], mask.seq_lengths[1]
        direct = _direct.listed(core, mask.mask_mod, bound.version, scope, device, attributes)
    _made[ref(mask, forget)] = Made(sizes, lists, core, bound, expr is bound.expr, direct)
    return core, bound


def forget(gone: ref[flex.BlockMask]) -> None:
    _made.pop(gone, None)


def direct_mask(mask: Any) -> Any:
    """The block mask for _direct.attend(). None if it was not made yet for what the object holds now."""
    if type(mask) is BlockMask:
        lazy = mask._lazy
        if lazy is not None:
            return lazy.direct()
    kept = _made.get(ref(mask)) if isinstance(mask, flex.BlockMask) else None
    return None if kept is None or kept.direct is None or not kept.direct.is_of(mask) else kept.direct


def sizes_of(mask: flex.BlockMask) -> tuple[int, int, int, int]:
    """Queries and keys of the whole, queries and keys of a block."""
    return *mask.seq_lengths, *block_size(mask.BLOCK_SIZE)


@names_arguments
def create_mask(mod_fn: Callable[..., Any], B: int | None, H: int | None, Q_LEN: int, KV_LEN: int,
                device: Any = None) -> torch.Tensor:
    """The dense mask [B, H, Q_LEN, KV_LEN], bool, of mod_fn: a mask_mod's result, or where a score_mod's is not -inf.

    B and H of None count as 1. `device` of None is the accelerator, or the CPU if there is none.

    >>> import torch, heddle.torch
    >>> heddle.torch.create_mask(lambda b, h, q, kv: q >= kv, None, None, 2, 3, "cpu")
    tensor([[[[ True, False, False],
              [ True,  True, False]]]])
    """
    if isinstance(mod_fn, Mod):  # a mask: create_block_mask refuses scores
        return create_block_mask(mod_fn, B, H, Q_LEN, KV_LEN, device, 1).to_dense().bool()
    require_sizes(B=B, H=H, Q_LEN=Q_LEN, KV_LEN=KV_LEN)
    return flex.create_mask(counted(mod_fn), B, H, Q_LEN, KV_LEN, default_device(device))


def check_sizes(q_len: int, kv_len: int, block: tuple[int, int]) -> None:
    """Raises ValueError for sizes that no mask has."""
    if min(block) < 1:
        raise ValueError(f"BLOCK_SIZE is {block}; 1 and more are accepted")
    require_sizes(Q_LEN=q_len, KV_LEN=kv_len)


@names_arguments
def create_block_mask(mask_mod: MaskMod, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None,
                      BLOCK_SIZE: int | tuple[int, int] = DEFAULT_BLOCK, _compile: bool = False,
                      separate_full_blocks: bool = True, **later: Any) -> BlockMask:
    """The block mask of mask_mod(b, h, q_idx, kv_idx) over scores [B, H, Q_LEN, KV_LEN].

    - mask_mod gets scalars i32 and returns one bool; or it is a ready-made mask of heddle.mods.
    - B (H) of None: all batch entries (heads) share the blocks.
    - BLOCK_SIZE is (queries, keys), or one int for both.
    - `device` of None is the accelerator, or the CPU if there is none.

    If the content of a tensor that mask_mod reads changes, make a new block mask: attention reads the tensor again, but
    the lists do not change. With separate_full_blocks False all listed blocks are partial. `_compile` has no effect;
    `later` takes arguments of later torch versions.

    Raises AssertionError for a score_mod, ValueError for sizes below 0 and blocks below 1, TypeError for a result that
    is not bool, and NotImplementedError for an operation without an expression; the message names it.

    >>> import heddle.torch
    >>> mask = heddle.torch.create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 512, 512, "cpu")
    >>> mask.sparsity()
    37.5
    """
    with_write_order = _write_order.check_create(later)
    if mod_kind(mask_mod) != 4:
        raise AssertionError(f"create-block_mask requires a mask_mod function! Got {mask_mod}")
    check_sizes(Q_LEN, KV_LEN, block_size(BLOCK_SIZE))
    require_sizes(B=B, H=H)
    if _compile and not torch.compiler.is_dynamo_compiling():  # which cannot trace a warning
        warnings.warn("_compile of create_block_mask changes nothing here", DeprecationWarning, stacklevel=2)
    where = default_device(device)
    try:
        bound = LateMask(mask_mod, where) if torch.compiler.is_dynamo_compiling() else BoundMask(mask_mod, where)
    except NotImplementedError:
        if not _dense.is_allowed():
            raise
        bound = BoundMask(_dense.mask(mask_mod, B, H, Q_LEN, KV_LEN, where), where)
    lazy = LazyLists(bound, 1 if B is None else B, 1 if H is None else H, (Q_LEN, KV_LEN),
                     block_size(BLOCK_SIZE), where)
    made = BlockMask._of(lazy, mask_mod)
    if not separate_full_blocks:
        made = joined_blocks(made)
    if with_write_order:
        _write_order.compute(made, later.get("dq_kv_order", True))
    return made


def joined_blocks(mask: BlockMask) -> BlockMask:
    blocks = mask.to_dense().bool()
    return BlockMask.from_kv_blocks(*ordered(blocks), BLOCK_SIZE=mask.BLOCK_SIZE, mask_mod=mask.mask_mod,
                                    seq_lengths=mask.seq_lengths)
