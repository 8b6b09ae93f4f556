"""Decoding with a KV cache that several ranks hold: pages are dealt in turn, and each rank's partial results are
merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest

from .. import _core
from . import _eager, _forms, _private_names
from ._call import Call
from ._context_group import agree, check_device, ranks_of
from ._context_masks import with_indices
from ._flex import check_inputs
from ._inputs import is_plain, refuse_others
from ._results import empty_lse, ordered_out
from ._tracing.kept import Mods

STATED = ("the cache and the shapes", "mods and options")


class ContextCache:
    """A KV cache that is distributed over the ranks of a group page by page: row i of a sequence is on rank (i // page)
    % ranks. Ranks hold equal shares as the sequences grow. Sequences may have different lengths. All ranks must make
    the cache and call its functions, with the same arguments.

    - batch, kv_heads, capacity: extents of the whole cache; capacity in rows of a sequence.
    - dim, v_dim: head dimensions of keys and of values (None: dim).
    - group: a ProcessGroup, a DeviceMesh of one dimension, or None: all processes.
    - page: rows; on GPUs a multiple of 16.
    - checks: "calls": each call compares its arguments with all ranks; "first": only the first call does. None: "calls"
      on the CPU, "first" on a GPU.

    `key` [batch, kv_heads, rows, dim] and `value` are this rank's share. `lengths` has the number of filled rows of
    each sequence, over all ranks, and `length` is the largest of them.

    Raises ValueError for extents below 1, and RuntimeError without a process group.

    >>> import torch, torch.distributed as dist
    >>> from heddle.torch import context_parallel
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> cache = context_parallel.ContextCache(batch=2, kv_heads=2, capacity=64, dim=8)
    >>> prompt = torch.randn(3, 2, 2, 5, 8)
    >>> cache.append(*prompt[1:], counts=[5, 2])  # the second sequence has two rows
    >>> out = cache.attention(prompt[0], counts=[5, 2])
    >>> for step in range(3):
    ...     q, k, v = torch.randn(3, 2, 2, 1, 8)
    ...     cache.append(k, v)
    ...     out = cache.attention(q)
    >>> cache.lengths, out.shape
    ((8, 5), torch.Size([2, 2, 1, 8]))
    >>> dist.destroy_process_group()
    """

    def __init__(self, batch: int, kv_heads: int, capacity: int, dim: int, v_dim: int | None = None, *,
                 group: Any = None, page: int = 128, dtype: torch.dtype = torch.float32,
                 device: torch.device | str = "cpu", checks: str | None = None) -> None:
        given = {"batch": batch, "kv_heads": kv_heads, "capacity": capacity, "dim": dim, "page": page}
        for name, extent in given.items():
            if extent < 1:
                raise ValueError(f"{name} is {extent}; 1 and more are accepted")
        if checks not in (None, "calls", "first"):
            raise ValueError(f"checks is {checks!r}; 'calls', 'first' and None are accepted")
        self.ranks = ranks_of(group)
        where = torch.device(device)
        check_device(self.ranks, where)
        self.capacity, self.page, self.lengths = capacity, page, (0,) * batch
        self.checks = checks or ("calls" if where.type == "cpu" else "first")
        self._calls = 0
        rows = self.rows(capacity)
        self.key = torch.zeros(batch, kv_heads, rows, dim, dtype=dtype, device=where)
        self.value = torch.zeros(batch, kv_heads, rows, dim if v_dim is None else v_dim, dtype=dtype, device=where)

    @property
    def length(self) -> int:
        return max(self.lengths)

    def rows(self, length: int) -> int:
        """How many of a sequence's first `length` rows this rank holds."""
        turns, left = divmod(length, self.page * self.ranks.size)
        return turns * self.page + min(self.page, max(0, left - self.ranks.rank * self.page))

    def append(self, key: torch.Tensor, value: torch.Tensor, counts: Sequence[int] | None = None) -> None:
        """Appends new rows, key [batch, kv_heads, n, dim] and value, which each rank passes whole: each rank keeps its
        own rows. counts: the number of valid rows of each sequence, the first of the n; None: all. It does not
        communicate.

        Raises ValueError for other shapes and dtypes, and if the rows do not fit.
        """
        new = key.shape[2] if key.dim() == 4 else -1
        for name, x, cache in (("key", key, self.key), ("value", value, self.value)):
            wanted = (*cache.shape[:2], new, cache.shape[3])
            if tuple(x.shape) != wanted or x.dtype != cache.dtype or x.device != cache.device:
                raise ValueError(f"{name} is {x.dtype} {list(x.shape)} on {x.device}; {cache.dtype} {list(wanted)} on "
                                 f"{cache.device} is accepted, with as many rows in both")
        added = self._counts(counts, new)
        for sequence, (filled, more) in enumerate(zip(self.lengths, added)):
            if filled + more > self.capacity:
                raise ValueError(f"key has {more} rows for sequence {sequence}, and the cache has room for "
                                 f"{self.capacity - filled} of its {self.capacity}")
        of, at = self._own_rows(added)
        sequences = of[0].to(key.device)
        taken, places = of[1].to(key.device), at.to(key.device)
        self.key[sequences, :, places] = key.detach()[sequences, :, taken]
        self.value[sequences, :, places] = value.detach()[sequences, :, taken]
        self.lengths = tuple(filled + more for filled, more in zip(self.lengths, added))

    def _own_rows(self, added: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Of new rows: the sequence and the number [2, rows] of those that this rank holds, and their places."""
        filled = torch.tensor(self.lengths)[:, None]
        number = torch.arange(max(added))[None]
        position = filled + number
        own = (number < torch.tensor(added)[:, None]) & (position // self.page % self.ranks.size == self.ranks.rank)
        place = position // (self.page * self.ranks.size) * self.page + position % self.page
        return own.nonzero().T, place[own]

    def _numbers(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.key.device)

    def _counts(self, counts: Sequence[int] | None, rows: int) -> list[int]:
        batch = self.key.shape[0]
        if counts is None:
            return [rows] * batch
        found = [int(count) for count in counts]
        if len(found) != batch or any(not 0 <= count <= rows for count in found):
            raise ValueError(f"counts is {found}; {batch} numbers of 0 to {rows} are accepted")
        return found

    def truncate(self, lengths: Sequence[int]) -> None:
        """Drops the rows of each sequence from lengths[sequence] on: rejected draft tokens, or with 0 a finished
        sequence, so that another one can take its place. It does not communicate.

        Raises ValueError unless each sequence has one length, of at most its current length.
        """
        kept = [int(length) for length in lengths]
        if len(kept) != len(self.lengths) or any(not 0 <= new <= old for new, old in zip(kept, self.lengths)):
            raise ValueError(f"lengths is {kept}; a number from 0 to the present one is accepted for each of "
                             f"{list(self.lengths)}")
        self.lengths = tuple(kept)

    def attention(
        self, query: torch.Tensor, *, causal: bool = True, score_mod: Callable[..., torch.Tensor] | None = None,
        mask_mod: Callable[..., torch.Tensor] | None = None, scale: float | None = None, enable_gqa: bool = False,
        sinks: torch.Tensor | None = None, return_aux: AuxRequest | None = None, counts: Sequence[int] | None = None,
    ) -> Any:
        """Attention of the last queries [batch, Hq, n, dim], which each rank passes whole, over all rows: query i of a
        sequence has the position lengths[sequence] - n + i. Each rank attends to its share; o and lse of all ranks, in
        f32 (f64 for f64), are gathered and merged in the order of the ranks, so the result has the same bits on each of
        them.

        causal, score_mod, mask_mod: in the indices of the whole sequence. sinks [Hq]. return_aux: AuxRequest(lse=True);
        the result is then (out, AuxOutput). counts: the number of queries of each sequence, the first of the n rows,
        which end at the end of the sequence; later rows give 0. None: all. Returns out [batch, Hq, n, dim of values] in
        the query's dtype. Has no gradient.

        Raises ValueError for shapes that do not fit the cache and on each rank if ranks disagree, RuntimeError if
        another rank raised, NotImplementedError if an input requires a gradient and for mods without an expression.
        """
        call, error = None, None
        try:
            call = self._call(query, causal, score_mod, mask_mod, scale, enable_gqa, sinks, counts)
        except Exception as caught:
            error = caught
        self._compare(call, None if counts is None else list(counts), error)
        assert call is not None
        out, lse = self._merged(call)
        if return_aux is None:
            return out
        return out, AuxOutput(lse=lse if return_aux.lse else None, max_scores=None)

    def _call(self, query: torch.Tensor, causal: bool, score_mod: Any, mask_mod: Any, scale: float | None,
              enable_gqa: bool, sinks: torch.Tensor | None, counts: Sequence[int] | None) -> Call:
        refuse_others(query=query)
        if not is_plain(query):
            raise NotImplementedError("query is not a plain tensor, or a transform or a mode is active; a plain "
                                      "tensor is accepted")
        on_gpu = query.device.type == "cuda"
        # On a GPU lengths are read there, over all of the cache: a plan then serves later steps.
        rows = self.rows(self.capacity if on_gpu else self.length)
        call = Call(query, self.key[:, :, :rows], self.value[:, :, :rows], None if scale is None else float(scale),
                    with_lse=True)
        check_inputs(call, score_mod, None, enable_gqa)
        if query.shape[0] != self.key.shape[0] or query.dtype != self.key.dtype:
            raise ValueError(f"query is {query.dtype} {list(query.shape)}; {self.key.dtype} and batch "
                             f"{self.key.shape[0]}, as the cache has, are accepted")
        queries = self._counts(counts, query.shape[2])
        for sequence, (filled, count) in enumerate(zip(self.lengths, queries)):
            if count > filled:
                raise ValueError(f"query has {count} rows of sequence {sequence}; at most {filled}, as the cache has, "
                                 "are accepted")
        call.options["q_start"] = self._numbers([filled - count for filled, count in zip(self.lengths, queries)])
        if on_gpu or len(set(self.lengths)) > 1:
            call.options["kv_lengths"] = self._numbers([self.rows(filled) for filled in self.lengths])
        if len(set(queries)) > 1 or queries[0] != query.shape[2]:
            call.options["q_lengths"] = self._numbers(queries)
        mods = Mods(query.device)
        call.score = None if score_mod is None else str(mods.score(score_mod))
        masks = [_forms.CAUSAL] if causal else []
        masks += [] if mask_mod is None else [str(mods.mask(mask_mod))]
        call.captures, call.params, call.clamps = mods.captures, mods.params, bool(mods.captures)
        names = {"kv_idx": "(kv_idx // _page * _stride + _first_key + kv_idx % _page)"}
        call.mask = with_indices(_forms.all_of(*masks), names) if masks else None
        call.score = None if call.score is None else with_indices(call.score, names)
        call.params.update(_page=self.page, _stride=self.page * self.ranks.size,
                           _first_key=self.page * self.ranks.rank)
        for text in (call.score, call.mask):
            if text is not None:
                call.expression(text)  # raises if global indices make it deeper than an expression may be
        if sinks is not None:
            if tuple(sinks.shape) != (query.shape[1],):
                raise ValueError(f"sinks is {list(sinks.shape)}; [{query.shape[1]}] is accepted")
            if self.ranks.rank == 0:  # it is one key, and belongs to one rank
                call.options["sinks"] = sinks.detach().to(torch.promote_types(query.dtype, torch.float32))
        learned = [*call.tensors(), *([] if sinks is None else [sinks])]
        if torch.is_grad_enabled() and any(x.requires_grad for x in learned):
            raise NotImplementedError("an input requires a gradient, and a cache has no backward: call under "
                                      "torch.no_grad()")
        return call

    def _compare(self, call: Call | None, counts: Sequence[int] | None, error: Exception | None) -> None:
        self._calls += 1
        if self.checks == "first" and self._calls > 1:
            if error is not None:
                raise error
            return
        stated: tuple[Any, ...] = (None, None)
        if call is not None:
            params = {name: number for name, number in call.params.items() if name != "_first_key"}
            extents = (tuple(call.query.shape), tuple(self.key.shape[:2]), self.value.shape[3], self.lengths,
                       self.capacity, counts)
            stated = ((extents, str(call.query.dtype)), (call.score, call.mask, sorted(params.items()), call.scale))
        agree(self.ranks, list(zip(STATED, stated)), error)

    def _merged(self, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        query, dim = call.query, call.value.shape[3]
        wide = torch.promote_types(query.dtype, torch.float32)
        batch, heads, count, _ = query.shape
        # o and lse side by side: one collective.
        own = torch.empty(batch, heads, count, dim + 1, dtype=wide, device=query.device)
        lse = empty_lse(query)
        _eager.run(call.changed(out=own[..., :dim], lse=lse))
        own[..., dim] = lse
        parts = own.new_empty(self.ranks.size, *own.shape)
        # Flat, because Gloo wants one shape.
        dist.all_gather_into_tensor(parts.view(-1), own.view(-1), group=self.ranks.group)
        out = ordered_out(query, dim, query.dtype)
        lses = [part[..., dim].contiguous() for part in parts]
        stream = _private_names.stream_of(query.device.index) if query.device.type == "cuda" else 0
        _core.merge_states([part[..., :dim] for part in parts], lses, out, lse, True, stream)
        return out, lse
