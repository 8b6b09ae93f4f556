"""Where a sequence's rows stand: a partition that all ranks agree on, and for each mask the rows that travel."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch

import heddle

from .. import _core
from ._block_lists import _versions
from ._context_group import Ranks, agree, check_device, device_types, ranks_of
from ._context_masks import GlobalMask, in_documents, listed, mask_of
from ._context_positions import GRANULE, Rows, rows_of

MOST_BLOCK = 128
MOST_LATER = 8  # masks that a plan keeps beside its own
# The plans that exist, by their numbers: operators of torch.library get a plan as a tensor that holds its number, so
# that compiled code serves other plans, too.
plans: WeakValueDictionary[int, "ContextPlan"] = WeakValueDictionary()
_numbers = itertools.count(1)


class Crossing(NamedTuple):
    """The first step of an exchange over several hosts: between the ranks of this rank's number on each host."""

    received: list[int]  # rows from each of them
    sent: list[int]
    sent_places: torch.Tensor  # in the buffer, i32


class RowsOfKeys:
    """A part of a rank's rows of keys, by their positions in the sequence, and the number by which a GPU's kernels are
    planned, as Exchange.version."""

    def __init__(self, positions: torch.Tensor, device: torch.device) -> None:
        self._positions, self._device, self.count = positions, device, positions.numel()
        self._made: tuple[Rows, int] | None = None

    def placed(self) -> tuple[Rows, int]:
        if self._made is None:
            self._made = rows_of(self._positions, self._device), next(_versions)
        return self._made


class Exchange:
    """One mask's exchange, as one rank sees it.

    A rank's rows of keys are its own up to `own_before`, then those that it receives, sender by sender, each ascending,
    then the rest of its own. Where it can be, they stand in the order of the sequence. Over several hosts, rows that
    crossed to this rank for all ranks of its host stand behind them (`crossed`), in no attention; `direct` is then the
    exchange in one step, if calls may take it.

    `rows`: where this rank's queries and its rows of keys stand in the sequence; `own_rows`, `received_rows`: parts of
    the latter.
    """

    def __init__(self, plan: "ContextPlan", mask: GlobalMask, core: heddle.BlockMask, steps: int) -> None:
        ranks, two_steps = plan.ranks, steps == 2
        lists = _core.ExchangePlan.build(plan.made.queries, plan.made.keys, core._mask,
                                         ranks.per_host if two_steps else 0)
        rows = [[lists.rows(receiver, sender) for sender in range(ranks.size)] for receiver in range(ranks.size)]
        near = ranks.near if two_steps else list(range(ranks.size))
        self.mask = mask
        # A GPU's kernels are planned by it: positions, which the mask reads, differ by the placement.
        self.version = next(_versions)
        self.word: int = lists.hash
        self.received: list[int] = [rows[ranks.rank][sender] for sender in near]  # rows from each rank of the group
        self.sent = [rows[receiver][ranks.rank] for receiver in near]
        self.most_received = max(map(sum, rows))  # of any rank
        self.most_elements: float = _core.most_elements(plan.made.queries, core._mask)  # of a head, likewise
        own, others = plan.kv_positions.cpu(), torch.from_numpy(lists.received_positions(ranks.rank))
        self.own_before = before = own_before(own, others)
        self.others = slice(before, before + others.numel())
        # Own rows among own ones, and in the buffer of all.
        self.own = [(slice(0, before), slice(0, before)), (slice(before, None), slice(self.others.stop, None))]
        sent = torch.from_numpy(lists.sent_rows(ranks.rank, plan.made.keys))
        # Places of the rows that leave, i32: in the buffer and, in one step, among own rows.
        self.sent_places = in_buffer(sent, before, others.numel()).to(plan.device)
        self.sent_own = None if two_steps else sent.to(torch.int32).to(plan.device)
        self.crossing: Crossing | None = None
        if two_steps:
            crossing = torch.from_numpy(lists.crossing_sent_rows(ranks.rank, plan.made.keys))
            self.crossing = Crossing([lists.crossing_rows(ranks.rank, sender) for sender in ranks.far],
                                     [lists.crossing_rows(receiver, ranks.rank) for receiver in ranks.far],
                                     in_buffer(crossing, before, others.numel()).to(plan.device))
        attended = own.numel() + others.numel()
        self.crossed = slice(attended, attended + sum(self.crossing.received if self.crossing else []))
        self.rows = plan.query_rows, rows_of(torch.cat((own[:before], others, own[before:])), plan.device)
        self.lists, self._made = lists, plan.made
        self.own_rows, self.received_rows = RowsOfKeys(own, plan.device), RowsOfKeys(others, plan.device)
        self.direct: Exchange | None = None
        if two_steps and plan.host_steps is None:
            self.direct = Exchange(plan, mask, core, 1)

    def of_rows(self, row_bytes: int) -> "Exchange":
        """This one, or the direct one if that is predicted to be faster for rows of so many bytes."""
        if self.direct is None or _core.takes_two_steps(self._made, self.direct.lists, self.lists, row_bytes):
            return self
        return self.direct

    def words(self) -> tuple[int, int]:
        """What all ranks must have in common of it."""
        return self.word, 0 if self.direct is None else self.direct.word

    @property
    def key_count(self) -> int:
        """How many rows of keys this rank has in a call."""
        return self.rows[1].table.numel()

    @property
    def row_count(self) -> int:
        """All rows of a buffer."""
        return self.crossed.stop


class ContextPlan:
    """The rows of one sequence that each rank holds, and the rows that ranks exchange. Made by `partition`.

    - `positions`, `kv_positions`: the rows of the whole sequence that this rank holds, of queries and of keys, i64,
      ascending, on the plan's device. They are equal if there are as many keys as queries. Use them for rotary
      embeddings and labels.
    - `rank`, `size`: this process's rank in the group, and the number of ranks.
    - `q_len`, `kv_len`: of the whole sequence.
    """

    def __init__(self, ranks: Ranks, made: _core.MadePartition, device: torch.device, checks: str,
                 host_steps: int | None) -> None:
        self.ranks, self.made, self.device, self.checks, self.host_steps = ranks, made, device, checks, host_steps
        self.rank, self.size = ranks.rank, ranks.size
        self.q_len, self.kv_len = made.queries.length, made.keys.length
        self.positions = torch.from_numpy(made.queries.positions(ranks.rank)).to(device)
        self.kv_positions = self.positions if made.queries.equals(made.keys) else torch.from_numpy(
            made.keys.positions(ranks.rank)).to(device)
        self.query_rows = rows_of(self.positions.cpu(), device)
        self.block = block_of(made.queries.chunk)
        self.masks: list[tuple[Any, Exchange]] = []  # what the user gave, and its exchange
        self.later: list[tuple[Any, Exchange]] = []  # of masks that calls brought, the last few
        self.calls = 0
        number = next(_numbers)
        plans[number] = self
        self.number = torch.tensor(number)

    def __deepcopy__(self, memo: Any) -> ContextPlan:
        """The plan itself, which copies of a model share."""
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a ContextPlan belongs to the process group that made it, and is not pickled; each process calls "
                        "partition()")

    def rows(self, rank: int, of_keys: bool = False) -> int:
        """How many queries, or keys, a rank holds."""
        return (self.made.keys if of_keys else self.made.queries).rows(rank)

    def add(self, given: Any, mask: GlobalMask, core: heddle.BlockMask) -> None:
        self.masks.append((given, self.exchange_of(mask, core)))

    def exchange_of(self, mask: GlobalMask, core: heddle.BlockMask) -> Exchange:
        two_steps = self.made.ranks_per_host != 0 and self.host_steps != 1
        return Exchange(self, mask, core, 2 if two_steps else 1)

    def exchange(self, given: Any) -> Exchange:
        """The exchange of a mask: one of partition()'s, or of another one of the same lengths. None: the plan's only
        mask.

        Raises ValueError if the plan has several masks and none is given, and for other lengths.
        """
        number = self.find(given)
        if number is not None:
            return self.masks[number][1]
        for known, exchange in self.later:
            if known is given:
                return exchange
        first = self.masks[0][1].mask
        mask = mask_of(given, (self.q_len, self.kv_len), (first.batch, first.heads), self.device)
        exchange = self.exchange_of(mask, mask.core(self.block))
        self.later = [*self.later[1 - MOST_LATER:], (given, exchange)]
        return exchange

    def find(self, given: Any) -> int | None:
        """The number of a mask that the plan knows."""
        if given is None:
            if len(self.masks) > 1:
                raise ValueError(f"block_mask is None, and the plan was made for {len(self.masks)} masks; one of them "
                                 "is accepted")
            return 0
        return next((number for number, (known, _) in enumerate(self.masks) if known is given), None)

    def number_of(self, given: Any) -> int:
        """The number of a mask in a call that torch.compile traces. Raises NotImplementedError for an unknown one."""
        number = self.find(given)
        if number is None:
            raise NotImplementedError("block_mask is none of the plan's masks, and torch.compile traces this call; "
                                      "make the plan with a list of all masks")
        return number

    def explain(self, row_bytes: int | None = None) -> str:
        """The placement as a picture, each rank's load, the rejected candidates, and the number of rows that each rank
        receives; over several hosts also the number sent between hosts. With `row_bytes` tables are in bytes: B * Hkv *
        (D + Dv) * bytes of an
        element; over several hosts then also the predicted time of one step and of two."""
        tables = [f"mask {number}:\n{exchange.lists.text(row_bytes or 0)}{self.steps_text(exchange, row_bytes)}"
                  for number, (_, exchange) in enumerate(self.masks)]
        return self.made.text() + "".join(tables)

    def steps_text(self, exchange: Exchange, row_bytes: int | None) -> str:
        if exchange.direct is None or row_bytes is None:
            return ""
        one, two = (x.lists.predicted_seconds(row_bytes, self.ranks.per_host) for x in (exchange.direct, exchange))
        taken = "one step" if exchange.of_rows(row_bytes) is exchange.direct else "two steps"
        return f"predicted: one step {one * 1e3:.3f} ms, two steps {two * 1e3:.3f} ms; {taken} taken\n"

    def __repr__(self) -> str:
        queries = self.made.queries
        return (f"<heddle.torch.context_parallel.ContextPlan: {queries.length} queries and {self.kv_len} keys over "
                f"{self.size} ranks in chunks of {queries.chunk}; rank {self.rank} holds {self.positions.numel()} "
                "queries>")


def in_buffer(rows: torch.Tensor, before: int, received: int) -> torch.Tensor:
    """Places of own rows in a buffer that has received ones behind its first `before`; later numbers are of rows that
    crossed."""
    return (rows + received * (rows >= before)).to(torch.int32)


def own_before(own: torch.Tensor, others: torch.Tensor) -> int:
    """How many of a rank's own rows of keys stand before the received ones: so that all ascend, if one gap between own
    rows has all others. Else none, since kernels of biases that grow with the key walk keys from the last one, and want
    the largest scores first: those near the diagonal. All, where received rows would cut a granule."""
    if not others.numel():
        return own.numel()
    before = int((own < others[0]).sum())
    ascends = bool((others[1:] > others[:-1]).all())
    if ascends and (before == own.numel() or bool(own[before] > others[-1])):
        return before
    return own.numel() if others.numel() % GRANULE else 0


def block_of(chunk: int) -> int:
    """The largest block up to 128 that divides a chunk: so that a chunk's keys are those of its own blocks."""
    return next(block for block in range(min(chunk, MOST_BLOCK), 0, -1) if chunk % block == 0)


def partition(
    block_mask: Any = None, group: Any = None, *, q_len: int | None = None, kv_len: int | None = None,
    cu_seqlens: torch.Tensor | None = None, batch: int = 1, heads: int = 1, weights: Sequence[float] | None = None,
    chunk: int | None = None, placing: str | None = None, exchange_weight: float = 1000.0,
    host_exchange_weight: float = 6000.0, host_steps: int | None = None, seed: int = 0,
    device: torch.device | str | None = None, checks: str | None = None,
) -> ContextPlan:
    """Assigns the rows of a sequence to the ranks of a group. All ranks must call it with the same arguments; it
    communicates once.

    - block_mask: a mask of the whole sequence, from heddle's or torch's create_block_mask, or as a function (b, h,
      q_idx, kv_idx). None: everything attends. Or a list of these, one for each kind of layer; `weights` then has the
      number of layers of each kind.
    - group: a ProcessGroup, a DeviceMesh of one dimension, or None: all processes. Or a DeviceMesh of two dimensions,
      [hosts, GPUs of each]: chunks are then assigned to hosts first. A row is sent once to each host that reads it, to
      the rank with its owner's number, which sends it on. Gradients are added within a host before they are sent to
      another. A group of all processes of the mesh must exist: the world, or one of dist.new_group.
    - q_len, kv_len: rows of the whole sequence; a block mask has them. kv_len of None is q_len. If they differ, the
      keys are contiguous.
    - cu_seqlens: i32 or i64 [N + 1]: documents; no query attends to a key of another document.
    - batch, heads: the extents of b and h of mask functions that read them.
    - chunk: rows that stay together, a multiple of 128 for GPUs; None: 1024, or less for short sequences.
    - placing: "contiguous", "zigzag", "documents" or "heap" instead of the one with the lowest predicted time.
    - exchange_weight: the time of a received row of keys, relative to that of one element of the scores of one head. On
      GPUs of one host, at head dimension 128, 2230 * Hkv / Hq is derived.
    - host_exchange_weight: as exchange_weight, for a row from another host.
    - host_steps: the number of steps in which rows come from other hosts. 2: as above; 1: each rank receives its rows
      directly from their owners; None: each call takes the number with the lower predicted time, 1 if few bytes cross.
    - device: of the tensors; None: that of the block mask, else the group's kind.
    - checks: "calls": each call of `attention` first compares its arguments with all ranks; "first": only the first
      call with this plan does. None: "calls" on the CPU, "first" on a GPU, where comparing waits.

    If there are fewer chunks than ranks, some ranks hold no row; they must make all calls, too.

    Raises RuntimeError without a process group, and on each rank if another one raised; ValueError for a group that
    misses this process, for a sequence of fewer queries or keys than there are ranks, for lengths and masks that do not
    fit each other, for a GPU's tensors beside a group of gloo alone, and on each rank if ranks disagree.

    >>> import torch.distributed as dist
    >>> from heddle.torch import context_parallel
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> plan = context_parallel.partition(lambda b, h, q_idx, kv_idx: kv_idx <= q_idx, q_len=4096)
    >>> print(plan.explain())
    4096 queries and 4096 keys over 1 ranks, chunks of 1024
    0000
    rank 0: 4096 queries in 1 ranges, load 1.00 of the mean, receives 0 rows
    taken: contiguous: balance 1.00, receives 0.000 of the keys (at most 0.000)
    lost at 1.00 of its time: zigzag: balance 1.00, receives 0.000 of the keys (at most 0.000)
    lost at 1.00 of its time: documents: balance 1.00, receives 0.000 of the keys (at most 0.000)
    lost at 1.00 of its time: heap: balance 1.00, receives 0.000 of the keys (at most 0.000)
    mask 0:
    receives from         0
    rank        0         0
    <BLANKLINE>
    >>> dist.destroy_process_group()
    """
    ranks = ranks_of(group)
    plan, error = None, None
    try:
        if checks not in (None, "calls", "first"):
            raise ValueError(f"checks is {checks!r}; 'calls', 'first' and None are accepted")
        plan = placed(listed(block_mask), ranks, (q_len, kv_len), cu_seqlens, (batch, heads), weights, chunk, placing,
                      (exchange_weight, host_exchange_weight), host_steps, seed, device, checks)
    except Exception as caught:
        error = caught
    stated: list[Any] = [None] * 4
    if plan is not None:
        masks = [exchange.mask.stated() for _, exchange in plan.masks]
        stated = [[one[4:6] for one in masks], masks,
                  (plan.made.queries.hash, plan.made.keys.hash, plan.checks, plan.host_steps),
                  [exchange.words() for _, exchange in plan.masks]]
    agree(ranks, list(zip(("lengths", "masks", "the placement", "the rows that travel"), stated)), error)
    assert plan is not None
    return plan


def placed(
    given: Sequence[Any], ranks: Ranks, sizes: tuple[int | None, int | None], cu_seqlens: torch.Tensor | None,
    scope: tuple[int, int], weights: Sequence[float] | None, chunk: int | None, placing: str | None,
    exchange_weights: tuple[float, float], host_steps: int | None, seed: int, device: torch.device | str | None,
    checks: str | None,
) -> ContextPlan:
    """The plan of this rank, without a word to the others."""
    where = device_of(given, ranks, device)
    check_device(ranks, where)
    masks = [mask_of(one, sizes, scope, where) for one in given]
    if not masks:
        raise ValueError("block_mask is an empty list; at least one mask is accepted")
    for name, rows in (("queries", masks[0].q_len), ("keys", masks[0].kv_len)):
        if rows < ranks.size:
            raise ValueError(f"the sequence has {rows} {name}, and the group {ranks.size} ranks; at least as many are "
                             "accepted")
    if cu_seqlens is not None:
        masks = [in_documents(mask, cu_seqlens.to(where)) for mask in masks]
    layers = [1.0] * len(masks) if weights is None else [float(one) for one in weights]
    if len(layers) != len(masks):
        raise ValueError(f"weights has {len(layers)} numbers, and there are {len(masks)} masks; one for each is "
                         "accepted")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk is {chunk}; 1 and more are accepted")
    rows = _core.default_chunk(masks[0].q_len, ranks.size) if chunk is None else chunk
    cores = [mask.core(block_of(rows)) for mask in masks]
    blocks = [core._mask for core in cores]
    if host_steps not in (None, 1, 2):
        raise ValueError(f"host_steps is {host_steps!r}; 1, 2 and None are accepted")
    made = _core.make_partition(blocks, layers, ranks.size, rows, exchange_weights[0], seed, placing, ranks.per_host,
                                exchange_weights[1], host_steps or 0)
    plan = ContextPlan(ranks, made, where, checks or ("calls" if where.type == "cpu" else "first"), host_steps)
    for one, mask, core in zip(given, masks, cores):
        plan.add(one, mask, core)
    return plan


def device_of(given: Sequence[Any], ranks: Ranks, device: torch.device | str | None) -> torch.device:
    if device is None:
        device = next((one.device for one in given if hasattr(one, "device")), None)
    if device is None:
        device = "cpu" if device_types(ranks).get("cuda") in (None, "gloo") else "cuda"
    where = torch.device(device)
    if where.type == "cuda" and where.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return where
