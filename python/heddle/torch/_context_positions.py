"""Where a rank's rows stand in the whole sequence, in the way that kernels know best."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ._call import Call

GRANULE = 128  # neighbours inside are neighbours in the sequence; mods::by_granules says who gains by it
# Kernels are compiled for the longest sequence that there may be, one of these.
LONGEST = 1 << 23, 1 << 28


class Rows(NamedTuple):
    """One side's rows, i32: `table` has the position of each; `start` is the first one's, if they are one piece of the
    sequence; `granules` has the position // 128 of each 128 rows, if these are whole granules of it, the last maybe
    cut."""

    table: torch.Tensor
    start: int | None
    granules: torch.Tensor | None


def rows_of(positions: torch.Tensor, device: torch.device) -> Rows:
    """Of positions on the CPU."""
    granules = positions[::GRANULE] // GRANULE
    return Rows(positions.to(torch.int32).to(device), start_of(positions),
                granules.to(torch.int32).to(device) if are_granules(positions) else None)


def start_of(positions: torch.Tensor) -> int | None:
    """The first of consecutive positions, 0 of none; None for others."""
    if positions.numel() == 0:
        return 0
    first = int(positions[0])
    return first if torch.equal(positions, torch.arange(first, first + positions.numel())) else None


def are_granules(positions: torch.Tensor) -> bool:
    rows = torch.arange(positions.numel())
    firsts = positions[::GRANULE]
    inside = torch.equal(positions, firsts.repeat_interleave(GRANULE)[:positions.numel()] + rows % GRANULE)
    return inside and not bool((firsts % GRANULE).any())


class Side(NamedTuple):
    leaf: str  # of a mod: the index
    table: str  # the capture that has the position of each row
    granules: str
    option: str  # of an attention, that begins the index elsewhere


SIDES = Side("q_idx", "_queries", "_q_granules", "q_start"), Side("kv_idx", "_keys", "_kv_granules", "kv_start")
# Captures that differ between ranks.
POSITIONS = {name for side in SIDES for name in (side.table, side.granules)}
STARTS = {side.option for side in SIDES}


def by_table(side: Side) -> str:
    """The text of a position that any rows have."""
    return f"{side.table}[{side.leaf}]"


def tables(rows: tuple[Rows, Rows]) -> dict[str, torch.Tensor]:
    """The captures that by_table() reads."""
    return {side.table: given.table for side, given in zip(SIDES, rows)}


def by_granules(side: Side, longest: int) -> str:
    """As mods::by_granules of the core writes it, which kernels know."""
    last = next(most for most in LONGEST if longest <= most) // GRANULE - 1
    granule = f"min(max({side.granules}[{side.leaf} // {GRANULE}], 0), {last})"
    return f"({granule} * {GRANULE} + {side.leaf} % {GRANULE})"


def know_positions(call: Call, rows: tuple[Rows, Rows], lengths: tuple[int, int]) -> None:
    """Rewrites the mods of a call, in which positions stand as by_table() writes them, for these rows of queries and of
    keys. `lengths`: of the whole sequence."""
    for side, given, longest in zip(SIDES, rows, lengths):
        call.captures.pop(side.table, None)
        if given.start is not None:
            text = side.leaf
            call.options[side.option] = torch.full((call.query.shape[0],), given.start, dtype=torch.int32)
        elif given.granules is not None and longest <= LONGEST[-1]:
            text = by_granules(side, longest)
            call.captures[side.granules] = given.granules
        else:
            text = by_table(side)
            call.captures[side.table] = given.table
        for name in ("score", "mask", "weight"):
            mod: Any = getattr(call, name)
            if mod is not None:
                setattr(call, name, str(mod).replace(by_table(side), text))
