"""A function's byte code: the names that it reads, and what it does with their values."""

from __future__ import annotations

import builtins
import dis
import functools
import types
from collections.abc import Iterator
from typing import Any

from .. import _core
from .loaded import loaded

# Instructions that reach nothing but the values on the stack, Python 3.11 to 3.14. What is in no list here is refused.
ON_THE_STACK = frozenset("""
    BINARY_OP BINARY_SLICE BINARY_SUBSCR BUILD_CONST_KEY_MAP BUILD_LIST BUILD_MAP BUILD_SET BUILD_SLICE BUILD_STRING
    BUILD_TUPLE CALL CALL_FUNCTION_EX CALL_INTRINSIC_1 CALL_INTRINSIC_2 CALL_KW CHECK_EXC_MATCH COMPARE_OP CONTAINS_OP
    CONVERT_VALUE COPY COPY_FREE_VARS DELETE_FAST DICT_MERGE DICT_UPDATE END_FOR END_SEND FORMAT_SIMPLE FORMAT_VALUE
    FORMAT_WITH_SPEC FOR_ITER GET_ITER GET_LEN GET_YIELD_FROM_ITER IS_OP KW_NAMES LIST_APPEND LIST_EXTEND LIST_TO_TUPLE
    LOAD_ASSERTION_ERROR LOAD_CLOSURE LOAD_COMMON_CONSTANT LOAD_CONST LOAD_SMALL_INT MAKE_CELL MAKE_FUNCTION MAP_ADD
    MATCH_KEYS MATCH_MAPPING MATCH_SEQUENCE NOP NOT_TAKEN POP_EXCEPT POP_ITER POP_TOP PUSH_EXC_INFO PUSH_NULL
    RAISE_VARARGS RERAISE RESUME RETURN_CONST RETURN_GENERATOR RETURN_VALUE SEND SET_ADD SET_FUNCTION_ATTRIBUTE
    SET_UPDATE STORE_FAST STORE_FAST_MAYBE_NULL STORE_FAST_STORE_FAST SWAP TO_BOOL UNARY_INVERT UNARY_NEGATIVE
    UNARY_NOT UNARY_POSITIVE UNPACK_EX UNPACK_SEQUENCE YIELD_VALUE
""".split())
JUMPS = frozenset(dis.opname[one] for one in (*dis.hasjrel, *dis.hasjabs))
READS_OF_FAST = ("LOAD_FAST", "STORE_FAST_LOAD_FAST")  # how the names of such instructions begin
READS_OF_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
WRITES_OF_ATTRIBUTES = ("STORE_ATTR", "DELETE_ATTR")  # not kept: they are in no list of what is on the stack
WRITES_OF_ITEMS = ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE")
SILENT = ("CACHE", "EXTENDED_ARG", "PRECALL")
# Builtin functions by which code can change globals that it does not name.
OPAQUE = frozenset(("globals", "vars", "locals", "exec", "eval", "__import__", "setattr", "delattr"))

MUTATORS = frozenset((
    "append", "extend", "insert", "remove", "pop", "popitem", "clear", "sort", "reverse", "update", "setdefault", "add",
    "discard"))
FORMATTERS = frozenset(("format", "format_map"))  # they read attributes that the text names


@functools.cache
def known_attributes(with_torch: bool) -> frozenset[str]:
    """Attributes that code may read of a value that it computed: those of numbers, texts, containers, arrays and
    expressions. None of them reaches anything else."""
    kinds: list[Any] = [int, float, complex, str, bytes, tuple, list, dict, set, frozenset, range, slice, _core.Expr,
                        _core.Capture]
    numpy = loaded("numpy")
    if numpy is not None:
        kinds += [numpy.ndarray, numpy.generic, numpy.dtype, numpy.finfo(numpy.float32), numpy.iinfo(numpy.int32)]
    if with_torch:
        torch = loaded("torch")
        kinds += [torch.Tensor, torch.dtype, torch.device, torch.finfo, torch.iinfo]
    return frozenset(name for kind in kinds for name in dir(kind) if not name.startswith("_")) - FORMATTERS


def is_known_attribute(name: str) -> bool:
    return name in known_attributes(loaded("torch") is not None)


class Uses:
    """A use of a value by code: the attributes that it reads, whether it writes some (`x.a += 1`), and whether it
    does anything else (`whole`)."""

    __slots__ = ("whole", "writes", "attributes")

    def __init__(self) -> None:
        self.whole = self.writes = False
        self.attributes: dict[str, Uses] = {}

    def names(self) -> Iterator[str]:
        """All attributes, those of attributes too."""
        for name, deeper in self.attributes.items():
            yield name
            yield from deeper.names()


def merged(one: Uses | None, other: Uses) -> Uses:
    """The uses of a value by two codes, as one."""
    if one is None:
        return other
    both = Uses()
    both.whole, both.writes = one.whole or other.whole, one.writes or other.writes
    for name in (*one.attributes, *other.attributes):
        found = other.attributes.get(name)
        both.attributes[name] = one.attributes[name] if found is None else merged(one.attributes.get(name), found)
    return both


class Facts:
    """The things that a function's code reaches, with the code of functions defined inside it.

    - `globals` and `cells`: the names that it reads, in a fixed order, and what it does with each.
    - `imports`: the modules that it imports, and what it does with each.
    - `first`: what a method does with its object. None if it does not only read it.
    - `refused`: the first thing found that no walk can watch, or None.
    - `refused_as_function`: the same where the first parameter is no object of a method.
    - `writes_items`: it changes containers. `adds_in_place`: it may change a list that it has by another name.
    - `writes_globals`: it changes globals, or may.
    - `compares_identity`: it asks whether two values are one.
    """

    __slots__ = ("globals", "cells", "imports", "first", "refused", "refused_as_function", "writes_items",
                 "adds_in_place", "writes_globals", "compares_identity", "_root", "_own", "_own_uses", "_is_only_read",
                 "_modules")

    def __init__(self, code: types.CodeType) -> None:
        self.globals: dict[str, Uses] = {}
        self.cells: dict[str, Uses] = {}
        self.imports: dict[str, Uses] = {}
        self._modules: dict[str, Uses] = {}  # variables that hold what was imported
        self.refused: str | None = None
        self.refused_as_function: str | None = None
        self.writes_items = self.adds_in_place = self.writes_globals = self.compares_identity = False
        self._root, self._own = code, code.co_varnames[0] if code.co_argcount else None
        self._own_uses, self._is_only_read = Uses(), code.co_argcount > 0
        self._read(code, frozenset())
        # super() finds the object without naming it.
        self.first = self._own_uses if self._is_only_read and "super" not in self.globals else None
        unknown = (name for name in self._own_uses.names() if not is_known_attribute(name))
        self.refused_as_function = self.refused or next((f"the attribute {name}" for name in unknown), None)
        self.writes_globals = self.writes_globals or bool(OPAQUE & self.globals.keys())

    def _refuse(self, what: str) -> None:
        self.refused = self.refused or what

    def _read(self, code: types.CodeType, hidden: frozenset[str]) -> None:
        """`hidden`: variables of the functions between this one and the root."""
        found = [one for one in dis.get_instructions(code) if one.opname not in SILENT or one.is_jump_target]
        at = 0
        while at < len(found):
            at = self._take(code, hidden, found, at)
        within = hidden if code is self._root else hidden | frozenset(code.co_cellvars)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._read(constant, within)

    def _take(self, code: types.CodeType, hidden: frozenset[str], found: list[dis.Instruction], at: int) -> int:
        """Reads one instruction, and those that read attributes of what it loads. Returns where it stopped."""
        one = found[at]
        name, used = one.opname, one.argval
        is_outer = code is self._root or used in code.co_freevars and used not in hidden
        if name == "LOAD_GLOBAL":
            return follow(self.globals.setdefault(used, Uses()), found, at + 1)
        if name == "LOAD_DEREF":
            if is_outer and used in self._root.co_freevars:
                return follow(self.cells.setdefault(used, Uses()), found, at + 1)
            if is_outer and used == self._own:
                return follow(self._own_uses, found, at + 1)
        elif name in ("STORE_DEREF", "DELETE_DEREF"):
            if is_outer and used in self._root.co_freevars:
                self._refuse(f"a write to {used}")
            if is_outer and used == self._own:
                self._is_only_read = False
        elif "FAST" in name:
            return self._take_fast(code, found, at)
        elif name in READS_OF_ATTRIBUTES:
            self._computed(used)
        elif name in WRITES_OF_ITEMS:
            self.writes_items = True
        elif name in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            self.writes_globals = True
            self._refuse(f"a write to {used}")
        elif name == "IMPORT_NAME":
            return self._take_import(code, found, at)
        elif name not in ON_THE_STACK and name not in JUMPS and name not in SILENT:
            self._refuse(f"the instruction {name} {used}")
        if name == "IS_OP" and not is_constant_load(found[at - 1]):
            self.compares_identity = True
        if name == "BINARY_OP" and one.argrepr in ("+=", "*="):
            self.adds_in_place = True
        if name == "BINARY_OP" and one.argrepr == "|=":
            self.writes_items = True
        return at + 1

    def _take_fast(self, code: types.CodeType, found: list[dis.Instruction], at: int) -> int:
        one = found[at]
        used = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        if not one.opname.startswith((*READS_OF_FAST, "STORE_FAST", "DELETE_FAST")):
            self._refuse(f"the instruction {one.opname}")
        module = self._modules.get(used[-1]) if code is self._root else None
        if module is not None and one.opname.startswith(READS_OF_FAST) and "CLEAR" not in one.opname:
            return follow(module, found, at + 1)
        # The name of a cell stands here where the cell itself is handed to a function inside.
        if code is not self._root or self._own not in used or self._own in code.co_cellvars:
            return at + 1
        reads_last = one.opname.startswith(READS_OF_FAST) and "CLEAR" not in one.opname and used[-1] == self._own
        if not reads_last or used.count(self._own) > 1:
            self._is_only_read = False
        return follow(self._own_uses, found, at + 1) if reads_last else at + 1

    def _take_import(self, code: types.CodeType, found: list[dis.Instruction], at: int) -> int:
        """`import a` into a variable that holds nothing else, and `from a import b`."""
        module, names, after = found[at].argval, found[at - 1].argval, found[at + 1]
        if names is None and code is self._root and after.opname.startswith("STORE_FAST"):
            variable = after.argval[0] if isinstance(after.argval, tuple) else after.argval
            others = [one for one in found if one is not after and "FAST" in one.opname and variable in (
                one.argval if isinstance(one.argval, tuple) else (one.argval,))]
            if variable != self._own and all(one.opname in ("LOAD_FAST", "LOAD_FAST_BORROW") for one in others):
                self._modules[variable] = self.imports.setdefault(module.partition(".")[0], Uses())
                return at + 1
        end = at + 1
        while names and found[end].opname == "IMPORT_FROM" and found[end + 1].opname == "STORE_FAST":
            self.imports.setdefault(module, Uses()).attributes.setdefault(found[end].argval, Uses()).whole = True
            end += 2
        if end == at + 1:
            self._refuse(f"the import of {module}")
        return end

    def _computed(self, name: str) -> None:
        """An attribute of a value that the code computed."""
        if not is_known_attribute(name):
            self._refuse(f"the attribute {name}")
        self.writes_items = self.writes_items or name in MUTATORS


def is_constant_load(one: dis.Instruction) -> bool:
    """Whether it loads None, True, False, ... or a builtin type: `x is None` and `type(x) is dict` compare no
    containers."""
    if one.opname == "LOAD_GLOBAL":
        return hasattr(builtins, one.argval)
    return one.opname == "LOAD_CONST" and (one.argval is None or type(one.argval) in (bool, type(...)))


def follow(uses: Uses, found: list[dis.Instruction], at: int) -> int:
    """Adds the attributes that the instructions from `at` on read one after another. Returns where they end."""
    while at < len(found) and not found[at].is_jump_target:
        one = found[at]
        if one.opname in READS_OF_ATTRIBUTES:
            uses = uses.attributes.setdefault(one.argval, Uses())
            at += 1
        # x.a += 1: the write comes later.
        elif one.opname == "COPY" and one.arg == 1 and found[at + 1].opname in READS_OF_ATTRIBUTES:
            uses.attributes.setdefault(found[at + 1].argval, Uses()).whole = uses.writes = True
            return at + 2
        elif one.opname in WRITES_OF_ATTRIBUTES:
            uses.writes = True
            return at
        else:
            break
    uses.whole = True
    return at


_facts: dict[types.CodeType, Facts] = {}


def facts_of(code: types.CodeType) -> Facts:
    known = _facts.get(code)
    if known is None:
        if len(_facts) > 1000:
            _facts.clear()
        known = _facts[code] = Facts(code)
    return known
