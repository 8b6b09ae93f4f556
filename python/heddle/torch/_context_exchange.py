"""Rows of keys and values on their way to the ranks whose queries read them, and their gradients on the way back.

Keys and values stand side by side, [rows, B, heads, D + Dv], so that a rank's rows for another one are one piece of
memory, and nothing is unpacked: the kernels read the buffer through strides.

Over several hosts rows travel in two steps: across hosts, once to each host that reads them, then within the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


def all_to_all(group: Any, into: torch.Tensor, into_counts: list[int], rows: torch.Tensor, counts: list[int]) -> Any:
    """Starts the collective: pieces of `rows` go to the group's ranks in turn, theirs come into `into`. Bytes are
    carried, so that every dtype is."""
    return dist.all_to_all_single(as_bytes(into), as_bytes(rows), into_counts, counts, group=group, async_op=True)


def as_bytes(rows: torch.Tensor) -> torch.Tensor:
    """The memory of contiguous rows, [rows, bytes of a row]."""
    return (rows.unsqueeze(1) if rows.dim() == 1 else rows).view(torch.uint8)


def near_group(ranks: Ranks, exchange: Exchange) -> Any:
    """The group in which rows go to the queries that read them."""
    return ranks.group if exchange.crossing is None else ranks.host


_sides: dict[torch.device, torch.cuda.Stream] = {}


@contextmanager
def beside(device: torch.device, *read: torch.Tensor) -> Iterator[None]:
    """On a GPU: work of a stream of its own, after what the current one has now; on the CPU nothing else. So what waits
    between the two steps of an exchange is not the attention. `read`: tensors that it reads."""
    if device.type != "cuda":
        yield
        return
    if device not in _sides:
        stream: Any = torch.cuda.Stream
        _sides[device] = stream(device)
    side = _sides[device]
    side.wait_stream(torch.cuda.current_stream(device))
    for x in read:
        x.record_stream(side)
    with torch.cuda.stream(side):
        yield


def send_keys(ranks: Ranks, exchange: Exchange, key: torch.Tensor, value: torch.Tensor) -> Moving:
    """Starts the exchange of keys [B, heads, own rows, D] and values. The buffer has the rows in the exchange's order.
    All ranks call it, also those with nothing to send."""
    batch, heads, _, dim = key.shape
    rows = key.new_empty(exchange.row_count, batch, heads, dim + value.shape[3])
    for of, to in exchange.own:
        part = rows[:exchange.key_count][to]
        part[..., :dim].copy_(key[:, :, of].permute(2, 0, 1, 3))
        part[..., dim:].copy_(value[:, :, of].permute(2, 0, 1, 3))
    crossing = exchange.crossing
    if crossing is None:
        return bring(ranks, exchange, rows)
    with beside(rows.device, rows):
        across = rows.index_select(0, crossing.sent_places)
        all_to_all(ranks.rail, rows[exchange.crossed], crossing.received, across, crossing.sent).wait()
        return bring(ranks, exchange, rows)


def bring(ranks: Ranks, exchange: Exchange, rows: torch.Tensor) -> Moving:
    """Starts the step that brings rows to their queries."""
    sent = rows.index_select(0, exchange.sent_places)
    work = all_to_all(near_group(ranks, exchange), rows[exchange.others], exchange.received, sent, exchange.sent)
    return Moving(rows, work, sent)


def gradients_return(ranks: Ranks, exchange: Exchange, rows: torch.Tensor) -> Iterator[None]:
    """Brings gradients of received rows back to their owners, and adds there what has come. Each next() ends a step and
    starts the one after it: two on one host, three over several. All ranks call them in the same order."""
    into = rows.new_empty(sum(exchange.sent), *rows.shape[1:])
    work = all_to_all(near_group(ranks, exchange), into, exchange.sent, rows[exchange.others], exchange.received)
    yield
    work.wait()
    crossing = exchange.crossing
    if crossing is not None:
        rows[exchange.crossed] = 0
    add_gradients(exchange.sent_runs, rows, into)
    if crossing is None:
        return
    across = rows.new_empty(sum(crossing.sent), *rows.shape[1:])
    work = all_to_all(ranks.rail, across, crossing.sent, rows[exchange.crossed], crossing.received)
    yield
    work.wait()
    add_gradients(crossing.sent_runs, rows, across)


def add_gradients(runs: list[tuple[slice, slice]], rows: torch.Tensor, came: torch.Tensor) -> None:
    """Adds what has come to a buffer of gradients, in the order of the ranks: the same bits whenever it came."""
    for of, to in runs:
        rows[to] += came[of]
