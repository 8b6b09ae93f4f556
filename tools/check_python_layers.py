#!/usr/bin/env python3
"""Checks who imports whom in the Python package.

Modules stand in rooms, and the rooms from the bottom to the top (docs/layout.md). A module may import its own room and
those that its room's row lists, which stand before it; within a room no import may close a circle. Imports inside
functions count like any others, and so do those for type checkers; each of them needs a reason in LATE. Prints each
breach as file:line: sentence, and exits with 1 when there is one.

    tools/check_python_layers.py [ROOT]
"""

import ast
import sys
from pathlib import Path
from typing import NamedTuple

PACKAGE = "heddle"
COMPILED = ("heddle._core",)  # modules without a .py file


class Room(NamedTuple):
    """Some modules (of a folder: all in it), and the names of the rooms that they may import beside their own."""

    modules: tuple[str, ...]
    below: tuple[str, ...]


BASE = ("words", "tracing", "options")
TORCH_BASE = ("words", "tracing", "torch/tensors", "torch/tracing", "torch/call")
TORCH_CALLS = (*TORCH_BASE, "torch/eager", "torch/operators", "torch/dispatch")
ROOMS = {
    "words": Room(("heddle._core", "heddle._types", "heddle._dtypes", "heddle._mod", "heddle._alignment"), ()),
    "tracing": Room(("heddle._tracing",), ("words",)),
    "options": Room(("heddle._options", "heddle._named_arguments", "heddle._tensor", "heddle._shapes", "heddle._rows"), ("words", "tracing")),
    "block masks": Room(("heddle._block_mask",), BASE),
    "calls": Room(("heddle._attention", "heddle._planned", "heddle._plan", "heddle._explanation_html",
                   "heddle._backward", "heddle._backward_plan", "heddle._check", "heddle._config", "heddle._files",
                   "heddle._kv_cache", "heddle._progress", "heddle._events", "heddle._archive"),
                  (*BASE, "block masks")),
    "package": Room(("heddle.mods", "heddle._grid_mods", "heddle._score_mods", "heddle.viz", "heddle"), (*BASE, "block masks", "calls")),
    "torch/tensors": Room(("heddle.torch._private_names", "heddle.torch._inputs", "heddle.torch._results", "heddle.torch._originals",
                           "heddle.torch._forms", "heddle.torch._dense", "heddle.torch._wide_integers", "heddle.torch._written"), ("words",)),
    "torch/tracing": Room(("heddle.torch._tracing",), ("words", "tracing", "torch/tensors")),
    "torch/call": Room(("heddle.torch._call", "heddle.torch._exact", "heddle.torch._tf32"), ("words", "torch/tensors")),
    "torch/eager": Room(("heddle.torch._eager", "heddle.torch._eager_backward", "heddle.torch._backward_plans",
                         "heddle.torch._direct"), TORCH_BASE),
    "torch/lists": Room(("heddle.torch._lists",), ("package", *TORCH_BASE)),
    "torch/operators": Room(("heddle.torch._operands", "heddle.torch._operators", "heddle.torch._flops", "heddle.torch._operator_rules",
                             "heddle.torch._append"),
                            ("package", *TORCH_BASE, "torch/lists", "torch/eager")),
    "torch/dispatch": Room(("heddle.torch._gradients", "heddle.torch._recorded", "heddle.torch._dispatch"),
                           (*TORCH_BASE, "torch/eager", "torch/operators")),
    "torch/block masks": Room(("heddle.torch._block_lists", "heddle.torch._mask_mods", "heddle.torch._mod_code", "heddle.torch._named_tensors", "heddle.torch._write_order",
                               "heddle.torch._block_mask", "heddle.torch._block_text"), ("options", "package", *TORCH_BASE, "torch/lists", "torch/eager")),
    "torch/functions": Room(("heddle.torch._higher_order", "heddle.torch._flex", "heddle.torch._sdpa",
                             "heddle.torch._varlen", "heddle.torch.serving", "heddle.torch.flashinfer", "heddle.torch._page_lists", "heddle.torch._latent", "heddle.torch._cascade",
                             "heddle.torch._flashinfer_masks", "heddle.torch._flashinfer_names",
                             "heddle.torch._flashinfer_states", "heddle.torch._states", "heddle.torch._nested",
                             "heddle.torch._flash_implementation"),
                            (*TORCH_CALLS, "torch/block masks")),
    "torch/context": Room(("heddle.torch._context_group", "heddle.torch._context_positions", "heddle.torch._context_masks", "heddle.torch._context_plan",
                           "heddle.torch._context_exchange", "heddle.torch._context_call", "heddle.torch._context_groups",
                           "heddle.torch._context_own_first", "heddle.torch._context_attention",
                           "heddle.torch._context_operators", "heddle.torch._context_higher_order",
                           "heddle.torch._context_rows", "heddle.torch._context_dtensors", "heddle.torch._context_cache",
                           "heddle.torch.context_parallel"),
                          ("package", *TORCH_CALLS, "torch/block masks", "torch/functions")),
    "torch": Room(("heddle.torch._take_over", "heddle.torch"),
                  (*TORCH_CALLS, "torch/block masks", "torch/functions", "torch/context")),
    "transformers": Room(("heddle.torch._few_queries", "heddle.torch._hf_models", "heddle.hf"),
                         (*TORCH_CALLS, "torch/block masks", "torch/functions")),
}

# Imports that do not stand at the head of their file: (module, what it imports) -> why. A reason that begins with
# "type:" is of an import that type checkers alone make; such a one may lead upwards.
LATE = {
    ("heddle._options", "heddle._block_mask"): "type: the type of the option block_mask",
    ("heddle.torch._flex", "heddle.torch._higher_order"): "it imports Dynamo, which is slow",
    ("heddle.torch.context_parallel", "heddle.torch._context_higher_order"): "it imports Dynamo, which is slow",
    ("heddle.torch._take_over", "heddle.torch._take_over"): "the function runs with torch's globals",
}

# Libraries that few may import -> the modules and folders that may.
LIBRARY_USERS = {
    "torch": ("heddle.torch", "heddle.hf"),
    "transformers": ("heddle.torch._hf_models", "heddle.hf"),
    "matplotlib": ("heddle.viz",),
}


class Import(NamedTuple):
    line: int
    target: str
    is_late: bool  # inside a function, or for type checkers


def within(module: str, owner: str) -> bool:
    return module == owner or module.startswith(f"{owner}.")


def room_of(module: str, folders: set[str]) -> str | None:
    """The room that names the module, or the innermost folder around it. A package's own name is its __init__ alone,
    unless it names a folder."""
    named = {owner: name for name, room in ROOMS.items() for owner in room.modules}
    if module in named:
        return named[module]
    owners = [owner for owner in named if within(module, owner) and owner in folders and owner not in WITH_ROWS]
    return named[max(owners, key=len)] if owners else None


# Packages whose modules each stand in a row.
WITH_ROWS = ("heddle", "heddle.torch")


def modules_of(folder: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, path: Path, known: set[str]) -> list[Import]:
    """The imports of a file: modules of the package by their whole names, libraries by theirs."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: list[Import] = []

    def targets(node: ast.Import | ast.ImportFrom) -> list[str]:
        if isinstance(node, ast.Import):
            return [one.name for one in node.names]
        base = node.module or ""
        if node.level:
            parts = package.split(".")
            base = ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
        return [f"{base}.{one.name}" if f"{base}.{one.name}" in known else base for one in node.names]

    def visit(node: ast.AST, is_late: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                found.extend(Import(child.lineno, target, is_late) for target in dict.fromkeys(targets(child)))
            is_checkers = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            visit(child, is_late or is_function or is_checkers)

    visit(ast.parse(path.read_text(encoding="utf-8")), False)
    return found


def breaches_of_table() -> list[str]:
    """Rows that lead upwards, and names that no row has."""
    order = list(ROOMS)
    wrong = []
    for at, (name, room) in enumerate(ROOMS.items()):
        for below in room.below:
            if below not in ROOMS:
                wrong.append(f"the row '{name}' lists '{below}', which is no row")
            elif order.index(below) >= at:
                wrong.append(f"the row '{name}' lists '{below}', which does not stand before it")
    return wrong


def breach(module: str, one: Import, known: set[str], folders: set[str]) -> str | None:
    """The sentence about one wrong import; None if it is right."""
    for library, users in LIBRARY_USERS.items():
        if within(one.target, library) and not any(within(module, user) for user in users):
            return f"{module} may not import {one.target}: only {', '.join(users)} may"
    if not within(one.target, PACKAGE):
        return None
    reason = LATE.get((module, one.target))
    if one.is_late and reason is None:
        return f"{module} imports {one.target} inside a function or for types; give the reason in LATE, or import it " \
               "at the head of the file"
    if one.target not in known:
        return f"there is no module {one.target}"
    if reason is not None and reason.startswith("type:"):
        return None
    own, other = room_of(module, folders), room_of(one.target, folders)
    if own is None or own == other:
        return None  # a module without a room is a breach of its own
    if other not in ROOMS[own].below:
        listed = ", ".join(f"'{name}'" for name in ROOMS[own].below) or "no other room"
        return f"{module} in the room '{own}' may not import {one.target} of '{other}'; it may import {listed}"
    return None


def circle(edges: dict[str, dict[str, int]]) -> list[str]:
    """Modules that import each other in a ring, the first one again at the end; empty if there are none."""
    done: set[str] = set()

    def search(module: str, way: list[str]) -> list[str]:
        if module in way:
            return [*way[way.index(module):], module]
        if module in done:
            return []
        for target in edges.get(module, {}):
            found = search(target, [*way, module])
            if found:
                return found
        done.add(module)
        return []

    for module in edges:
        found = search(module, [])
        if found:
            return found
    return []


def check(root: Path) -> list[tuple[str, int, str]]:
    """All (file, line, sentence) breaches of the tree at `root`."""
    root = root.resolve()
    found = modules_of(root / "python" / PACKAGE)
    known = {*found, *COMPILED}
    folders = {name for name, path in found.items() if path.name == "__init__.py"}
    breaches = [("tools/check_python_layers.py", 1, sentence) for sentence in breaches_of_table()]
    edges: dict[str, dict[str, int]] = {}
    unused = dict(LATE)
    for module, path in found.items():
        name = path.relative_to(root).as_posix()
        if room_of(module, folders) is None:
            breaches.append((name, 1, f"{module} stands in no room of tools/check_python_layers.py"))
        for one in imports_of(module, path, known):
            if one.is_late:
                unused.pop((module, one.target), None)
            sentence = breach(module, one, known, folders)
            if sentence:
                breaches.append((name, one.line, sentence))
            is_type = LATE.get((module, one.target), "").startswith("type:")
            if within(one.target, PACKAGE) and not is_type and one.target != module:
                edges.setdefault(module, {}).setdefault(one.target, one.line)
    ring = circle(edges)
    if ring:
        breaches.append((found[ring[0]].relative_to(root).as_posix(), edges[ring[0]][ring[1]],
                         f"the imports close a circle: {' -> '.join(ring)}"))
    breaches += [("tools/check_python_layers.py", 1, f"no such import needs a row in LATE: {module} -> {target}")
                 for module, target in unused if module in found]
    return breaches


def main(arguments: list[str]) -> int:
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    if not (root / "python" / PACKAGE).is_dir():
        print(f"{root} holds no folder 'python/{PACKAGE}'", file=sys.stderr)
        return 2
    breaches = check(root)
    for file, line, sentence in breaches:
        print(f"{file}:{line}: {sentence}")
    if not breaches:
        print("layers of the Python package: every import keeps the rules")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
