"""The notebooks of examples/notebooks run, and give the outputs that are stored in them.

By Jupyter where nbclient and ipykernel are installed, else cell by cell in this process.
"""

import ast
import contextlib
import importlib.util
import io
import json
import os
import sys
from pathlib import Path

import pytest

import heddle

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NEEDED = {"import torch": "torch", "import transformers": "transformers", "from transformers": "transformers",
          "from matplotlib": "matplotlib"}


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def source_of(cell):
    return "".join(cell["source"])


def stored(cell):
    """What a cell printed and gave, but for pictures and tables, which differ from machine to machine."""
    texts = []
    for output in cell["outputs"]:
        if output["output_type"] == "stream" and output["name"] == "stdout":
            texts.append("".join(output["text"]))
        elif output["output_type"] == "execute_result":
            data = output["data"]
            texts.append("(rich)" if "text/html" in data or "image/svg+xml" in data else "".join(data["text/plain"]))
    return " ".join(" ".join(texts).split())


def run_plainly(notebook, monkeypatch):
    """Outputs of the cells, each as stored() has it."""
    monkeypatch.chdir(FOLDER)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names = {"__name__": "__main__"}
    for cell in code_cells(notebook):
        parsed = ast.parse(source_of(cell))
        last = parsed.body.pop() if isinstance(parsed.body[-1], ast.Expr) else None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(parsed, "cell", "exec"), names)
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last is not None else None
        texts = [printed.getvalue()]
        pictures = [method() for name in ("_repr_html_", "_repr_svg_") if (method := getattr(value, name, None))]
        if pictures:
            assert pictures[0].startswith("<")
            texts.append("(rich)")
        elif value is not None:
            texts.append(repr(value))
        yield " ".join(" ".join(texts).split())


def run_by_jupyter(path):
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}).execute(
            env={**os.environ, "PYTHONPATH": str(Path(heddle.__file__).parent.parent)})
    return [stored(cell) for cell in code_cells(notebook)]


def lacking(notebook):
    """What the notebook imports and is not installed."""
    source = "\n".join(source_of(cell) for cell in code_cells(notebook))
    return [module for words, module in NEEDED.items()
            if words in source and importlib.util.find_spec(module) is None]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_its_stored_outputs(path, monkeypatch):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    if missing := lacking(notebook):
        pytest.skip(f"{missing[0]} is not installed")
    by_jupyter = all(importlib.util.find_spec(name) for name in ("nbclient", "nbformat", "ipykernel"))
    got = run_by_jupyter(path) if by_jupyter else list(run_plainly(notebook, monkeypatch))
    assert got == [stored(cell) for cell in code_cells(notebook)]


def test_there_are_notebooks():
    assert {path.stem for path in NOTEBOOKS} == {
        "first_mod", "block_masks", "packed_training", "serving_with_pages", "transformers_model"}
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        assert all(cell["outputs"] for cell in code_cells(notebook)[1:3]), f"{path.stem} is stored without outputs"
        assert "False" not in " ".join(stored(cell) for cell in code_cells(notebook)) and path.stat().st_size < 100_000


def test_a_cell_runs_plainly(monkeypatch):
    cells = [{"cell_type": "code", "source": ["a = 2\n", "print('x')\n", "a * 3"], "outputs": []},
             {"cell_type": "markdown", "source": []}, {"cell_type": "code", "source": ["a += 1"], "outputs": []}]
    assert list(run_plainly({"cells": cells}, monkeypatch)) == ["x 6", ""]
    assert sys.stdout is not None
