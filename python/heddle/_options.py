"""The options of a call: what each accepts, and how they reach the library."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, TypeVar

from . import _core
from ._alignment import aligned
from ._tracing.kinds import is_array
from ._dtypes import dtype_name
from ._mod import MASK_ARGUMENTS, RESERVED, SCORE_ARGUMENTS, Mod
from ._types import Array, ModLike, ParamValue
from ._tracing.trace import Traced, recognised

if TYPE_CHECKING:
    from ._block_mask import BlockMask


class ModOptions(TypedDict, total=False):
    """The mods of a call, and their captures and params by name."""

    score_mod: ModLike
    mask_mod: ModLike
    weight_mod: ModLike
    captures: Mapping[str, Array] | None
    params: Mapping[str, ParamValue] | None


class ArrayOptions(TypedDict, total=False):
    """Arrays of which each run of a plan may have others."""

    sinks: Array | None
    q_lengths: Array | None
    kv_lengths: Array | None
    cu_seqlens_q: Array | None
    cu_seqlens_kv: Array | None
    q_start: Array | None
    kv_start: Array | None
    prefix_group: Array | None
    prefix_len: Array | None
    q_descale: Array | None
    k_descale: Array | None
    v_descale: Array | None


class PagedOptions(ArrayOptions, total=False):
    """Arrays of which each run of a forward's plan may have others."""

    page_table: Array | None
    page_starts: Array | None
    q_rest: Array | None
    k_rest: Array | None


class Options(ModOptions, PagedOptions, total=False):
    """The options of heddle.attention, which plans, explanations and checks take, too. A row here is all that an option
    needs in Python; heddle._core.Arguments has it under its name."""

    scale: float | None
    normalizer: str | None
    max_q_len: int | None
    max_kv_len: int | None
    fresh_tokens: int | None
    block_mask: BlockMask | None
    backend: str | None
    tuning: str | None
    threads: int | None
    clamp_reads: bool | None
    batch_invariant: bool | None
    allow_tf32: bool | None
    stream: int | None


class BackwardOptions(Options, total=False):
    """The options of heddle.attention_backward."""

    deterministic: bool | None
    partial_keys: bool | None


def types_of(options: Any) -> dict[str, str]:
    """The options of one of these classes, and the text of their types."""
    return {name: getattr(hint, "__forward_arg__", hint) for name, hint in options.__annotations__.items()}


_ARRAY = "an array of NumPy, or anything with __dlpack__,"
_WORDS = {"Array": _ARRAY, "int": "an int of 64 bits", "str": "a str", "bool": "a bool", "float": "a float",
          "BlockMask": "a heddle.BlockMask"}
_OF_MODS = types_of(ModOptions).keys()
# The values that an option accepts, for errors.
ACCEPTED = {name: _WORDS[text.removesuffix(" | None")] for name, text in types_of(BackwardOptions).items()
            if name not in _OF_MODS}

Function = TypeVar("Function", bound=Callable[..., Any])


def spelled_out(options: Any) -> Callable[[Function], Function]:
    """Gives a function that takes these options as **keywords a signature that names each, for help() and editors."""
    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        own += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=text)
                for name, text in types_of(options).items()]
        function.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        return function

    return decorate


def refuse_unknown(function: str, given: Mapping[str, Any], options: Any) -> None:
    """Raises TypeError, as Python does, for a keyword that is none of these options."""
    for name in given:
        if name not in options.__annotations__:
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")


def refuse_type(name: str, value: Any, accepted: str) -> NoReturn:
    if isinstance(value, str) and not is_unicode(value):
        accepted = "text of Unicode, without lone surrogates,"
    raise TypeError(f"{name} is {_described(value)}; {accepted} is accepted") from None


def is_unicode(text: str) -> bool:
    """Whether UTF-8 has all characters of it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_no_dict(name: str, given: Any, of: str) -> None:
    """Raises TypeError for values by name that are no dict, or whose names are no text."""
    if not isinstance(given, Mapping):
        refuse_type(name, given, f"a dict of {of} by name")
    for key in given:
        if not isinstance(key, str) or not is_unicode(key):
            refuse_type(f"a key of {name}", key, "a str")


def _described(value: Any) -> str:
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    dtype = getattr(value, "dtype", None)
    return f"of type {type(value).__name__}" + ("" if dtype is None else f" with elements {dtype}")


def param_type(value: ParamValue) -> str:
    """The type of a param that gets this value: 'bool', 'i32' or 'f32'."""
    if isinstance(value, bool):
        return "bool"
    return "i32" if isinstance(value, int) else "f32"


def refuse_arrays(error: Exception, outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> NoReturn:
    """Raises TypeError or ValueError that names the argument which is no array, or which cannot be written; else the
    error itself."""
    for name, value in {**inputs, **outputs}.items():
        if value is None and name in ("out", "lse", "max_scores", "lse_rest", "workspace"):  # not given
            continue
        if not hasattr(value, "__dlpack__"):
            refuse_type(name, value, _ARRAY)
        if name in outputs and not getattr(getattr(value, "flags", None), "writeable", True):
            raise ValueError(f"{name} is read-only; an array that can be written is accepted") from None
        refuse_unreadable(name, value)
    raise error


def refuse_unreadable(name: str, value: Any) -> None:
    """Raises TypeError, by name, for values that are no arrays and for arrays that cannot be read."""
    if not hasattr(value, "__dlpack__"):
        refuse_type(name, value, _ARRAY)
    try:
        _core.check_array(value)
    except TypeError:
        way = "x.filled(), without a mask," if hasattr(value, "harden_mask") else "an array that exports its memory by "\
            "DLPack (of ml_dtypes: heddle.Tensor.of(it))"
        refuse_type(name, value, way)


def params_of(given: Mapping[str, ParamValue] | None) -> dict[str, ParamValue]:
    """Python's numbers of a call's params. Raises TypeError and ValueError for what is none, by name."""
    params: dict[str, ParamValue] = {}
    for name, value in (given or {}).items():
        item: Any = value
        is_other = not isinstance(value, (bool, int, float)) and hasattr(value, "item")
        if is_other and all(extent == 1 for extent in getattr(value, "shape", ())):
            item = item.item()
        if not isinstance(item, (bool, int, float)):
            refuse_type(f"param '{name}'", value, "a float, an int of 32 bits or a bool")
        if isinstance(item, int) and not -(2**31) <= item < 2**31:
            raise ValueError(f"param '{name}' is {item}; an int of 32 bits is accepted")
        params[name] = item
    return params


class Tracer(Traced):
    """Traced, which also takes ready-made mods, and text that names params."""

    def __init__(self, captures: Mapping[str, Array] | None, params: Mapping[str, ParamValue] | None) -> None:
        if captures:
            refuse_no_dict("captures", captures, "arrays")
            for name, array in captures.items():
                if not is_array(array):
                    refuse_type(f"capture '{name}'", array, _ARRAY)
        super().__init__(captures)
        if params:
            refuse_no_dict("params", params, "numbers")
        self.params = params_of(params) if params else {}

    def of(self, mod: Any, arguments: tuple[str, ...], name: str = "mask_mod") -> Any:
        """`name`: the argument that the mod is."""
        if isinstance(mod, Mod):
            if mod.expr is not None:
                return mod.expr
            return super().of(mod.function, arguments)
        if isinstance(mod, str):
            if not is_unicode(mod):
                refuse_type(name, mod, "text")
            declared = {key: (dtype_name(array, f"capture '{key}'"), len(array.shape)) for key, array in self.captures.items()}
            types = {key: param_type(value) for key, value in self.params.items()}
            refuse_words(declared, types)
            try:
                return _core.parse(mod, declared, types)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        if mod is not None and not isinstance(mod, _core.Expr) and not callable(mod):
            refuse_type(name, mod, "a function, text or an expression")
        return super().of(mod, arguments)


def refuse_words(captures: Iterable[str], params: Iterable[str]) -> None:
    """Raises ValueError for a name that a text cannot mean, because it is a word of texts."""
    try:
        for what, names in (("capture", captures), ("param", params)):
            for name in RESERVED.intersection(names):
                _core.require_name(what, name)
    except ValueError as error:
        raise ValueError(f"{error}; rename it") from None


def set_values(
    target: Any, captures: Mapping[str, Any], params: Mapping[str, ParamValue], may_copy: bool = False
) -> None:
    """Fills `target.captures` and `target.params`; may_copy: with copies of what NumPy does not export. Raises TypeError
    that names the one that is none."""
    try:
        target.captures = captures
    except TypeError:
        copies = {name: aligned(x) for name, x in captures.items()} if may_copy else captures
        if any(copies[name] is not x for name, x in captures.items()):
            return set_values(target, copies, params)
        for name, array in captures.items():
            refuse_unreadable(f"capture '{name}'", array)
        raise
    if params:
        refuse_no_dict("params", params, "numbers")
        target.params = params_of(params)


def values_of(captures: Mapping[str, Any], params: Mapping[str, ParamValue]) -> _core.NamedValues:
    values = _core.NamedValues()
    set_values(values, dict(captures), params)
    return values


def given_arguments(options: Options, may_copy: bool = True) -> _core.Arguments:
    """The options of a call as the library takes them. Those that are None keep their default. may_copy: captures that
    NumPy does not export may be copies, whose later changes are not seen.

    Raises TypeError that names the one that is wrong.
    """
    arguments = _core.Arguments()
    score_mod, mask_mod, weight_mod = options.get("score_mod"), options.get("mask_mod"), options.get("weight_mod")
    captures, params, block_mask = options.get("captures"), options.get("params"), options.get("block_mask")
    if block_mask is not None and not isinstance(getattr(block_mask, "_mask", None), _core.BlockMask):
        refuse_type("block_mask", block_mask, ACCEPTED["block_mask"])
    if block_mask is not None and mask_mod is None:  # its mask applies, with what it was built from
        captures, params = {**block_mask.captures, **(captures or {})}, {**block_mask.params, **(params or {})}
    if not captures and not params and sets_one_known(arguments, score_mod, mask_mod, weight_mod):
        pass
    elif score_mod is not None or mask_mod is not None or weight_mod is not None or captures:
        traced = Tracer(captures, params)
        if mask_mod is not None:  # first, so that its captures are named as in BlockMask.build
            arguments.mask_mod = traced.of(mask_mod, MASK_ARGUMENTS, "mask_mod")
        if score_mod is not None:
            arguments.score_mod = traced.of(score_mod, SCORE_ARGUMENTS, "score_mod")
        if weight_mod is not None:
            arguments.weight_mod = traced.of(weight_mod, MASK_ARGUMENTS, "weight_mod")
        set_values(arguments, traced.captures, traced.params, may_copy)
    elif params:
        set_values(arguments, {}, params)
    set_options(arguments, options)
    return arguments


def sets_one_known(arguments: _core.Arguments, score_mod: ModLike, mask_mod: ModLike, weight_mod: ModLike) -> bool:
    """Sets the mod of a call that has only one, if it was met before."""
    given = score_mod if score_mod is not None else mask_mod if mask_mod is not None else weight_mod
    if given is None or (score_mod is not None) + (mask_mod is not None) + (weight_mod is not None) > 1:
        return False
    function = given.function if type(given) is Mod and given.expr is None else given
    if not callable(function):
        return False
    if score_mod is not None:
        return recognised[SCORE_ARGUMENTS].set_score(arguments, function)
    masks = recognised[MASK_ARGUMENTS]
    return (masks.set_mask if mask_mod is not None else masks.set_weight)(arguments, function)


def set_options(arguments: _core.Arguments, options: Mapping[str, Any]) -> None:
    """Sets those that are not None, but for mods. Raises TypeError that names the one that is wrong."""
    for name, value in options.items():
        if value is None or name in _OF_MODS:
            continue
        try:
            setattr(arguments, name, value._mask if name == "block_mask" else value)
        except (TypeError, AttributeError):
            if getattr(value, "dtype", None) == "bool" and value.shape == () and "bool" in ACCEPTED.get(name, ""):
                setattr(arguments, name, bool(value))  # NumPy's
                continue
            if name not in ACCEPTED:
                raise TypeError(f"'{name}' is no option that is accepted here") from None
            refuse_type(name, value, ACCEPTED[name])
