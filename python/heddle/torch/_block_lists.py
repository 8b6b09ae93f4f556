"""The lists of blocks that torch's block masks have: from dense blocks, and from the expression of a mask."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import flex_attention as flex

import heddle

from .. import _core
from .._dtypes import dtype_name
from . import _direct
from ._call import parsed, type_of
from ._exact import exact, numbers_of_i32
from ._tracing.kept import Mods

MaskMod = Callable[..., torch.Tensor]
Blocks = tuple[torch.Tensor | None, torch.Tensor | None]  # counts and indices
Versions = list[tuple[torch.Tensor | None, int | bytes]]  # tensors, and what changes with their content
LARGE_BLOCK = 1 << 30  # torch's block size for no mask at all
LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices",
         "full_q_num_blocks", "full_q_indices")
_versions = itertools.count(1)


def default_device(device: Any) -> torch.device:
    """torch's: the accelerator if none is given, and the current GPU if its index is not. The CPU where torch was built for
    an accelerator that is not there: torch's own has an error of the driver's then."""
    if device is None:
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    wanted = torch.device("cpu" if device is None else device)
    if wanted.type == "cuda" and wanted.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return wanted


def versions(*tensors: torch.Tensor | None) -> Versions:
    return [(x, 0 if x is None else version_of(x)) for x in tensors]


def version_of(x: torch.Tensor) -> int | bytes:
    """A value that changes when x is written in place: its version. Inference tensors count no writes and have bytes: on
    the CPU their content; on a GPU, where reading would wait, a write goes unnoticed."""
    if not x.is_inference():
        return x._version
    return x.resolve_neg().contiguous().numpy().tobytes() if x.device.type == "cpu" else b""


def same(one: Versions, other: Versions) -> bool:
    return len(one) == len(other) and all(x is y and v == w for (x, v), (y, w) in zip(one, other))


def watched(mask: flex.BlockMask, lists: Versions) -> list[tuple[str, Any, Any]]:
    """The attributes that a repeated call compares by identity, and of tensors their versions. Empty where that says too
    little: of lists made under torch.inference_mode(), which count no writes, and of sizes that may change in place."""
    plain = [(name, mask.__dict__.get(name), None) for name in ("mask_mod", "seq_lengths", "BLOCK_SIZE")]
    if any(type(value) is not tuple for _, value, _ in plain[1:]) or any(type(version) is not int for _, version in lists):
        return []
    return plain + [(name, x, None if x is None else version) for name, (x, version) in zip(LISTS, lists)]


def lists_of(mask: flex.BlockMask) -> list[torch.Tensor]:
    """Counts and indices of its partial blocks, and those of its full blocks if it has any."""
    lists = mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices
    return [x for x in lists if x is not None]


def ordered(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The lists of blocks [..., rows, columns], bool: counts [..., rows], and indices [..., rows, columns].

    In a row of indices the blocks that attend come first, then the others, both ascending.
    """
    counts = blocks.sum(dim=-1, dtype=torch.int32)
    columns = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True).to(torch.int32)
    return counts, columns


def dense(counts: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """The inverse of ordered(). An entry of -1 is the block of a page that is not assigned."""
    listed = (torch.arange(columns.shape[-1], device=columns.device) < counts.unsqueeze(-1)) & (columns != -1)
    blocks = torch.zeros((*columns.shape[:-1], columns.shape[-1] + 1), dtype=torch.bool, device=columns.device)
    inside = torch.where(listed, columns.long(), columns.shape[-1])
    return blocks.scatter_(-1, inside, True)[..., :-1]


def of_columns(counts: torch.Tensor | None, columns: torch.Tensor | None) -> Blocks:
    """The lists of the columns from those of the rows."""
    if counts is None or columns is None:
        return None, None
    return ordered(dense(counts, columns).transpose(-2, -1))


class BoundMask:
    """A mask_mod with the tensors and numbers that it reads."""

    __slots__ = ("expr", "captures", "params", "version", "_read")

    def __init__(self, mask_mod: MaskMod, device: torch.device) -> None:
        mods = Mods(device)
        self._set(mods.mask(mask_mod), mods.captures, mods.params)

    def _set(self, expr: Any, captures: dict[str, torch.Tensor], params: dict[str, Any]) -> None:
        self.expr, self.captures, self.params = expr, captures, params
        self.version = next(_versions) if captures else 0  # plans know an expression by itself
        self._read: Versions = [
            (x, 0 if x.device.type == "cpu" or x.is_inference() else x._version) for x in captures.values()]

    def _types(self) -> tuple[Any, Any]:
        """The types of captures and params, as parsed() takes them."""
        return (tuple([(name, (dtype_name(x), x.dim())) for name, x in self.captures.items()]),
                tuple([(name, type_of(number)) for name, number in self.params.items()]))

    def says_as(self, other: "BoundMask") -> bool:
        """Whether both have the same expression."""
        return self.expr is other.expr or str(self.expr) == str(other.expr) and self._types() == other._types()

    def reads_as(self, other: "BoundMask") -> bool:
        """Whether both read the same tensors and numbers, and the tensors on a GPU have not changed."""
        return self.params == other.params and same(self._read, other._read)

    def __deepcopy__(self, memo: Any) -> "BoundMask":
        return self  # as functions, which share what they read

    def __reduce__(self) -> Any:
        return restored, (str(self.expr), self.captures, self.params)


class LateMask(BoundMask):
    """A mask_mod that is traced when it is first read: for torch.compile, which makes the object and cannot trace."""

    __slots__ = ("mask_mod", "device")

    def __init__(self, mask_mod: MaskMod, device: torch.device) -> None:
        self.mask_mod, self.device = mask_mod, device

    def __getattr__(self, name: str) -> Any:
        if name not in BoundMask.__slots__:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        BoundMask.__init__(self, self.mask_mod, self.device)
        return getattr(self, name)


def restored(text: str, captures: dict[str, torch.Tensor], params: dict[str, Any]) -> BoundMask:
    """A BoundMask from a pickle: expressions are pickled as text."""
    made = BoundMask.__new__(BoundMask)
    made._set(None, captures, params)
    made.expr = parsed(text, *made._types())
    return made


class LazyLists:
    """The arguments of create_block_mask, and the lists once they are made."""

    def __init__(self, mask: BoundMask, batch: int, heads: int, lengths: tuple[int, int], block: tuple[int, int],
                 device: torch.device) -> None:
        self.mask, self.batch, self.heads, self.lengths, self.block, self.device = (
            mask, batch, heads, lengths, block, device)
        self._lists: dict[str, torch.Tensor] | None = None
        self._versions: Versions = []
        self._direct: _core.BoundMod | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lists": None, "_versions": [], "_direct": None}

    def are_changed(self) -> bool:
        """Whether a list was changed in place after it was made."""
        return any(x is not None and x._version != version for x, version in self._versions)

    def cropped(self, q_len: int, kv_len: int) -> "LazyLists":
        if q_len > self.lengths[0] or kv_len > self.lengths[1]:
            old = f"{self.lengths[0]} x {self.lengths[1]}"
            raise ValueError(f"_adjust to {q_len} x {kv_len} of a mask of {old}; sizes up to these are accepted")
        return LazyLists(self.mask, self.batch, self.heads, (q_len, kv_len), self.block, self.device)

    def _exact(self) -> Any:
        """The mask with integers of 64 bits."""
        return exact(self.mask.expr, (self.batch, self.heads, *self.lengths), self.mask.params)

    def core(self) -> heddle.BlockMask:
        captures = {name: x.detach().cpu() for name, x in self.mask.captures.items()}
        return heddle.BlockMask.build(
            self._exact(), *self.lengths, batch=self.batch, heads=self.heads, block=self.block, captures=captures,
            params=numbers_of_i32(self.mask.params), clamp_reads=True)

    def sparsity(self) -> float:
        """As torch counts it from the lists."""
        counts = self.core().statistics()
        computed = (counts["full"] + counts["partial"]) * self.block[0] * self.block[1]
        return 100 * (1 - computed / (self.batch * self.heads * self.lengths[0] * self.lengths[1]))

    def direct(self) -> _core.BoundMod | None:
        """The mask for _direct.attend(), made once. None if that does not take it."""
        if self._direct is not None:
            return self._direct
        scope = self.batch, self.heads, *self.lengths
        is_known = all(type(extent) is int for extent in scope)  # not what torch.export keeps open
        if self.block[0] < LARGE_BLOCK and is_known:
            bound = self.mask
            if self._exact() is bound.expr:  # C++ hands its mods on to Python, which makes them exact
                self._direct = _direct.bound(bound.expr, bound.captures, bound.params, bound.version, scope, self.device)
        return self._direct

    def lists(self) -> dict[str, torch.Tensor]:
        if self._lists is None:
            with torch.inference_mode(False), torch.no_grad():  # inference tensors do not count their changes
                self._lists = self._made()
            self._versions = versions(*self._lists.values())
        return self._lists

    def _made(self) -> dict[str, torch.Tensor]:
        made = [torch.from_numpy(x) for x in self.core().to_lists()]
        shape = (self.batch, self.heads, -1, -1)
        partial, full = dense(made[0], made[1]).expand(shape), dense(made[2], made[3]).expand(shape)
        ragged = torch.zeros_like(full)  # torch counts a block that ends past the scores as partial
        ragged[..., -1:, :] = self.lengths[0] % self.block[0] != 0
        ragged[..., :, -1:] |= self.lengths[1] % self.block[1] != 0
        partial, full = (partial | full & ragged).to(self.device), (full & ~ragged).to(self.device)
        pairs = {"kv": partial, "full_kv": full, "q": partial.transpose(-2, -1), "full_q": full.transpose(-2, -1)}
        lists = {}
        for name, blocks in pairs.items():
            lists[f"{name}_num_blocks"], lists[f"{name}_indices"] = ordered(blocks)
        return lists
