"""Rows of keys and values on their way to the ranks whose queries read them, and their gradients on the way back.

Keys and values stand side by side, [rows, B, heads, D + Dv], so that a rank's rows for another one are one piece of
memory, and nothing is unpacked: the kernels read the buffer through strides.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ._context_group import Ranks
from ._context_plan import Exchange


class Moving:
    """A buffer, part of which is still on its way. Holds what is sent until it has arrived."""

    def __init__(self, rows: torch.Tensor, work: Any, *held: torch.Tensor) -> None:
        self._rows, self._work, self._held = rows, work, held

    def arrived(self) -> torch.Tensor:
        """The whole buffer. On a GPU the current stream waits, on the CPU this thread."""
        if self._work is not None:
            self._work.wait()
            self._work, self._held = None, ()
        return self._rows


def all_to_all(ranks: Ranks, into: torch.Tensor, into_counts: list[int], rows: torch.Tensor, counts: list[int]) -> Any:
    """Starts the collective: pieces of `rows` go to the ranks in turn, theirs come into `into`. Bytes are carried, so
    that every dtype is."""
    return dist.all_to_all_single(as_bytes(into), as_bytes(rows), into_counts, counts, group=ranks.group, async_op=True)


def as_bytes(rows: torch.Tensor) -> torch.Tensor:
    """The memory of contiguous rows, [rows, bytes of a row]."""
    return (rows.unsqueeze(1) if rows.dim() == 1 else rows).view(torch.uint8)


def send_keys(ranks: Ranks, exchange: Exchange, key: torch.Tensor, value: torch.Tensor) -> Moving:
    """Starts the exchange of keys [B, heads, own rows, D] and values. The buffer has the rows in the exchange's order.
    All ranks call it, also those with nothing to send."""
    batch, heads, own, dim = key.shape
    rows = key.new_empty(own + sum(exchange.received), batch, heads, dim + value.shape[3])
    for of, to in exchange.own:
        rows[to, ..., :dim].copy_(key[:, :, of].permute(2, 0, 1, 3))
        rows[to, ..., dim:].copy_(value[:, :, of].permute(2, 0, 1, 3))
    sent = rows.index_select(0, exchange.sent_places)
    return Moving(rows, all_to_all(ranks, rows[exchange.others], exchange.received, sent, exchange.sent), sent)


def send_gradients(ranks: Ranks, exchange: Exchange, rows: torch.Tensor) -> Moving:
    """Starts the way back: gradients of received rows go to their owners. The buffer has what comes for own rows, rank
    by rank, in the order of `exchange.sent_places`."""
    into = rows.new_empty(sum(exchange.sent), *rows.shape[1:])
    return Moving(into, all_to_all(ranks, into, exchange.sent, rows[exchange.others], exchange.received), rows)


def add_gradients(exchange: Exchange, rows: torch.Tensor, came: torch.Tensor) -> None:
    """Adds what has come for own rows to a buffer of gradients, in the order of the ranks: the same bits whenever it
    came."""
    for of, to in exchange.sent_runs:
        rows[to] += came[of]
