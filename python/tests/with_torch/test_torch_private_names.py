"""torch's private names: calls work without those that have a stand-in, and an error names the others."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from heddle.torch import _private_names, create_block_mask

ROOT = Path(_private_names.__file__).parent
PROGRAM = Path(__file__).parent / "hidden_names.py"
FOUND = [
    node.args[0].value for node in ast.walk(ast.parse(Path(_private_names.__file__).read_text()))
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("found", "first_of")
    and isinstance(node.args[0], ast.Constant)]


def run(*names):
    return subprocess.run([sys.executable, str(PROGRAM), *names], capture_output=True, text=True, env=dict(os.environ), timeout=300)


def test_calls_without_what_has_a_stand_in():
    names = [name for name in FOUND if _private_names.found(name) is not None]
    assert len(names) > 10
    done = run(*names)
    assert "all calls agree" in done.stdout, done.stderr


def test_kinds_of_mods_without_torchs_answer(monkeypatch):
    monkeypatch.delattr(flex, "_get_mod_type")
    mask = create_block_mask(lambda b, h, q_idx, kv_idx, side=0: q_idx >= kv_idx + side, None, None, 8, 8, "cpu", BLOCK_SIZE=4)
    assert mask.kv_num_blocks.tolist() == [[[1, 1]]] and mask.full_kv_num_blocks.tolist() == [[[0, 1]]]
    with pytest.raises(AssertionError, match="requires a mask_mod"):
        create_block_mask(lambda score, b, h, q_idx, kv_idx: score, None, None, 8, 8, "cpu")
    with pytest.raises(AssertionError, match="Expected 4 or 5 positional args, got 3.*a mask_mod"):
        create_block_mask(lambda b, h, q_idx: q_idx > 0, None, None, 8, 8, "cpu")


def test_what_is_needed_is_named(monkeypatch):
    with pytest.raises(ImportError, match="has none of torch._C._a, torch._C._b, one of which heddle.torch needs"):
        _private_names.first_of("_C._a", "_C._b")
    for module, name in _private_names.NEEDED:
        monkeypatch.delattr(f"{module}.{name}")
        with pytest.raises(ImportError, match=f"torch {torch.__version__.split('+')[0]}.* has no {module}.{name}, which heddle.torch needs"):
            _private_names.needed(module, name)
        monkeypatch.undo()


# Names that stand elsewhere: methods of objects, which their files ask for with a stand-in, and what _private_names.NEEDED has.
KNOWN = {f"{module}.{name}" for module, name in _private_names.NEEDED} | {
    "torch.Tensor._make_wrapper_subclass", "torch._decomp.decomposition_table", "torch.nn.attention.flex_attention._get_mod_type",
    "torch.nn.attention.flex_attention._ModificationType.SCORE_MOD", "torch.utils._sympy.interp.sympy_interp",
    "torch.utils._sympy.reference.PythonReferenceAnalysis"}


def private_names_of(path):
    """Dotted names of torch's in a file, with a part that begins with one underscore."""
    tree = ast.parse(path.read_text())
    places, names = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            places.update({one.asname or "torch": one.name if one.asname else "torch" for one in node.names
                           if one.name.split(".")[0] == "torch"})
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "torch":
            places.update({one.asname or one.name: f"{node.module}.{one.name}" for one in node.names})
            names.update(f"{node.module}.{one.name}" for one in node.names)
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id in places:
            names.add(".".join([places[node.id], *reversed(parts)]))
    private = {name for name in names if any(part[0] == "_" and part[:2] != "__" for part in name.split("."))}
    return {name for name in private if not any(other.startswith(f"{name}.") for other in private)}


def test_private_names_stand_in_one_file():
    used = set().union(*(private_names_of(path) for path in ROOT.rglob("*.py") if path.name != "_private_names.py"))
    assert not {name for name in used if not any(name == one or name.startswith(f"{one}.") for one in KNOWN)}
