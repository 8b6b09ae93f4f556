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

from .. import _core
from ._context_group import Ranks
from ._context_plan import Exchange
from ._eager_backward import rows as unit_stride
from ._private_names import stream_of


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


def side_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream of a GPU beside the current one. Its kernels are small: they come first where SMs become free."""
    if device not in _sides:
        stream: Any = torch.cuda.Stream
        _sides[device] = stream(device, priority=-1)
    return _sides[device]


@contextmanager
def beside(device: torch.device, *used: torch.Tensor) -> Iterator[None]:
    """On a GPU the block's work goes to the side stream, behind what follow() made it wait for. On the CPU it runs as it
    stands. `used`: tensors that the current stream allocated."""
    if device.type != "cuda":
        yield
        return
    side = side_stream(device)
    for x in used:
        x.record_stream(side)
    with torch.cuda.stream(side):
        yield


def move(source: torch.Tensor, target: torch.Tensor, *, source_rows: torch.Tensor | None = None,
         target_rows: torch.Tensor | None = None, adds: bool = False) -> None:
    """Rows of `source` [B, H, rows, D] become rows of `target`, by lists if they are given, or are added to them."""
    stream = 0 if source.device.type == "cpu" else stream_of(source.device.index)
    _core.move_rows(source, target, source_rows, target_rows, adds, stream)


def by_heads(rows: torch.Tensor) -> torch.Tensor:
    """A buffer [rows, B, H, D] as [B, H, rows, D]."""
    return rows.permute(1, 2, 0, 3)


def send_keys(ranks: Ranks, exchange: Exchange, key: torch.Tensor, value: torch.Tensor, received_alone: bool = False
              ) -> Moving:
    """Starts the exchange of keys [B, heads, own rows, D] and values. The buffer has the rows in the exchange's order;
    `received_alone`: on one host, those of others alone. All ranks call it, also those with nothing to send."""
    key, value = unit_stride(key), unit_stride(value)
    batch, heads, _, dim = key.shape
    count = sum(exchange.received) if received_alone else exchange.row_count
    rows = key.new_empty(count, batch, heads, dim + value.shape[3])
    crossing = exchange.crossing
    if crossing is None:  # what leaves comes first, so that the exchange waits for no other copies
        sent = rows.new_empty(sum(exchange.sent), *rows.shape[1:])
        for own, packed in ((key, sent[..., :dim]), (value, sent[..., dim:])):
            move(own, by_heads(packed), source_rows=exchange.sent_own)
        into = rows if received_alone else rows[exchange.others]
        work = all_to_all(ranks.group, into, exchange.received, sent, exchange.sent)
        if not received_alone:
            copy_own(exchange, key, value, rows)
        return Moving(rows, work, sent)
    copy_own(exchange, key, value, rows)
    follow(rows.device)
    with beside(rows.device, rows):  # so that what waits between the steps is not the attention
        across = packed_rows(rows, crossing.sent_places)
        all_to_all(ranks.rail, rows[exchange.crossed], crossing.received, across, crossing.sent).wait()
        sent = packed_rows(rows, exchange.sent_places)
        work = all_to_all(near_group(ranks, exchange), rows[exchange.others], exchange.received, sent, exchange.sent)
        return Moving(rows, work, sent)


def copy_own(exchange: Exchange, key: torch.Tensor, value: torch.Tensor, rows: torch.Tensor) -> None:
    """Own rows, into the buffer of all."""
    dim, attended = key.shape[3], by_heads(rows[:exchange.key_count])
    for of, to in exchange.own:
        move(key[:, :, of], attended[:, :, to, :dim])
        move(value[:, :, of], attended[:, :, to, dim:])


def packed_rows(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Rows of a buffer that leave, in one piece of memory."""
    packed = rows.new_empty(places.numel(), *rows.shape[1:])
    move(by_heads(rows), by_heads(packed), source_rows=places)
    return packed


def gradients_return(
    ranks: Ranks, exchange: Exchange, rows: torch.Tensor, key: torch.Tensor | None, value: torch.Tensor | None
) -> Iterator[None]:
    """Brings gradients of received rows back to their owners, adds there what has come, and stores the sums in the
    gradients of own keys and values. Each next() ends a step and starts the one after it: two on one host, three over
    several. All ranks call them in the same order. On a GPU later steps run beside the current stream: join_side() makes
    it wait."""
    device, crossing = rows.device, exchange.crossing
    came = rows.new_empty(sum(exchange.sent), *rows.shape[1:])
    work = all_to_all(near_group(ranks, exchange), came, exchange.sent, rows[exchange.others], exchange.received)
    follow(device)
    yield
    if crossing is not None:
        with beside(device, rows, came):
            work.wait()
            rows[exchange.crossed] = 0
            add_gradients(exchange.sent_places, exchange.sent, rows, came)
            across = rows.new_empty(sum(crossing.sent), *rows.shape[1:])
            work = all_to_all(ranks.rail, across, crossing.sent, rows[exchange.crossed], crossing.received)
        yield
    with beside(device, *(x for x in (rows, came, key, value) if x is not None)):
        work.wait()
        if crossing is None:
            add_gradients(exchange.sent_places, exchange.sent, rows, came)
        else:
            add_gradients(crossing.sent_places, crossing.sent, rows, across)
        attended = by_heads(rows[:exchange.key_count])
        for target, first in ((key, True), (value, False)):
            if target is not None:  # keys have the first columns, values the last ones
                dim = target.shape[3]
                columns = slice(0, dim) if first else slice(-dim, None)
                for to, of in exchange.own:
                    move(attended[:, :, of, columns], target[:, :, to])


class Returning:
    """Gradients of received rows of some heads on their way back to their owners, on one host. All ranks make it."""

    def __init__(self, ranks: Ranks, exchange: Exchange, rows: torch.Tensor, kv_heads: slice) -> None:
        self.kv_heads, self._exchange, self._held = kv_heads, exchange, rows
        self.came = rows.new_empty(sum(exchange.sent), *rows.shape[1:])
        self._work: Any = all_to_all(ranks.group, self.came, exchange.sent, rows, exchange.received)

    def add_to(self, own: torch.Tensor, kv_heads: slice) -> None:
        """Adds what has come to the gradients of own rows [rows, B, Hkv, D + Dv], of those of its heads that are among
        these. The current stream, or on the CPU this thread, waits until it has come."""
        first, end = max(self.kv_heads.start, kv_heads.start), min(self.kv_heads.stop, kv_heads.stop)
        if first >= end:
            return
        if self._work is not None:
            self._work.wait()
            self._work = None
        begin, sent_own = self.kv_heads.start, self._exchange.sent_own
        assert sent_own is not None  # rows cross in one step
        add_gradients(sent_own, self._exchange.sent, own[:, :, first:end],
                      self.came[:, :, first - begin:end - begin])


def add_gradients(places: torch.Tensor, counts: list[int], rows: torch.Tensor, came: torch.Tensor) -> None:
    """Adds what has come to a buffer of gradients, in the order of the ranks, several of which may have terms of one
    row: the same bits whenever it came."""
    for of, to in zip(torch.split(came, counts), torch.split(places, counts)):
        move(by_heads(of), by_heads(rows), target_rows=to, adds=True)


def follow(device: torch.device) -> None:
    """What runs beside comes after what the current stream has now."""
    if device.type == "cuda":
        side_stream(device).wait_stream(torch.cuda.current_stream(device))


def join_side(device: torch.device) -> None:
    """What follows comes after all that runs beside."""
    if device.type == "cuda" and device in _sides:
        torch.cuda.current_stream(device).wait_stream(_sides[device])
