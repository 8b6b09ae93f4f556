"""The constants: functions and types whose results depend on their arguments alone.

A mod's expression may be kept although the mod reaches these (reached.py has the rule). What is not here is none of
them: modules hold clocks, random numbers and settings beside their functions.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
import sys
import types
from typing import Any

from .. import _core
from .loaded import loaded

BUILTIN_NAMES = """
    abs all any bin bool bytes chr complex dict divmod enumerate filter float frozenset hex int isinstance
    issubclass iter len list map max min next oct ord pow range repr reversed round set slice sorted str sum tuple
    type zip NotImplemented Ellipsis
""".split()
# Not those that write into their arguments, not attrgetter, which reads attributes by text, and not is_: the code's own
# `is` is seen in byte code.
OPERATOR_NAMES = """
    abs add and_ concat contains countOf eq floordiv ge getitem gt index indexOf inv invert is_ is_not le lshift lt
    matmul mod mul ne neg not_ or_ pos pow rshift sub truediv truth xor
""".split()
CORE_NAMES = (*_core.OPERATIONS, *"""
    as_expr clip gelu gelu_tanh leaf maximum minimum of_arguments param parse power random_uniform relu silu softplus to_f32
    to_i32 where Capture Expr
""".split())
NUMPY_TYPES = ("ndarray", "generic", "dtype", "finfo", "iinfo")
NUMBER_NAMES = ("e", "inf", "nan", "pi", "tau")
TORCH_NAMES = """
    Size Tensor device dtype finfo iinfo is_tensor sym_float sym_int sym_ite sym_max sym_min sym_not
""".split()
# All functions of these modules: they call nothing but such functions.
MODULES = ("heddle.mods", "torch.functional", "torch.nn.functional", "torch.special")


def _listed() -> dict[int, Any]:
    exceptions = [one for one in vars(builtins).values() if isinstance(one, type) and issubclass(one, Exception)]
    found = [getattr(builtins, name) for name in BUILTIN_NAMES] + exceptions
    found += [one for one in vars(math).values() if isinstance(one, types.BuiltinFunctionType)]
    found += [getattr(operator, name) for name in OPERATOR_NAMES]
    found += [getattr(_core, name) for name in CORE_NAMES]
    found += [one for name, one in vars(_core).items() if name.startswith("mod_")]
    found += [functools.partial, functools.reduce, *(getattr(math, name) for name in NUMBER_NAMES)]
    return {id(one): one for one in found}


_by_id = _listed()


@functools.cache
def _of_numpy() -> dict[int, Any]:
    numpy = loaded("numpy")
    found = [one for one in vars(numpy).values() if isinstance(one, numpy.ufunc)]
    found += [one for one in vars(numpy).values() if isinstance(one, type) and issubclass(one, numpy.generic)]
    found += [getattr(numpy, name) for name in (*NUMPY_TYPES, "e", "inf", "nan", "pi")]
    return {id(one): one for one in found}


@functools.cache
def _of_torch() -> dict[int, Any]:
    torch = loaded("torch")
    names = [name for name in dir(torch._C._VariableFunctions) if not name.startswith("__")]
    found = [getattr(torch._C._VariableFunctions, name) for name in names] + [getattr(torch, x) for x in TORCH_NAMES]
    for module in (torch._C._nn, torch._C._special, torch._C._linalg):
        found += [one for one in vars(module).values() if isinstance(one, types.BuiltinFunctionType)]
    found += [one for one in vars(torch._C.TensorBase).values()
              if isinstance(one, (types.MethodDescriptorType, types.WrapperDescriptorType))]
    found += [one for one in vars(torch).values() if isinstance(one, (torch.dtype, torch.layout, torch.memory_format))]
    found += [torch.nn.Parameter, torch.tensor, torch.as_tensor, torch.e, torch.inf, torch.nan, torch.pi]
    return {id(one): one for one in found}


def is_constant(value: Any) -> bool:
    """Whether a value is one of these. Results of torch's functions are seen by the modes of a trace besides."""
    if id(value) in _by_id:
        return True
    if isinstance(value, types.FunctionType):
        name = value.__globals__.get("__name__")
        return name in MODULES and getattr(sys.modules.get(name), value.__name__, None) is value
    return (loaded("numpy") is not None and id(value) in _of_numpy()
            or loaded("torch") is not None and id(value) in _of_torch())


CONSTANT_MODULES = ("functools", "math", "operator")
LIBRARIES = ("heddle", "numpy", "torch")


def is_library_function(function: types.FunctionType) -> bool:
    """Whether a function of a library's or the standard library's module holds nothing of the user's: it has no
    variables of another function."""
    name = function.__globals__.get("__name__", "")
    is_known = name.partition(".")[0] in LIBRARIES or name.partition(".")[0] in sys.stdlib_module_names
    return is_known and function.__closure__ is None and "<" not in function.__qualname__ and name != "__main__"


def is_library(value: Any) -> bool:
    """Whether a value is a module of a library whose functions are listed here."""
    return type(value) is types.ModuleType and value.__name__.partition(".")[0] in LIBRARIES
