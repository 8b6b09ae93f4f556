"""The backward in one call."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias, Unpack

from . import _core
from ._alignment import align_captures
from ._core import GradientReport
from ._named_arguments import refuses_by_name
from ._options import BackwardOptions, given_arguments, is_unicode, refuse_arrays, refuse_no_dict, refuse_type
from ._plan import Explanation
from ._rows import with_unit_rows
from ._tensor import Tensor, public
from ._types import Array

Wanted: TypeAlias = bool | Array
# Names, or the arrays themselves where a mod found them; or names with the arrays that the gradients are written to.
WantedCaptures: TypeAlias = Iterable[str | Array] | Mapping[str, Array]
WantedParams: TypeAlias = Iterable[str] | Mapping[str, Array]


class Gradients:
    """The requested gradients: dq, dk, dv and d_sinks (None if not requested), and the dicts d_captures and d_params,
    by name. Each has the shape of its tensor."""

    __slots__ = ("dq", "dk", "dv", "d_sinks", "d_captures", "d_params", "_captures")

    def __init__(
        self, dq: Any = None, dk: Any = None, dv: Any = None, d_sinks: Any = None,
        d_captures: Mapping[str, Any] | None = None, d_params: Mapping[str, Any] | None = None,
    ) -> None:
        self.dq, self.dk, self.dv, self.d_sinks = dq, dk, dv, d_sinks
        self.d_captures, self.d_params = dict(d_captures or {}), dict(d_params or {})
        self._captures: Mapping[str, Any] = {}

    def of(self, array: Array) -> Any:
        """The gradient of an array that a mod read. If it is captured under several names, the sum of the requested
        gradients. Raises KeyError if none was requested.

        >>> import numpy as np, heddle
        >>> q = k = v = d_o = np.ones((1, 1, 4, 8), np.float32)
        >>> slopes = np.ones(1, np.float32)
        >>> alibi = heddle.mods.alibi(slopes)
        >>> o, lse = heddle.attention(q, k, v, score_mod=alibi, return_lse=True)
        >>> heddle.attention_backward(q, k, v, o, lse, d_o, score_mod=alibi, d_captures=[slopes]).of(slopes).shape
        (1,)
        """
        asked = [self.d_captures[name] for name, one in self._captures.items()
                 if one is array and name in self.d_captures]
        if not asked:
            raise KeyError("an array whose gradient was not asked for")
        return asked[0] if len(asked) == 1 else sum_of(asked)

    def __repr__(self) -> str:
        made = [name for name in ("dq", "dk", "dv", "d_sinks") if getattr(self, name) is not None]
        made += [f"d_captures['{name}']" for name in self.d_captures]
        made += [f"d_params['{name}']" for name in self.d_params]
        return f"<heddle.Gradients {', '.join(made) or 'without any'}>"


def sum_of(gradients: list[Any]) -> Any:
    """Their sum, of the first one's type: NumPy has no arithmetic for a Tensor's elements."""
    first = gradients[0]
    if not isinstance(first, Tensor):
        return functools.reduce(operator.add, gradients)
    total = functools.reduce(operator.add, (one.cpu().to("float32").numpy() for one in gradients))
    return Tensor.of(total).to(first.dtype).on(first.device)


def inputs_of(q: Array, k: Array, v: Array, o: Array, lse: Array | None, d_o: Array,
              d_lse: Array | None, lse_rest: Array | None = None) -> _core.BackwardInputs:
    """Raises TypeError that names the one which is no array."""
    given_arrays = q, k, v, o, lse, d_o, d_lse, lse_rest
    q, k, v, o, lse, d_o, d_lse, lse_rest = with_unit_rows(*given_arrays) or given_arrays
    try:
        return _core.BackwardInputs(q, k, v, o, lse, d_o, d_lse, lse_rest)
    except TypeError as error:
        given = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "d_o": d_o,
                 **{name: x for name, x in (("d_lse", d_lse), ("lse_rest", lse_rest)) if x is not None}}
        refuse_arrays(error, {}, given)


def set_target(targets: _core.Targets, name: str, value: Wanted) -> None:
    try:
        setattr(targets, name, value)
    except TypeError as error:
        refuse_target(error, "d_sinks" if name == "sinks" else f"d{name}", value)


def refuse_target(error: TypeError, name: str, value: Any) -> None:
    if not hasattr(value, "__dlpack__"):
        refuse_type(name, value, "a bool, or an array that can be written,")
    refuse_arrays(error, {name: value}, {})


def names_of(argument: str, array: Any, captures: Mapping[str, Any], read: Collection[str]) -> list[str]:
    """The names under which score_mod and weight_mod (which read `read`) capture an array. Names are what they are."""
    if isinstance(array, str):
        if not is_unicode(array):
            refuse_type(f"an element of {argument}", array, "a name")
        return [array]
    if not hasattr(array, "__dlpack__"):
        refuse_type(f"an element of {argument}", array, "a name" if argument == "d_params" else
                    "a name, or an array that a mod reads,")
    found = [name for name, one in captures.items() if one is array]
    if not found:
        raise ValueError(f"{argument} has an array that no mod reads; the captures are "
                         f"{', '.join(repr(name) for name in captures) or 'none'}")
    return [name for name in found if name in read] or found[:1]


def by_name(
    argument: str, wanted: Any, captures: Mapping[str, Any], read: Collection[str] = ()
) -> dict[str, Wanted]:
    if isinstance(wanted, str) or not isinstance(wanted, Iterable):
        refuse_type(argument, wanted, "a list of names, or a dict of arrays by name,")
    if not isinstance(wanted, Mapping):
        return {name: True for one in wanted for name in names_of(argument, one, captures, read)}
    refuse_no_dict(argument, wanted, "arrays")
    for name, array in wanted.items():
        if not hasattr(array, "__dlpack__"):
            refuse_type(f"{argument}['{name}']", array, "an array that can be written")
    return dict(wanted)


def targets_of(
    arguments: _core.Arguments, dq: Wanted, dk: Wanted, dv: Wanted, d_sinks: Wanted, d_captures: WantedCaptures,
    d_params: WantedParams,
) -> _core.Targets:
    """The gradients that are asked for. Raises TypeError and ValueError that name the argument."""
    targets = _core.Targets()
    for name, value in (("q", dq), ("k", dk), ("v", dv), ("sinks", d_sinks)):
        if value is not False:
            set_target(targets, name, value)
    for argument, wanted in (("captures", d_captures), ("params", d_params)):
        if wanted:
            captures = arguments.captures if argument == "captures" else {}
            read = {*arguments.score_mod.captures, *arguments.weight_mod.captures}
            set_named(targets, argument, by_name(f"d_{argument}", wanted, captures, read))
    return targets


def set_named(targets: _core.Targets, argument: str, named: dict[str, Wanted]) -> None:
    """`argument`: "captures" or "params"."""
    try:
        setattr(targets, argument, named)
    except TypeError as error:
        refuse_arrays(error, {f"d_{argument}['{name}']": x for name, x in named.items() if x is not True}, {})


def gradients_of(made: tuple[Any, ...], targets: _core.Targets, captures: Mapping[str, Any]) -> Gradients:
    """The gradients that were made, and the given arrays that were written."""
    def one(new: Any, given: Any) -> Any:
        if new is not None:
            return public(new)
        return None if isinstance(given, bool) else given

    dq, dk, dv, d_sinks, of_captures, of_params = made
    result = Gradients(
        one(dq, targets.q), one(dk, targets.k), one(dv, targets.v), one(d_sinks, targets.sinks),
        {name: one(of_captures.get(name), given) for name, given in targets.captures.items()},
        {name: one(of_params.get(name), given) for name, given in targets.params.items()})
    result._captures = captures if result.d_captures else {}
    return result


@refuses_by_name
def attention_backward(
    q: Array, k: Array, v: Array, o: Array, lse: Array | None, d_o: Array, d_lse: Array | None = None,
    *, lse_rest: Array | None = None,
    dq: Wanted = True, dk: Wanted = True, dv: Wanted = True, d_sinks: Wanted = False, d_captures: WantedCaptures = (),
    d_params: WantedParams = (), **options: Unpack[BackwardOptions],
) -> Gradients:
    """The gradients of a loss with respect to the inputs of heddle.attention(q, k, v, **options).

    - o and lse are the results of that call (lse: None with the normalizers none and sigmoid). They are not checked.
    - d_o [B, Hq, Sq, Dv] and d_lse [B, Hq, Sq] are the loss's gradients with respect to o and lse. No d_lse: 0.
    - lse_rest: as heddle.attention wrote it with lse. Pass it if scores are large (1e4 and more, or masks that add a
      huge number); without it, the rounding error of lse makes gradients wrong.
    - dq, dk, dv, d_sinks: True returns the gradient in a new array, an array is written, False computes nothing. Your
      arrays have the input's shape, any floating dtype, and a unit last stride.
    - d_captures: names of floating arrays that score_mod or weight_mod reads, or the arrays themselves; or a dict of
      the arrays that their gradients are written to, by name. d_params: the same for params whose value is a float.
    - The options are those of heddle.attention. `deterministic`: the same bits in each run (on the CPU always).
      `partial_keys`: k and v are a part of the keys, o and lse belong to all keys; dq and gradients of captures and
      params are then terms of a sum over the parts.

    The library derives the derivatives of the mods. Masks, indices, scale and lengths are constants. At a kink (abs,
    max, where, floor) the derivative is that of the branch taken. New arrays have their tensor's dtype
    (bfloat16 for 8 bits; for captures that are not float64, float32, float16 or bfloat16: float32).

    Raises as heddle.attention does, and ValueError for the gradient of a name that has none (an integer array, a mask's
    array).

    >>> import numpy as np, heddle
    >>> x = np.random.default_rng(0).standard_normal((4, 1, 2, 16, 8), np.float32)
    >>> q, k, v, d_o = x
    >>> slopes = np.ones(2, np.float32)
    >>> alibi = lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)
    >>> o, lse = heddle.attention(q, k, v, score_mod=alibi, return_lse=True)
    >>> gradients = heddle.attention_backward(q, k, v, o, lse, d_o, score_mod=alibi, d_captures=[slopes])
    >>> gradients
    <heddle.Gradients dq, dk, dv, d_captures['slopes']>
    >>> gradients.dk.shape, gradients.of(slopes).shape
    ((1, 2, 16, 8), (2,))
    """
    arguments = given_arguments(options)
    inputs = inputs_of(q, k, v, o, lse, d_o, d_lse, lse_rest)
    targets = targets_of(arguments, dq, dk, dv, d_sinks, d_captures, d_params)
    captures = arguments.captures if d_captures else {}
    align_captures(arguments)
    made = _core.attention_backward(inputs, targets, arguments)
    return gradients_of(made, targets, captures)


@refuses_by_name
def explain_backward(
    q: Array, k: Array, v: Array, o: Array, lse: Array | None, d_o: Array, d_lse: Array | None = None,
    *, lse_rest: Array | None = None,
    dq: Wanted = True, dk: Wanted = True, dv: Wanted = True, d_sinks: Wanted = False, d_captures: WantedCaptures = (),
    d_params: WantedParams = (), device_name: str | None = None, **options: Unpack[BackwardOptions],
) -> Explanation:
    """Explains what heddle.attention_backward does with the same arguments. `device_name`: explains the plan for a GPU
    that this machine need not have ("h200"); the arrays may then be anywhere, and are not read. Raises as
    heddle.attention_backward.

    >>> import numpy as np, heddle
    >>> q = k = v = o = d_o = np.ones((1, 1, 4, 8), np.float32)
    >>> lse = np.ones((1, 1, 4), np.float32)
    >>> heddle.explain_backward(q, k, v, o, lse, d_o, mask_mod=heddle.mods.causal()).stages["mods"]["mask"]["given"]
    'kv_idx <= q_idx'
    """
    arguments = given_arguments(options)
    inputs = inputs_of(q, k, v, o, lse, d_o, d_lse, lse_rest)
    targets = targets_of(arguments, dq, dk, dv, d_sinks, d_captures, d_params)
    align_captures(arguments)
    text, stages, picture = _core.explain_backward(inputs, targets, arguments, device_name)
    return Explanation(text, json.loads(stages), picture)


@refuses_by_name
def check_backward(
    q: Array, k: Array, v: Array, o: Array, lse: Array | None, d_o: Array, d_lse: Array | None = None,
    *, lse_rest: Array | None = None,
    gradients: Gradients, **options: Unpack[BackwardOptions],
) -> GradientReport:
    """Checks gradients of heddle.attention_backward with the same arguments, by one criterion for all backends: the
    error against a backward in float64 is at most twice that of a plain, unfused backward. `print` shows the figures;
    the report is true if all gradients passed.

    It costs Sq * Skv interpreted elements a head, several times. Raises as heddle.attention_backward.

    >>> import numpy as np, heddle
    >>> q, k, v, d_o = np.random.default_rng(0).standard_normal((4, 1, 2, 16, 8), np.float32)
    >>> o, lse = heddle.attention(q, k, v, return_lse=True)
    >>> gradients = heddle.attention_backward(q, k, v, o, lse, d_o)
    >>> bool(heddle.check_backward(q, k, v, o, lse, d_o, gradients=gradients))
    True
    >>> gradients.dv *= 2
    >>> bool(heddle.check_backward(q, k, v, o, lse, d_o, gradients=gradients))
    False
    """
    if not isinstance(gradients, Gradients):
        refuse_type("gradients", gradients, "what heddle.attention_backward returned")
    arguments = given_arguments(options)
    inputs = inputs_of(q, k, v, o, lse, d_o, d_lse, lse_rest)
    given = {name: False if x is None else x for name, x in (
        ("dq", gradients.dq), ("dk", gradients.dk), ("dv", gradients.dv), ("d_sinks", gradients.d_sinks))}
    targets = targets_of(arguments, **given, d_captures=gradients.d_captures, d_params=gradients.d_params)
    align_captures(arguments)
    return _core.check_backward(inputs, targets, arguments)
