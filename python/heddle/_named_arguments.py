"""Errors that name the argument: those of Python and nanobind for a value of another type name neither the argument nor
the accepted types."""

from __future__ import annotations

import functools
import inspect
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from . import _core, _mod
from ._dtypes import dtype_name
from ._mod import Mod
from ._tracing.kinds import is_array
from ._options import BackwardOptions, ModOptions, is_unicode, refuse_type, types_of

_BARE = re.compile("incompatible function arguments|truth value of an array|is not iterable|has no attribute|has no len"
                   "|cannot be interpreted as an integer|expected str, bytes or os.PathLike|integer scalar arrays"
                   "|not supported between instances|unsupported operand|not subscriptable|must be a string|a mod computes with|iteration over a 0-d|of unsized object|missing a required")
_OPTIONS = {**types_of(ModOptions), **types_of(BackwardOptions)}
_LEAST, _MOST = -(2**63), 2**63 - 1

Function = TypeVar("Function", bound=Callable[..., Any])


def refuses_by_name(function: Function) -> Function:
    """The function, which raises TypeError with the argument's name where a bare error says that one is wrong."""
    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            refuse_wrong(function, error, given, named)
            raise

    return call  # type: ignore[return-value]


def checks_arguments(function: Function) -> Function:
    """The function, with a check of its arguments' types first: their errors would come later, where its result is
    used. A mod that it makes knows its recipe."""
    parameters = inspect.signature(function).parameters
    names, tests = tuple(parameters), tuple([tests_of(one.annotation) for one in parameters.values()])
    defaults = {name: one.default for name, one in parameters.items() if one.default is not inspect.Parameter.empty}
    makes_mods = function.__annotations__.get("return") == "Mod"

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            values = given if len(given) == len(names) else (
                *given, *[named[name] if name in named else defaults[name] for name in names[len(given):]])
        except KeyError:
            return function(*given, **named)  # Python says which one is missing
        if makes_mods and _mod.is_compiling is not None and _mod.is_compiling():
            return with_recipe(Mod(function, function.__name__), function.__name__, values)
        for name, value, of in zip(names, values, tests):
            accepted = accepted_instead(name, value, of)
            if accepted:
                refuse_type(name, value, accepted)
        made = function(*given, **named)
        return with_recipe(made, function.__name__, values) if makes_mods else made

    return call  # type: ignore[return-value]


def with_recipe(mod: Any, name: str, values: Sequence[Any]) -> Any:
    if not values:
        mod.recipe = name, "[]", (), ()
        return mod
    if any(issubclass(type(one), _core.Capture) for one in values):  # made while heddle traces: a mod of expressions
        return mod
    arrays = tuple([one for one in values if is_array(one)])
    if _mod.as_tensor is not None:
        arrays = tuple([_mod.as_tensor(one) for one in arrays])
    exprs = tuple([one for one in values if isinstance(one, _core.Expr)])
    mod.recipe = name, repr([described(one) for one in values]), arrays, exprs
    return mod


def described(value: Any) -> Any:
    """An argument of a ready-made mod: a number, an array's type and rank, None for an expression."""
    if is_array(value):
        return dtype_name(value), len(value.shape)
    if type(value) is int:
        return operator.index(value)  # the number, also of one that Dynamo keeps open
    return None if isinstance(value, _core.Expr) else value.item() if hasattr(value, "item") else value


def is_bare(error: Exception) -> bool:
    """Whether the error is Python's, NumPy's or nanobind's, and speaks of no argument by name."""
    return _BARE.search(str(error)) is not None


def refuse_wrong(
    function: Callable[..., Any], error: Exception, given: Sequence[Any], named: Mapping[str, Any]
) -> None:
    """Raises TypeError that names the first argument that is not of its annotated type. Returns if all are, if the
    function cannot be called with so many, and if the error is not a bare one."""
    text = str(error)
    for ours, theirs in (("out", "o "), ("device_name", "gpu ")):  # the library's names
        if text.startswith(theirs) and (ours != "out" or named.get("out") is not None):
            raise type(error)(f"{ours} {text[len(theirs):]}") from None
    if is_bare(error):
        refuse_misfits(function, given, named)


def refuse_misfits(function: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]) -> None:
    wrong = misfit(function, given, named)
    if wrong is not None:
        refuse_type(*wrong)


def misfit(
    function: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]
) -> tuple[str, Any, str] | None:
    """The first argument that is not of its annotated type: its name, itself, and what is accepted. None if all are, or
    if the function cannot be called with so many."""
    try:
        bound = inspect.signature(function).bind(*given, **named)
    except TypeError:
        return None
    parameters = bound.signature.parameters
    for name, value in bound.arguments.items():
        if parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            values = [(option, one, _OPTIONS.get(option, "Any")) for option, one in value.items()]
        else:
            values = [(name, value, parameters[name].annotation)]
        for option, one, annotation in values:
            accepted = accepted_instead(option, one, tests_of(annotation))
            if accepted:
                return option, one, accepted
    return None


Tests = list[tuple[Callable[[Any], bool], str]] | None


def tests_of(annotation: Any) -> Tests:
    """What a value of this annotation fits, and how that is called. None: anything may fit."""
    if not isinstance(annotation, str):
        return None
    kinds = [one.strip() for one in re.sub(r"\[[^\[\]]*(\[[^\[\]]*\][^\[\]]*)*\]", "", annotation).split("|")]
    return None if any(kind not in FITS for kind in kinds) else [FITS[kind] for kind in kinds]


def accepted_instead(name: str, value: Any, tests: Tests) -> str:
    """What is accepted instead of the value; empty if it fits."""
    if name == "stream" and is_integer(value) and value < 0:
        return "an int that is not negative"
    if tests is None or any(fits(value) for fits, _ in tests):
        return ""
    return " or ".join(words for _, words in tests if words)


def is_number(value: Any) -> bool:
    kind = type(value)
    if kind is int and abs(value) >= 2**1024:  # no float has it
        return False
    if getattr(value, "shape", ()) != () or isinstance(value, (complex, str, bytes)):
        return False
    if getattr(getattr(value, "dtype", None), "kind", "f") not in "biuf":
        return False
    return hasattr(kind, "__float__") or hasattr(kind, "__index__")


def is_integer(value: Any) -> bool:
    try:
        return bool(_LEAST <= operator.index(value) <= _MOST)
    except TypeError:
        return False


def is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes)) and getattr(value, "shape", None) != ()


def is_names(value: Any) -> bool:
    return is_list(value) and not hasattr(value, "shape")


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


# By the names that annotations have; heddle.torch adds its own.
FITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "None": (lambda value: value is None, ""),
    "int": (is_integer, "an int of 64 bits"),
    "float": (is_number, "a float"),
    "bool": (is_flag, "a bool"),
    "str": (lambda value: isinstance(value, str) and is_unicode(value), "a str"),
    "os.PathLike": (lambda value: isinstance(value, os.PathLike), "a path"),
    "Array": (lambda value: hasattr(value, "__dlpack__"), "an array of NumPy, or anything with __dlpack__,"),
    "Expr": (lambda value: isinstance(value, _core.Expr), "an expression"),
    "tuple": (lambda value: isinstance(value, Sequence) and all(is_integer(one) for one in value), "a pair of ints"),
    "WantedCaptures": (is_names, "a list of names or arrays, or a dict of arrays by name,"),
    "WantedParams": (is_names, "a list of names, or a dict of arrays by name,"),
    "Callable": (callable, "a function"),
    "dict": (lambda value: isinstance(value, Mapping), "a dict"),
    "Mapping": (lambda value: isinstance(value, Mapping), "a dict by name"),
    "Sequence": (is_list, "a list"),
    "Integers": (lambda value: is_integer(value) or is_list(value), "an int or a list of ints"),
}
