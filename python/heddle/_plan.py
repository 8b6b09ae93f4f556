"""Attention planned once and run many times, and the decisions of its plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Unpack

from . import _core
from ._alignment import align_captures
from ._explanation_html import table
from ._named_arguments import refuse_wrong, refuses_by_name
from ._options import Options, PagedOptions, given_arguments, refuse_arrays, spelled_out
from ._planned import Planned
from ._tensor import public
from ._types import Array, ParamValue


class Explanation(NamedTuple):
    """A plan with its reasons. `text` is shown by `print` and an interpreter. `stages` is the same as data, by stage
    and subject. `picture` is an SVG of the mask's blocks (the first score matrix; empty without a mask, and from
    explain_on). A notebook shows the table and the picture.

    >>> import numpy as np, heddle
    >>> x = np.ones((1, 1, 4, 8), np.float32)
    >>> heddle.explain(x, x, x, mask_mod="kv_idx <= q_idx").stages["mods"]["mask"]["given"]
    'kv_idx <= q_idx'
    """

    text: str
    stages: dict[str, Any]
    picture: str = ""

    def __repr__(self) -> str:  # also what print and an interpreter show
        return self.text

    def _repr_html_(self) -> str:
        return table(self.stages, self.picture)


class AttentionPlan(Planned):
    """An attention planned once and run many times: planning validates, traces the mods, builds the block mask and
    picks the kernel; `run` only computes.

    The plan takes shapes, strides, dtypes and devices from q, k, v, out and lse; it does not read or keep them. Without
    `out`, runs return a new contiguous o [B, Hq, Sq, Dv] of q's dtype (bfloat16 if q has 8 bits). With `return_lse`,
    they also return a new lse [B, Hq, Sq]. The options are those of heddle.attention. The plan keeps the arrays that
    its runs read (captures, sinks, descales, page_table, lengths and starts) alive. To change a mask's captures, pass
    new ones to `update`.

    A plan may run on several threads at once. On a GPU, `run` enqueues on `stream` and returns: keep the plan and all
    arrays alive until the stream has done the work.

    Raises as heddle.attention does.

    >>> import numpy as np, heddle
    >>> q = k = v = np.ones((1, 2, 4, 8), np.float32)
    >>> slopes = np.zeros(2, np.float32)
    >>> plan = heddle.AttentionPlan(q, k, v, score_mod=heddle.mods.alibi(slopes), mask_mod=heddle.mods.causal())
    >>> plan.run(q, k, v).shape, plan.backend
    ((1, 2, 4, 8), 'cpu')
    """

    __slots__ = ("_plan", "_return_lse")
    _plan: _core.AttentionPlan

    @refuses_by_name
    def __init__(
        self, q: Array, k: Array, v: Array, *, out: Array | None = None, lse: Array | None = None,
        return_lse: bool = False, **options: Unpack[Options],
    ) -> None:
        arguments = given_arguments(options, may_copy=False)
        self._return_lse = return_lse or lse is not None
        try:
            self._plan = _core.AttentionPlan(q, k, v, out, lse, return_lse, arguments)
        except TypeError as error:
            refuse_arrays(error, {"out": out, "lse": lse}, {"q": q, "k": k, "v": v})

    @spelled_out(PagedOptions)
    def run(
        self, q: Array, k: Array, v: Array, *, out: Array | None = None, lse: Array | None = None,
        workspace: Array | None = None, stream: int | None = None, captures: Mapping[str, Array] | None = None,
        params: Mapping[str, ParamValue] | None = None, **changed: Unpack[PagedOptions],
    ) -> Any:
        """Computes: o, or (o, lse) if the plan has lse. `out` and `lse` are written if they are given.

        The tensors have the planned shapes, strides, dtypes and device. Any other argument replaces the planned one in
        this run: arrays with the planned shapes, strides and dtypes, as heddle.attention describes them. New lengths
        and starts are accepted only on a GPU, new captures and params of the mask only after `update`. `workspace`:
        workspace_bytes of memory on the plan's device, 64-byte aligned, used by no other run at this time. On a GPU it
        is required if workspace_bytes is not 0.

        Raises ValueError for arguments that differ from the plan. Ctrl-C stops a run on the CPU, whose results are then
        incomplete; the plan stays valid.

        >>> import numpy as np, heddle
        >>> q = k = v = np.ones((1, 1, 2, 8), np.float32)
        >>> gate = np.ones(1, np.float32)
        >>> plan = heddle.AttentionPlan(q, k, v, score_mod=lambda score, b, h, q_idx, kv_idx: score * gate[h])
        >>> o = np.empty_like(q)
        >>> plan.run(q, k, v, out=o, captures={"gate": 2 * gate}) is o
        True
        """
        try:
            instead = self._instead(captures, params, changed, PagedOptions)
            o, made_lse = self._plan.run(q, k, v, out, lse, workspace, stream or 0, instead)
        except (TypeError, ValueError) as error:
            given = {"out": out, "lse": lse, "workspace": workspace}
            refuse_wrong(AttentionPlan.run, error, (self, q, k, v),
                         {**given, "stream": stream, "captures": captures, "params": params})
            refuse_arrays(error, given, {"q": q, "k": k, "v": v})
        o = public(o) if out is None else out
        if not self._return_lse:
            return o
        return o, public(made_lse) if lse is None else lse

    def __repr__(self) -> str:
        return f"<heddle.AttentionPlan on {self.backend}, {self.workspace_bytes} bytes of workspace>"


@refuses_by_name
def explain(
    q: Array, k: Array, v: Array, *, out: Array | None = None, lse: Array | None = None, return_lse: bool = False,
    **options: Unpack[Options],
) -> Explanation:
    """Explains what heddle.attention does with these arguments: the plan that it keeps, or makes and keeps now. out,
    lse and return_lse select the results; nothing is computed. Raises as heddle.attention does.

    >>> import numpy as np, heddle
    >>> q = k = v = np.ones((1, 1, 4, 8), np.float32)
    >>> "problem" in str(heddle.explain(q, k, v, mask_mod=heddle.mods.causal()))
    True
    """
    arguments = given_arguments(options)
    align_captures(arguments)
    try:
        text, stages, picture = _core.explain(q, k, v, out, lse, return_lse, arguments)
    except TypeError as error:
        refuse_arrays(error, {"out": out, "lse": lse}, {"q": q, "k": k, "v": v})
    return Explanation(text, json.loads(stages), picture)


@refuses_by_name
def explain_on(
    device_name: str, q: Array, k: Array, v: Array, *, out: Array | None = None, lse: Array | None = None,
    return_lse: bool = False, **options: Unpack[Options],
) -> Explanation:
    """Explains the plan for a GPU that this machine need not have (device_name: "h200"), without compiling a kernel.
    The other arguments are those of heddle.explain. The arrays may be anywhere; they are not read. Raises as planning
    on that GPU would, ValueError for a name that it does not know.

    >>> import heddle
    >>> q = k = v = heddle.Tensor.empty((1, 16, 4096, 128), "bfloat16")
    >>> heddle.explain_on("h200", q, k, v, mask_mod=heddle.mods.causal()).stages["plan"]["backend"]
    'cuda'
    """
    arguments = given_arguments(options)
    try:
        text, stages = _core.explain_on(device_name, q, k, v, out, lse, return_lse, arguments)
    except TypeError as error:
        refuse_arrays(error, {"out": out, "lse": lse}, {"q": q, "k": k, "v": v})
    return Explanation(text, json.loads(stages))
