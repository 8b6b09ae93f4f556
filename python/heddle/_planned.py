"""Plans: the part that forwards and backwards have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from . import _core
from ._block_mask import BlockMask
from ._named_arguments import refuses_by_name
from ._options import refuse_no_dict, refuse_unknown, set_options, set_values, values_of
from ._tensor import Tensor
from ._types import Array, ParamValue


class Planned:
    """A plan: its workspace, its mask's values, its decisions."""

    __slots__ = ("__weakref__",)
    _plan: _core.AttentionPlan | _core.BackwardPlan

    def _instead(
        self, captures: Mapping[str, Array] | None, params: Mapping[str, ParamValue] | None, changed: Mapping[str, Any],
        accepted: type,
    ) -> _core.Arguments | None:
        """The planned options with those of one run; None if it has none of its own. `accepted`: which it may have."""
        if not captures and not params and not changed:
            return None
        refuse_unknown(f"{type(self).__name__}.run", changed, accepted)
        if not captures and not params and all(x is None for x in changed.values()):
            return None
        arguments = self._plan.arguments
        for kind, given, known in (("capture", captures, arguments.captures), ("param", params, arguments.params)):
            if given:
                refuse_no_dict(f"{kind}s", given, "arrays" if kind == "capture" else "numbers")
            for name in given or ():
                if name not in known:
                    raise ValueError(f"the plan has no {kind} '{name}'; it has {', '.join(known) or 'none'}")
        set_values(arguments, {**arguments.captures, **(captures or {})}, {**arguments.params, **(params or {})})
        set_options(arguments, changed)
        return arguments

    @property
    def workspace_bytes(self) -> int:
        """Bytes of workspace that one run needs."""
        return self._plan.workspace_bytes

    def workspace(self) -> Tensor:
        """New memory for one run at a time, on the plan's device.

        >>> import numpy as np, heddle
        >>> q = k = v = np.ones((1, 1, 2, 8), np.float32)
        >>> plan = heddle.AttentionPlan(q, k, v)
        >>> workspace = plan.workspace()
        >>> plan.run(q, k, v, workspace=workspace)[0, 0, 0, 0]
        np.float32(1.0)
        """
        return Tensor._of(self._plan.workspace())

    @refuses_by_name
    def update(
        self, *, captures: Mapping[str, Array] | None = None, params: Mapping[str, ParamValue] | None = None,
    ) -> None:
        """Builds the block mask again for other values of the mask's captures and params, which later runs take as the
        planned ones. Names that are not given keep their values. On a GPU not while a run is enqueued. Raises
        ValueError for a name that no mod reads, and during a run of another thread; then nothing has changed.

        >>> import numpy as np, heddle
        >>> q = k = v = np.ones((1, 1, 4, 8), np.float32)
        >>> plan = heddle.AttentionPlan(q, k, v, mask_mod="kv_idx < n", params={"n": 2})
        >>> plan.update(params={"n": 0})
        >>> plan.run(q, k, v).sum()
        np.float32(0.0)
        """
        for name, given, of in (("captures", captures, "arrays"), ("params", params, "numbers")):
            if given:
                refuse_no_dict(name, given, of)
        self._plan.update(values_of(captures or {}, params or {}))

    @property
    def block_mask(self) -> BlockMask | None:
        """The blocks that attend; None if everything does."""
        mask = self._plan.block_mask
        if mask is None:
            return None
        arguments = self._plan.arguments
        return BlockMask._of(mask, arguments.captures, arguments.params)

    @property
    def backend(self) -> str:
        """'cpu', 'reference', 'cuda' or 'amd'."""
        return self._plan.backend

    def explain(self) -> str:
        """The decisions, stage by stage: problem, simplified mods, mask summary, plan, rejected alternatives with
        their reasons, predicted bytes, FLOPs and time, kernel."""
        return self._plan.explain()

    def explain_json(self) -> dict[str, Any]:
        """explain() as a dict with those stages as keys.

        >>> import numpy as np, heddle
        >>> q = k = v = np.ones((1, 1, 4, 8), np.float32)
        >>> heddle.AttentionPlan(q, k, v).explain_json()["plan"]["family"]
        'cpu_forward'
        """
        stages: dict[str, Any] = json.loads(self._plan.explain_json())
        return stages
