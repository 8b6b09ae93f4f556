"""The Python examples of docs/guide and of the README run, and print what the pages show."""

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "docs"))
from guide import FENCE, pages  # noqa: E402
from test_guide import matches  # noqa: E402

PAGES = {page: [block for block in blocks if block.language == "python"] for page, blocks in pages().items()}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of its own with the examples' data, where the pages' programs run."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)


def printed_by(code, where, scope):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, where, "exec"), scope)
    return output.getvalue()


@pytest.mark.parametrize("page", [page for page, blocks in PAGES.items() if blocks])
def test_guide(page, folder):
    if page in ("torch", "context_parallel", "migration"):
        pytest.importorskip("torch")
    scope = {"__name__": page}
    for block in PAGES[page]:
        output = printed_by("\n" * (block.line - 1) + block.code, f"docs/guide/{page}.md", scope)
        assert matches(block.expected, output), f"docs/guide/{page}.md:{block.line} prints\n{output}"


def test_readme(folder):
    """What its prints write stands in a comment beside each."""
    (code,) = (code for language, code in FENCE.findall((ROOT / "README.md").read_text(encoding="utf-8"))
               if language == "python")
    if "import torch" in code:
        pytest.importorskip("torch")
    expected = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert expected and printed_by(code, "README.md", {}).splitlines() == expected


def test_there_is_a_page():
    assert len(PAGES["python"]) > 4
