"""tools/check_python_layers.py finds planted breaches, names their place, and passes what is allowed."""

import subprocess
import sys
import unittest
from pathlib import Path

from tree_case import TreeCase

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "check_python_layers.py"
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


class CheckPythonLayers(TreeCase):
    def setUp(self):
        super().setUp()
        for path in ("__init__", "_mod", "_tracing/__init__", "_tracing/kinds", "_tracing/steps", "torch/__init__",
                     "torch/_call", "torch/_eager", "torch/_operands"):
            self.write(path, "")

    def write(self, path, text):
        super().write(f"python/heddle/{path}.py", text)

    def run_tool(self, root=None):
        return subprocess.run([sys.executable, TOOL, root or self.root], capture_output=True, text=True, check=False)

    def assert_breach(self, path, text, line, sentence):
        self.write(path, text)
        result = self.run_tool()
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), 1, result.stdout)
        self.assertTrue(lines[0].startswith(f"python/heddle/{path}.py:{line}: "), lines[0])
        self.assertIn(sentence, lines[0])

    def test_this_tree(self):
        result = self.run_tool(ROOT)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_clean_tree(self):
        self.write("_tracing/kinds",
                   "import enum\nfrom .. import _core\nfrom .._mod import Mod\nfrom .steps import Steps\n")
        self.write("torch/_call", "import torch\nfrom .. import _core\nfrom .._mod import Mod\n")
        self.write("torch/_eager", "from .._tracing.kinds import is_number\nfrom ._call import Call\n")
        self.write("_options", f"{FOR_TYPES}from ._block_mask import BlockMask\n")
        self.write("_block_mask", "from ._options import given\n")
        result = self.run_tool()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_upward_import(self):
        self.assert_breach("torch/_call", "import torch\n\nfrom ._eager import run\n", 3,
                           "_call in the room 'torch/call' may not import heddle.torch._eager of 'torch/eager'")

    def test_upward_import_by_the_packages_name(self):
        self.assert_breach("_tracing/kinds", "from heddle import attention\n", 1, "may not import heddle of 'package'")
        self.assert_breach("_tracing/kinds", "import heddle.torch._call\n", 1, "may not import heddle.torch._call")

    def test_import_inside_a_function(self):
        self.assert_breach("torch/_operands", "def f():\n    from ._call import Call\n", 2,
                           "inside a function or for types; give the reason in LATE")

    def test_import_for_type_checkers(self):
        self.assert_breach("_mod", f"{FOR_TYPES}from . import _tracing\n", 3,
                           "inside a function or for types; give the reason in LATE")

    def test_circle_within_a_room(self):
        self.write("_tracing/steps", "\nfrom . import kinds\n")
        self.assert_breach("_tracing/kinds", "from .steps import Steps\n", 1,
                           "heddle._tracing.kinds -> heddle._tracing.steps -> heddle._tracing.kinds")

    def test_library(self):
        self.assert_breach("_tracing/kinds", "def f():\n    import torch\n", 2,
                           "may not import torch: only heddle.torch")

    def test_module_without_a_room(self):
        self.assert_breach("torch/_else", "", 1, "heddle.torch._else stands in no room")

    def test_module_that_is_not_there(self):
        self.assert_breach("torch/_call", "from .._gone import f\n", 1, "there is no module heddle._gone")

    def test_a_reason_that_nobody_needs(self):
        self.write("torch/_flex", "")
        result = self.run_tool()
        self.assertIn("no such import needs a row in LATE: heddle.torch._flex", result.stdout)

    def test_arguments(self):
        for arguments in (["a", "b"], ["--fast"], [self.root / "src"]):
            result = subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 2)


if __name__ == "__main__":
    unittest.main()
