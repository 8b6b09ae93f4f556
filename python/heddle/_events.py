"""What the library says of its own work: plans, kernels, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from . import _core
from ._options import refuse_type


def set_event_listener(listener: Callable[[dict[str, Any]], Any] | None) -> None:
    """Calls `listener` with each event of the process, as a dict, and replaces the previous listener. None removes it.

    Events are plans ("plan": its time, family, tile, workspace), kernels that were compiled or read from disk ("kernel")
    and refused calls ("refusal": the message). include/heddle/events.h lists their keys. A call that reuses a cached
    plan causes no event. The listener is called on the thread of the call, possibly on several threads at a time; its
    exceptions go to sys.unraisablehook. The environment variable HEDDLE_LOG writes the same events to a file.

    >>> import numpy as np, heddle
    >>> seen = []
    >>> heddle.set_event_listener(seen.append)
    >>> x = np.ones((1, 3, 7, 11), np.float32)
    >>> for _ in range(2):
    ...     out = heddle.attention(x, x, x)
    >>> [(event["event"], event["pass"], event["family"]) for event in seen]
    [('plan', 'forward', 'cpu_forward')]
    >>> heddle.set_event_listener(None)
    """
    if listener is not None and not callable(listener):
        refuse_type("listener", listener, "a function, or None,")
    _core.set_event_listener(None if listener is None else lambda event: listener(json.loads(event)))


def kernel_counts() -> dict[str, int]:
    """How many GPU kernels the process compiled, took from memory, from the disk cache and from an archive, and
    rejected: "compiled", "from_memory", "from_disk", "from_archive", "rejected". heddle.plan_cache_counts() counts
    plans.

    >>> import heddle
    >>> sorted(heddle.kernel_counts())
    ['compiled', 'from_archive', 'from_disk', 'from_memory', 'rejected']
    """
    return dict(_core.kernel_counts())
