"""Integers of a GPU's tensors that do not fit i32, as which mods read them: found without a wait.

A tensor that a mod reads is looked at once for each of its versions, by one kernel whose result a later call of any kind
reads. So the error comes late, but it comes. On the CPU heddle._core looks at each call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary

# Types that are looked at: the signed type of the same size, and the smallest value that fits.
WIDE = {torch.int64: (torch.int64, -(2**31)), torch.uint64: (torch.int64, 0), torch.uint32: (torch.int32, 0)}
# The version of a tensor at its last look.
_seen: Any = WeakIdKeyDictionary()


class Look(NamedTuple):
    """The extremes of a tensor, on their way to the host."""

    name: str
    dtype: torch.dtype
    extremes: torch.Tensor
    arrived: Any

    def judge(self) -> None:
        """Raises ValueError if one of them does not fit."""
        low, high = self.extremes.tolist()
        least = WIDE[self.dtype][1]
        if low >= least and high < 2**31:
            return
        value = low if low < least else high
        size = 32 if self.dtype is torch.uint32 else 64
        said = value if least or value >= 0 else value + 2**size
        raise ValueError(
            f"capture '{self.name}' was {str(self.dtype).removeprefix('torch.')} and held {said} in this call or an earlier "
            "one, whose result is wrong; mods read integers as i32: values of -2147483648 to 2147483647 are accepted. "
            "heddle.torch.check_integers() behind a call waits and says which one")


_looks: deque[Look] = deque()


def version_of(x: torch.Tensor) -> int:
    return 0 if x.is_inference() else x._version


def check_integers() -> None:
    """Waits for the looks at integers of tensors on a GPU that mods read, and raises ValueError if one of them did not
    fit i32. Without it the error comes with a later call.

    >>> import heddle.torch
    >>> heddle.torch.check_integers()
    """
    judge_arrived(waits=True)


def judge_arrived(waits: bool = False) -> None:
    """Raises ValueError for a look that has ended and found a value that does not fit."""
    while _looks and (waits or _looks[0].arrived is None or _looks[0].arrived.query()):
        look = _looks.popleft()
        if waits and look.arrived is not None:
            look.arrived.synchronize()
        look.judge()


def watch(captures: Mapping[str, torch.Tensor]) -> None:
    """Looks at those that were not looked at, on the current stream. Not while a graph is captured: it would look at what
    the tensors hold then, in each replay."""
    if _looks:
        judge_arrived()
    for name, x in captures.items():
        if x.dtype in WIDE and x.numel() and _seen.get(x) != version_of(x):
            _seen[x] = version_of(x)
            _looks.append(look_at(name, x.detach()))


def look_at(name: str, x: torch.Tensor) -> Look:
    dtype = x.dtype
    extremes = torch.stack(x.view(WIDE[dtype][0]).aminmax())
    if not x.is_cuda:
        return Look(name, dtype, extremes, None)
    host = torch.empty(2, dtype=extremes.dtype, pin_memory=True)
    with torch.cuda.device(x.device):  # whose stream makes the extremes
        host.copy_(extremes, non_blocking=True)
        arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
    return Look(name, dtype, host, arrived)
