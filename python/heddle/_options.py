"""The options of a call: what each accepts, and how they reach the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from . import _core
from ._core import Expr
from ._trace import MASK_ARGUMENTS, SCORE_ARGUMENTS, Traced, dtype_name

if TYPE_CHECKING:
    from ._block_mask import BlockMask

Mod = Callable[..., Any] | str | Expr | None
ParamValue = float | int | bool


class Options(TypedDict, total=False):
    """The options of heddle.attention, which plans, explanations and checks take, too."""

    score_mod: Mod
    mask_mod: Mod
    weight_mod: Mod
    captures: Mapping[str, Any] | None
    params: Mapping[str, ParamValue] | None
    scale: float | None
    sinks: Any
    normalizer: str | None
    q_lengths: Any
    kv_lengths: Any
    cu_seqlens_q: Any
    cu_seqlens_kv: Any
    page_table: Any
    q_start: Any
    kv_start: Any
    max_q_len: int | None
    max_kv_len: int | None
    q_descale: Any
    k_descale: Any
    v_descale: Any
    block_mask: BlockMask | None
    backend: str | None
    threads: int | None
    stream: int | None


_ARRAY = "an array of NumPy, or anything with __dlpack__,"
# What an option accepts, for errors.
ACCEPTED = {
    **dict.fromkeys(
        ("sinks", "q_lengths", "kv_lengths", "cu_seqlens_q", "cu_seqlens_kv", "page_table", "q_start", "kv_start",
         "q_descale", "k_descale", "v_descale"), _ARRAY),
    **dict.fromkeys(("max_q_len", "max_kv_len", "threads", "stream"), "an int"),
    **dict.fromkeys(("normalizer", "backend"), "a str"),
    "scale": "a float", "block_mask": "a heddle.BlockMask", "captures": "a dict of arrays by name",
    "params": "a dict of floats, ints of 32 bits and bools by name",
}


def refuse_type(name: str, value: Any, accepted: str) -> None:
    raise TypeError(f"{name} is {_described(value)}; {accepted} is accepted") from None


def _described(value: Any) -> str:
    if type(value) in (bool, int, float, str):
        return repr(value)
    dtype = getattr(value, "dtype", None)
    return f"of type {type(value).__name__}" + ("" if dtype is None else f" with elements {dtype}")


def param_type(value: ParamValue) -> str:
    """The type of a param that gets this value: 'bool', 'i32' or 'f32'."""
    if isinstance(value, bool):
        return "bool"
    return "i32" if isinstance(value, int) else "f32"


class Tracer(Traced):
    """Traced, and text may name params."""

    def __init__(self, captures: Mapping[str, Any] | None, params: Mapping[str, ParamValue] | None) -> None:
        super().__init__(captures)
        self.params: dict[str, ParamValue] = dict(params or {})

    def of(self, mod: Any, arguments: tuple[str, ...]) -> Any:
        if isinstance(mod, str):
            declared = {name: (dtype_name(array), len(array.shape)) for name, array in self.captures.items()}
            return _core.parse(mod, declared, {name: param_type(value) for name, value in self.params.items()})
        return super().of(mod, arguments)


def set_values(target: Any, captures: Mapping[str, Any], params: Mapping[str, ParamValue]) -> None:
    """Fills `target.captures` and `target.params`. Raises TypeError that names the one that is none."""
    try:
        target.captures = captures
    except TypeError:
        for name, array in captures.items():
            if not hasattr(array, "__dlpack__"):
                refuse_type(f"capture '{name}'", array, _ARRAY)
        raise
    try:
        target.params = params
    except TypeError:
        refuse_type("params", params, ACCEPTED["params"])


def values_of(captures: Mapping[str, Any], params: Mapping[str, ParamValue]) -> _core.NamedValues:
    values = _core.NamedValues()
    set_values(values, dict(captures), dict(params))
    return values


def arguments_of(
    score_mod: Mod, mask_mod: Mod, weight_mod: Mod, captures: Mapping[str, Any] | None,
    params: Mapping[str, ParamValue] | None, options: Mapping[str, Any],
) -> _core.Arguments:
    """The options as the library takes them. Options that are None keep their default."""
    arguments = _core.Arguments()
    block_mask = options.get("block_mask")
    if block_mask is not None and not isinstance(getattr(block_mask, "_mask", None), _core.BlockMask):
        refuse_type("block_mask", block_mask, ACCEPTED["block_mask"])
    if block_mask is not None and mask_mod is None:  # its mask applies, with what it was built from
        captures, params = {**block_mask.captures, **(captures or {})}, {**block_mask.params, **(params or {})}
    if score_mod is not None or mask_mod is not None or weight_mod is not None or captures:
        traced = Tracer(captures, params)
        if mask_mod is not None:  # first, so that its captures are named as in BlockMask.build
            arguments.mask_mod = traced.of(mask_mod, MASK_ARGUMENTS)
        if score_mod is not None:
            arguments.score_mod = traced.of(score_mod, SCORE_ARGUMENTS)
        if weight_mod is not None:
            arguments.weight_mod = traced.of(weight_mod, MASK_ARGUMENTS)
        set_values(arguments, traced.captures, traced.params)
    elif params:
        set_values(arguments, {}, dict(params))
    for name, value in options.items():
        if value is not None:
            try:
                setattr(arguments, name, value._mask if name == "block_mask" else value)
            except (TypeError, AttributeError):
                if name not in ACCEPTED:
                    raise TypeError(f"'{name}' is no option of heddle.attention") from None
                refuse_type(name, value, ACCEPTED[name])
    return arguments
