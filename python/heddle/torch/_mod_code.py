"""Ready-made mods (heddle.mods) as functions of torch's tensors: a mod's text becomes Python's code, which torch's
eager functions, Dynamo and heddle.torch's tracer run as a user's."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

import torch

from .. import _mod, mods
from .._dtypes import LONG_NAMES
from .._mod import SCORE_ARGUMENTS, Mod
from .._tracing.trace import Traced
from ._tracing.own_operators import LEAVES, leaf, random_uniform
from ._tracing.ready_made import as_tensor, is_shared


class Declared:
    """Stands for an array of which the type and the rank are known."""

    def __init__(self, dtype: str, rank: int) -> None:
        self.dtype, self.shape = LONG_NAMES[dtype], (1,) * rank

    def __dlpack__(self) -> Any:
        raise BufferError("a declared array has no memory")


def number(x: Any) -> bool:
    return isinstance(x, (bool, int, float))


def smaller(x: Any, y: Any) -> Any:
    return torch.clamp(x, max=y) if number(y) else torch.clamp(y, max=x) if number(x) else torch.minimum(x, y)


def larger(x: Any, y: Any) -> Any:
    return torch.clamp(x, min=y) if number(y) else torch.clamp(y, min=x) if number(x) else torch.maximum(x, y)


def element_or(array: torch.Tensor, *where: Any) -> torch.Tensor:
    """The element at an index, or the last argument outside of the array."""
    *index, fill = where
    inside: Any = True
    for one, extent in zip(index, array.shape):
        inside = (one >= 0) & (one < extent) & inside
    read = array[tuple([torch.clamp(one, 0, extent - 1) for one, extent in zip(index, array.shape)])]
    return torch.where(inside, read, fill)


# A text's functions as torch's; those that are missing have the same name there.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": smaller, "max": larger, "at": element_or, "f32": lambda x: x.to(torch.float32), "i32": lambda x: x.to(torch.int32),
    "leaf": leaf, "random_uniform": random_uniform,
}


class TensorCode(ast.NodeTransformer):
    """A text's operators as tensors have them: & | ~ of conditions, and comparisons of two. Lengths are calls."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in LEAVES:
            return node
        return ast.Call(ast.Name("leaf", ast.Load()), [ast.Name("kv_idx", ast.Load()), ast.Constant(node.id)], [])

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        joint = ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr()
        parts: list[ast.expr] = [self.visit(one) for one in node.values]
        return functools.reduce(lambda x, y: ast.BinOp(x, joint, y), parts)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        operator = ast.Invert() if isinstance(node.op, ast.Not) else node.op
        return ast.UnaryOp(operator, self.visit(node.operand))

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        operands = [self.visit(one) for one in (node.left, *node.comparators)]
        parts: list[ast.expr] = [ast.Compare(x, [op], [y]) for x, op, y in zip(operands, node.ops, operands[1:])]
        return functools.reduce(lambda x, y: ast.BinOp(x, ast.BitAnd(), y), parts)


@functools.cache  # codes keeps them, too
def code_of(name: str, described: str, count: int) -> Callable[..., Any]:
    """The function of a mod's `count` arguments and of its arrays. `described`: what heddle.mods' function `name` got,
    as text: numbers, and (type, rank) of arrays.

    Raises NotImplementedError for a mod that reads what torch's mods have not.
    """
    values = ast.literal_eval(described)
    if None in values:
        raise NotImplementedError(f"heddle.mods.{name} has an expression for an argument, which functions of torch do not "
                                  "read; numbers and tensors are taken")
    given = [Declared(*one) if isinstance(one, tuple) else one for one in values]
    mod: Mod = getattr(mods, name)(*given)
    arguments = SCORE_ARGUMENTS[-count:]
    traced = Traced()
    expr = traced.of(mod.function, arguments) if mod.expr is None else mod.expr
    tree = TensorCode().visit(ast.parse(str(expr), mode="eval"))
    names = {id(array): one for one, array in traced.captures.items()}
    arrays = [names.get(id(one), f"unread_{i}") for i, one in enumerate(given) if isinstance(one, Declared)]
    known = {*arguments, *arrays}
    scope: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in known:
            function = FUNCTIONS.get(node.id, getattr(torch, node.id, None))
            if function is None:
                raise NotImplementedError(f"heddle.mods.{name} reads {node.id}, which functions of torch have not; eager calls take "
                                          "the mod itself, alone or combined by &, | and ~ with others of heddle.mods")
            scope[node.id] = function
    parameters = ast.arguments([], [ast.arg(one) for one in (*arguments, *arrays)], None, [], [], None, [])
    lambda_of = ast.fix_missing_locations(ast.Expression(ast.Lambda(parameters, tree.body)))
    made: Callable[..., Any] = eval(compile(lambda_of, f"<heddle.mods.{name}>", "eval"), scope)
    return made


class Codes:
    """The functions that code_of() has made, as attributes."""


codes = Codes()


def attribute_of(name: str, described: str, count: int) -> str:
    """Where codes has code_of()'s result. Dynamo runs this and takes the text as a constant; the function that it then
    finds there is guarded as any other."""
    code = code_of(name, described, count)
    attribute = f"code_{id(code)}"
    setattr(codes, attribute, code)
    return attribute


attribute_of._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result sets


def on_tensors(mod: Mod, arguments: tuple[Any, ...]) -> Any:
    """What the mod gives for torch's tensors."""
    recipe = mod.recipe
    if recipe is None:
        return mod.function(*arguments)
    kind = recipe[0]
    if kind == "~":
        return ~recipe[1](*arguments)
    if kind == "&":
        return recipe[1](*arguments) & recipe[2](*arguments)
    if kind == "|":
        return recipe[1](*arguments) | recipe[2](*arguments)
    name, described, arrays, _ = recipe
    code = getattr(codes, attribute_of(name, described, len(arguments)))
    return code(*arguments, *[one if isinstance(one, torch.Tensor) else as_tensor(one) for one in arrays])


def of_tensors(mod: Any) -> Any:
    """The mod, with tensors in the place of NumPy's arrays. For Dynamo, which makes them outside of the mod's code."""
    recipe = mod.recipe if isinstance(mod, Mod) else None
    if recipe is None:
        return mod
    if recipe[0] in ("&", "|", "~"):
        parts = [of_tensors(one) for one in recipe[1:]]
        if all([one is other for one, other in zip(parts, recipe[1:])]):
            return mod
        changed = recipe[0], *parts
    else:
        name, described, arrays, exprs = recipe
        if all([isinstance(one, torch.Tensor) for one in arrays]):
            return mod
        changed = name, described, tuple([torch.as_tensor(one, device="cpu") for one in arrays]), exprs
    made = Mod(mod.function, recipe[0])
    made.recipe = changed
    return made


def numpys_as_tensor(array: Any) -> Any:
    """Before Dynamo sees the mod: as_tensor() in a mod is no part of what expressions are."""
    return as_tensor(array) if hasattr(array, "__array_interface__") and is_shared(array) else array


# Not is_compiling(): torch 2.15 keeps it true in attribute_of(), which runs while Dynamo compiles.
_mod.on_tensors, _mod.as_tensor, _mod.is_compiling = on_tensors, numpys_as_tensor, torch.compiler.is_dynamo_compiling
