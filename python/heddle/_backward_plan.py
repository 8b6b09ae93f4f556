"""A backward planned once and run many times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from . import _core
from ._backward import (
    Gradients, Wanted, WantedCaptures, WantedParams, by_name, gradients_of, inputs_of, set_named, targets_of,
)
from ._named_arguments import refuses_by_name
from ._options import ArrayOptions, BackwardOptions, given_arguments, refuse_arrays, spelled_out
from ._planned import Planned
from ._types import Array, ParamValue


class BackwardPlan(Planned):
    """The plan of a backward: as heddle.AttentionPlan, but that its runs compute gradients.

    The arguments are those of heddle.attention_backward. The arrays say shapes, strides, dtypes and devices; their
    memory is not read, and they are not kept. Which gradients are asked for is planned, too. The plan keeps the arrays
    that its runs read (captures, sinks, descales, lengths and starts) alive.

    Raises as heddle.attention_backward does.

    >>> import numpy as np, heddle
    >>> q, k, v, d_o = np.random.default_rng(0).standard_normal((4, 1, 2, 16, 8), np.float32)
    >>> o, lse = heddle.attention(q, k, v, mask_mod=heddle.mods.causal(), return_lse=True)
    >>> plan = heddle.BackwardPlan(q, k, v, o, lse, d_o, mask_mod=heddle.mods.causal())
    >>> plan.run(q, k, v, o, lse, d_o).dk.shape
    (1, 2, 16, 8)
    """

    __slots__ = ("_plan", "_wanted", "_named")
    _plan: _core.BackwardPlan

    @refuses_by_name
    def __init__(
        self, q: Array, k: Array, v: Array, o: Array, lse: Array | None, d_o: Array, d_lse: Array | None = None,
        *, lse_rest: Array | None = None,
        dq: Wanted = True, dk: Wanted = True, dv: Wanted = True, d_sinks: Wanted = False,
        d_captures: WantedCaptures = (), d_params: WantedParams = (), **options: Unpack[BackwardOptions],
    ) -> None:
        arguments = given_arguments(options, may_copy=False)
        inputs = inputs_of(q, k, v, o, lse, d_o, d_lse, lse_rest)
        targets = targets_of(arguments, dq, dk, dv, d_sinks, d_captures, d_params)
        self._plan = _core.BackwardPlan(inputs, targets, arguments, False)
        self._wanted = tuple([x is not False for x in (targets.q, targets.k, targets.v, targets.sinks)])
        self._named = {"captures": tuple(targets.captures), "params": tuple(targets.params)}

    @refuses_by_name
    @spelled_out(ArrayOptions)
    def run(
        self, q: Array, k: Array, v: Array, o: Array, lse: Array | None, d_o: Array, d_lse: Array | None = None,
        *, lse_rest: Array | None = None,
        dq: Array | None = None, dk: Array | None = None, dv: Array | None = None, d_sinks: Array | None = None,
        d_captures: Mapping[str, Array] | None = None, d_params: Mapping[str, Array] | None = None,
        workspace: Array | None = None, stream: int | None = None, captures: Mapping[str, Array] | None = None,
        params: Mapping[str, ParamValue] | None = None, **changed: Unpack[ArrayOptions],
    ) -> Gradients:
        """Computes the planned gradients. Those whose arrays are given (dq, ..., d_captures and d_params by name) are
        written there.

        The tensors have the planned shapes, strides, dtypes and device. What else is given stands for the planned one
        in this run, as in heddle.AttentionPlan.run; d_lse and lse_rest are heddle.attention_backward's. Raises
        ValueError for what differs from the plan.

        >>> import numpy as np, heddle
        >>> q, k, v, d_o = np.random.default_rng(0).standard_normal((4, 1, 1, 4, 8), np.float32)
        >>> o, lse = heddle.attention(q, k, v, return_lse=True)
        >>> plan = heddle.BackwardPlan(q, k, v, o, lse, d_o, dk=False, dv=False)
        >>> dq = np.empty_like(q)
        >>> plan.run(q, k, v, o, lse, d_o, dq=dq).dq is dq
        True
        """
        inputs = inputs_of(q, k, v, o, lse, d_o, d_lse, lse_rest)
        instead = self._instead(captures, params, changed, ArrayOptions)
        arguments = self._plan.arguments
        q_target, k_target, v_target, sinks_target = (
            planned if given is None else given for planned, given in zip(self._wanted, (dq, dk, dv, d_sinks)))
        targets = targets_of(arguments, q_target, k_target, v_target, sinks_target, (), ())
        for argument, written in (("captures", d_captures), ("params", d_params)):
            made_here: dict[str, Wanted] = dict.fromkeys(self._named[argument], True)
            set_named(targets, argument, made_here | by_name(f"d_{argument}", written or {}, {}))
        try:
            made = self._plan.run(inputs, targets, workspace, stream or 0, instead)
        except TypeError as error:
            refuse_arrays(error, {"workspace": workspace}, {})
        return gradients_of(made, targets, (instead or arguments).captures)

    def __repr__(self) -> str:
        return f"<heddle.BackwardPlan on {self.backend}, {self.workspace_bytes} bytes of workspace>"
