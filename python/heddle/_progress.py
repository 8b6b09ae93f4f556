"""Progress of long calls on the CPU."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import _core
from ._options import refuse_type


class _Bar:
    """Shows one call after the other: by tqdm, else as a line of percents on stderr."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._shown = 0.0

    def __call__(self, fraction: float) -> None:
        if fraction < self._shown:  # another call
            self.close()
        if self._bar is None:
            self._bar = _tqdm() or _Percents()
        self._bar.update(round(100 * fraction) - round(100 * self._shown))
        self._shown = fraction

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar, self._shown = None, 0.0


class _Percents:
    def __init__(self) -> None:
        self._percents = 0

    def update(self, more: int) -> None:
        self._percents += more
        print(f"\rheddle: {self._percents} %", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print(file=sys.stderr)


def _tqdm() -> Any:
    try:
        module: Any = importlib.import_module("tqdm.auto")
    except ImportError:
        return None
    return module.tqdm(total=100, desc="heddle", unit="%", leave=False)


@contextmanager
def progress(show: Callable[[float], Any] | None = None) -> Iterator[None]:
    """Inside the `with`, calls on the CPU show their progress, with tqdm if it is installed, else as a percentage on
    stderr. Or they call `show` with the fraction done, at most about every 50 ms, from any thread, one at a time.

    Shorter calls show nothing, nor do block masks, checks, calls on a GPU and calls that `show` makes. An exception in
    `show` ends the call, whose results are then incomplete. Only the innermost `with` of the program is active.

    >>> import numpy as np, heddle
    >>> x = np.ones((1, 1, 8, 8), np.float32)
    >>> with heddle.progress():
    ...     heddle.attention(x, x, x).shape
    (1, 1, 8, 8)
    """
    if show is not None and not callable(show):
        refuse_type("show", show, "a function, or None,")
    bar = _Bar() if show is None else None
    before = _core.set_progress(bar or show)
    try:
        yield
    finally:
        _core.set_progress(before)
        if bar is not None:
            bar.close()
