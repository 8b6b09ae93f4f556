"""torch's block masks, without the dense mask: create_block_mask keeps the function as an expression, and the lists of
blocks are made when somebody reads them."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import flex_attention as flex

import heddle

from . import _dense
from ._trace import Mods

MaskMod = Callable[..., torch.Tensor]
DEFAULT_BLOCK = 128
LARGE_BLOCK = 1 << 30  # torch's block size for no mask at all
_versions = itertools.count(1)


def noop_mask(batch: torch.Tensor, head: torch.Tensor, token_q: torch.Tensor, token_kv: torch.Tensor) -> torch.Tensor:
    """Everything attends."""
    return batch.new_ones(size=(), dtype=torch.bool, device=batch.device)


def and_masks(*mask_mods: MaskMod) -> MaskMod:
    """The mask_mod that is true where all of them are; of none, everywhere."""
    return _joined(mask_mods, torch.Tensor.new_ones, torch.Tensor.__and__)


def or_masks(*mask_mods: MaskMod) -> MaskMod:
    """The mask_mod that is true where any of them is; of none, nowhere."""
    return _joined(mask_mods, torch.Tensor.new_zeros, torch.Tensor.__or__)


def _joined(mask_mods: tuple[MaskMod, ...], empty: Any, join: Any) -> MaskMod:
    if not all(callable(one) for one in mask_mods):
        raise RuntimeError(f"All inputs should be callable mask_mods: {mask_mods}")

    def joined_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        result = empty(b, (), dtype=torch.bool)
        for mask in mask_mods:
            result = join(result, mask(b, h, q_idx, kv_idx))
        return result

    return joined_mask


def mod_kind(mod: Callable[..., Any]) -> int:
    """How many arguments it takes: 5 for a score_mod, 4 for a mask_mod."""
    kind = flex._get_mod_type(mod)
    return 5 if kind == flex._ModificationType.SCORE_MOD else 4


class BoundMask:
    """A mask_mod with the tensors and numbers that it reads."""

    __slots__ = ("expr", "captures", "params", "version")

    def __init__(self, mask_mod: MaskMod, device: torch.device) -> None:
        mods = Mods(device)
        self.expr = mods.mask(mask_mod)
        self.captures, self.params = mods.captures, mods.params
        self.version = next(_versions)


def ordered(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """From [..., rows, columns] of bool: how many a row, and which; the others follow, ascending."""
    counts = blocks.sum(dim=-1, dtype=torch.int32)
    columns = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True).to(torch.int32)
    return counts, columns


def dense(counts: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """The inverse of ordered()."""
    listed = torch.arange(columns.shape[-1], device=columns.device) < counts.unsqueeze(-1)
    blocks = torch.zeros((*columns.shape[:-1], columns.shape[-1] + 1), dtype=torch.bool, device=columns.device)
    inside = torch.where(listed, columns.long(), columns.shape[-1])
    return blocks.scatter_(-1, inside, True)[..., :-1]


class BlockMask(flex.BlockMask):  # type: ignore[misc]
    """Which blocks of the scores attend. torch's BlockMask, with all of its attributes.

    create_block_mask() makes one that holds its mask_mod as an expression: attention uses that, with blocks of the size
    that suits its kernel. The lists (kv_num_blocks, kv_indices, ...) are computed when they are first read, block by
    block from intervals, never from a dense mask. One that is made of lists is taken at their word: blocks that are not
    listed do not attend, and full blocks attend whole.
    """

    def __init__(self, seq_lengths: tuple[int, int], kv_num_blocks: torch.Tensor, kv_indices: torch.Tensor,
                 full_kv_num_blocks: torch.Tensor | None, full_kv_indices: torch.Tensor | None,
                 q_num_blocks: torch.Tensor | None, q_indices: torch.Tensor | None,
                 full_q_num_blocks: torch.Tensor | None, full_q_indices: torch.Tensor | None,
                 BLOCK_SIZE: tuple[int, int], mask_mod: MaskMod, **later: Any) -> None:
        self._lazy: LazyLists | None = None
        super().__init__(seq_lengths, kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices, q_num_blocks,
                         q_indices, full_q_num_blocks, full_q_indices, BLOCK_SIZE, mask_mod)
        for name, value in later.items():  # what torch adds after 2.11
            setattr(self, name, value)

    @classmethod
    def _of(cls, lazy: "LazyLists", mask_mod: MaskMod) -> "BlockMask":
        made = cls.__new__(cls)
        made._lazy = lazy
        made.seq_lengths = lazy.lengths
        made.BLOCK_SIZE = lazy.block
        made.mask_mod = mask_mod
        return made

    def __getattr__(self, name: str) -> Any:
        lazy = self.__dict__.get("_lazy")
        if lazy is not None and name in flex.BlockMask._TENSOR_ATTRS:
            self.__dict__.update(lazy.lists())
            return self.__dict__[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("mask_mod", "seq_lengths", "BLOCK_SIZE", *flex.BlockMask._TENSOR_ATTRS):
            lazy = self.__dict__.get("_lazy")
            if lazy is not None and name in self.__dict__:  # changed by hand: from here on, what the lists say
                self.__dict__.update({**lazy.lists(), **{k: v for k, v in self.__dict__.items()}})
                self.__dict__["_lazy"] = None
            self.__dict__.pop("_heddle", None)
        self.__dict__[name] = value

    @property
    def shape(self) -> tuple[int, ...]:
        if self._lazy is not None:
            return self._lazy.batch, self._lazy.heads, *self.seq_lengths
        return super().shape  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device:
        return self._lazy.device if self._lazy is not None else self.kv_num_blocks.device

    @classmethod
    def from_kv_blocks(cls, kv_num_blocks: torch.Tensor, kv_indices: torch.Tensor,
                       full_kv_num_blocks: torch.Tensor | None = None, full_kv_indices: torch.Tensor | None = None,
                       BLOCK_SIZE: int | tuple[int, int] = DEFAULT_BLOCK, mask_mod: MaskMod | None = None,
                       seq_lengths: tuple[int, int] | None = None, compute_q_blocks: bool = True,
                       **later: Any) -> "BlockMask":
        """From lists of blocks. Shapes [B, H, rows] and [B, H, rows, columns], i32."""
        if kv_indices.dim() < 2:
            raise RuntimeError("BlockMask must have at least 2 dimensions")
        if (full_kv_num_blocks is None) != (full_kv_indices is None):
            raise AssertionError("full_kv_num_blocks and full_kv_indices must be both provided or omitted")
        block = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
        if seq_lengths is None:
            seq_lengths = (kv_indices.shape[-2] * block[0], kv_indices.shape[-1] * block[1])
        rows: list[torch.Tensor | None] = [None] * 4
        if compute_q_blocks:
            rows[:2] = ordered(dense(kv_num_blocks, kv_indices).transpose(-2, -1))
            if full_kv_num_blocks is not None and full_kv_indices is not None:
                rows[2:] = ordered(dense(full_kv_num_blocks, full_kv_indices).transpose(-2, -1))
        return cls(seq_lengths, kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices, *rows,
                   BLOCK_SIZE=block, mask_mod=noop_mask if mask_mod is None else mask_mod)

    def __getitem__(self, index: Any) -> "BlockMask":
        sliced = super().__getitem__(index)
        return type(self)(*(getattr(sliced, name) for name in ("seq_lengths", *flex.BlockMask._TENSOR_ATTRS, "BLOCK_SIZE",
                                                               "mask_mod")))

    def _adjust(self, new_q_len: int, new_kv_len: int) -> "BlockMask":
        """Crops to the upper left. Exact for any length."""
        if self._lazy is not None:
            return BlockMask._of(self._lazy.cropped(new_q_len, new_kv_len), self.mask_mod)
        rows, columns = -(-new_q_len // self.BLOCK_SIZE[0]), -(-new_kv_len // self.BLOCK_SIZE[1])

        def cropped(counts: torch.Tensor | None, indices: torch.Tensor | None) -> Any:
            if counts is None or indices is None:
                return None, None
            return ordered(dense(counts, indices)[..., :rows, :columns])

        return type(self).from_kv_blocks(
            *cropped(self.kv_num_blocks, self.kv_indices), *cropped(self.full_kv_num_blocks, self.full_kv_indices),
            BLOCK_SIZE=self.BLOCK_SIZE, mask_mod=self.mask_mod, seq_lengths=(new_q_len, new_kv_len),
            compute_q_blocks=self.q_indices is not None)

    def to(self, device: torch.device | str) -> "BlockMask":
        """The lists on another device. The tensors that mask_mod reads stay where they are."""
        device = torch.device(device)
        if self._lazy is not None and self._lazy.device == device:
            return self
        moved = [None if x is None else x.to(device)
                 for x in (getattr(self, name) for name in flex.BlockMask._TENSOR_ATTRS)]
        return type(self)(self.seq_lengths, *moved, self.BLOCK_SIZE, self.mask_mod)

    def _repr_svg_(self) -> str:
        return self._core_mask().svg()

    def _core_mask(self, batch: int | None = None, heads: int | None = None) -> Any:
        return core_mask(self, self.shape[0] if batch is None else batch, self.shape[1] if heads is None else heads)


class LazyLists:
    """What create_block_mask was asked for, and the lists once they are made."""

    def __init__(self, mask: BoundMask, batch: int, heads: int, lengths: tuple[int, int], block: tuple[int, int],
                 device: torch.device) -> None:
        self.mask, self.batch, self.heads, self.lengths, self.block, self.device = (
            mask, batch, heads, lengths, block, device)
        self._lists: dict[str, torch.Tensor] | None = None

    def cropped(self, q_len: int, kv_len: int) -> "LazyLists":
        if q_len > self.lengths[0] or kv_len > self.lengths[1]:
            raise ValueError(f"_adjust to {q_len} x {kv_len} of a mask of {self.lengths[0]} x {self.lengths[1]}: it crops")
        return LazyLists(self.mask, self.batch, self.heads, (q_len, kv_len), self.block, self.device)

    def core(self) -> heddle.BlockMask:
        captures = {name: x.detach().cpu() for name, x in self.mask.captures.items()}
        return heddle.BlockMask.build(
            self.mask.expr, *self.lengths, batch=self.batch, heads=self.heads, block=self.block, captures=captures,
            params=self.mask.params, clamp_reads=True)

    def lists(self) -> dict[str, torch.Tensor]:
        if self._lists is None:
            made = [torch.from_numpy(x) for x in self.core().to_lists()]
            shape = (self.batch, self.heads, -1, -1)
            partial, full = dense(made[0], made[1]).expand(shape), dense(made[2], made[3]).expand(shape)
            ragged = torch.zeros_like(full)  # torch counts a block that ends past the scores as partial
            ragged[..., -1:, :] = self.lengths[0] % self.block[0] != 0
            ragged[..., :, -1:] |= self.lengths[1] % self.block[1] != 0
            partial, full = (partial | full & ragged).to(self.device), (full & ~ragged).to(self.device)
            pairs = {"kv": partial, "full_kv": full, "q": partial.transpose(-2, -1), "full_q": full.transpose(-2, -1)}
            self._lists = {}
            for name, blocks in pairs.items():
                self._lists[f"{name}_num_blocks"], self._lists[f"{name}_indices"] = ordered(blocks)
        return self._lists


def core_mask(mask: Any, batch: int, heads: int) -> Any:
    """The library's block mask of lists, for scores of [batch, heads]. Made once for an object."""
    kept = mask.__dict__.get("_heddle")
    if kept is None or kept[0] != (batch, heads):
        if isinstance(mask, BlockMask) and mask._lazy is not None:
            made = mask._lazy.core()
        else:
            made = of_lists(mask, batch, heads)
        kept = mask.__dict__["_heddle"] = (batch, heads), made, bound_mask(mask)
    return kept[1]


def bound_mask(mask: Any) -> BoundMask:
    if isinstance(mask, BlockMask) and mask._lazy is not None:
        return mask._lazy.mask
    return BoundMask(mask.mask_mod, mask.kv_num_blocks.device)


def of_lists(mask: Any, batch: int, heads: int) -> heddle.BlockMask:
    def flat(x: torch.Tensor | None, rank: int) -> Any:
        if x is None:
            return None
        x = x.detach().cpu().to(torch.int32)
        return x.reshape((1,) * (rank - x.dim()) + tuple(x.shape)).contiguous().numpy()

    return heddle.BlockMask.from_lists(
        flat(mask.kv_num_blocks, 3), flat(mask.kv_indices, 4), flat(mask.full_kv_num_blocks, 3),
        flat(mask.full_kv_indices, 4), q_len=mask.seq_lengths[0], kv_len=mask.seq_lengths[1], batch=batch, heads=heads,
        block=tuple(mask.BLOCK_SIZE), mask_mod=bound_mask(mask).expr)


def create_mask(mod_fn: Callable[..., Any], B: int | None, H: int | None, Q_LEN: int, KV_LEN: int,
                device: Any = None) -> torch.Tensor:
    """The dense mask [B, H, Q_LEN, KV_LEN] of a mask_mod, or of a score_mod where its result is not -inf."""
    return flex.create_mask(mod_fn, B, H, Q_LEN, KV_LEN, default_device(device))  # type: ignore[no-any-return]


def default_device(device: Any) -> torch.device:
    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def create_block_mask(mask_mod: MaskMod, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None,
                      BLOCK_SIZE: int | tuple[int, int] = DEFAULT_BLOCK, _compile: bool = False,
                      separate_full_blocks: bool = True, **later: Any) -> BlockMask:
    """The block mask of mask_mod(b, h, q_idx, kv_idx) over scores [B, H, Q_LEN, KV_LEN].

    B and H may be None: all entries share the blocks. Tensors that mask_mod reads are read again by each attention that
    uses the block mask; make another one after you change them. `_compile` changes nothing.

    >>> import torch, heddle.torch
    >>> heddle.torch.create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 512, 512, "cpu").sparsity()
    37.5
    """
    for name in later:
        if name not in ("compute_dq_write_order", "dq_kv_order"):
            raise TypeError(f"create_block_mask() got an unexpected keyword argument '{name}'")
    if mod_kind(mask_mod) != 4:
        raise AssertionError(f"create-block_mask requires a mask_mod function! Got {mask_mod}")
    if _compile:
        warnings.warn("_compile of create_block_mask changes nothing here", DeprecationWarning, stacklevel=2)
    block = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else tuple(BLOCK_SIZE)
    where = default_device(device)
    try:
        bound = BoundMask(mask_mod, where)
    except NotImplementedError:
        if not _dense.is_allowed():
            raise
        bound = BoundMask(_dense.mask(mask_mod, B, H, Q_LEN, KV_LEN, device=where), where)
    lazy = LazyLists(bound, 1 if B is None else B, 1 if H is None else H, (Q_LEN, KV_LEN), block, where)
    made = BlockMask._of(lazy, mask_mod)
    if not separate_full_blocks:
        return joined_blocks(made)
    return made


def joined_blocks(mask: BlockMask) -> BlockMask:
    blocks = mask.to_dense().bool()
    return BlockMask.from_kv_blocks(*ordered(blocks), BLOCK_SIZE=mask.BLOCK_SIZE, mask_mod=mask.mask_mod,
                                    seq_lengths=mask.seq_lengths)
