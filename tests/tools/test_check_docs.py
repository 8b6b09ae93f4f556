"""tools/check_docs.py finds names that do not exist, says where they stand, and passes those that do."""

import sys
import unittest
from pathlib import Path

from tree_case import TreeCase

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from check_docs import complaints  # noqa: E402


class CheckDocs(TreeCase):
    def setUp(self):
        super().setUp()
        self.write("src/plan/plan.h", 'std::getenv("HEDDLE_FAMILY");\n')
        self.write("src/shared/mask_bits.h", "")
        self.write("src/shared/mask_rows.h", "")
        self.write("tests/plan/plan_test.cc", "TEST(Choose, TakesTheFirst) {}\nTEST_F(Planning, Waits) {}\n")
        self.write("tests/plan/CMakeLists.txt", "heddle_test(plan_test)\nadd_test(NAME cli_${name})\n")
        self.write("python/tests/test_options.py", "def test_a_flag():\n    pass\n")
        self.write("docs/guide/gpu.md", "")

    def lines(self, text, document="docs/notes/page.md"):
        self.write(document, text)
        return list(complaints(self.root))

    def test_names_that_exist(self):
        for text in (
            "src/plan/plan.h, `src/shared/mask_*`, `src/shared/mask_{bits,rows}.h`",
            "`plan/plan.h`, `mask_bits.*`, `plan.h`",
            "[a page](../guide/gpu.md), [a site](https://example.org/src/none.h), https://example.org/docs/none.md",
            "`Choose.TakesTheFirst`, `--gtest_filter=Planning.*`, `plan_test`, `cli_run`",
            "`test_a_flag`, `test_options.py`",
            "HEDDLE_FAMILY, `HEDDLE_*`, `src/families/X/X.h`, `heddle.torch`, `Tensor.numpy()`, `v1.2`, `-inl.h`",
        ):
            self.assertEqual(self.lines(text + "\n"), [])

    def test_names_that_do_not_exist(self):
        for text in (
            "src/plan/none.h",
            "src/none/",
            "`src/none_*`",
            "`src/shared/mask_{bits,none}.h`",
            "`plan/none.h`",
            "`none.cuh`",
            "`launch/none.*`",
            "[text](../none.md)",
            "`Choose.TakesNone`",
            "`None*.*`",
            "`none_test`",
            "`bench_none`",
            "`test_none`",
            "HEDDLE_NONE",
        ):
            (line,) = self.lines(f"First line.\nHere is {text} in a sentence.\n")
            self.assertTrue(line.startswith("docs/notes/page.md:2: "), line)

    def test_comments_name_files_that_exist(self):
        self.write("src/plan/a.cc", "// As plan/plan.h and none.h say, by X/X.h.\n#include <none/none.h>\n")
        self.assertEqual(self.lines(""), [])
        self.write("kernels/b.cuh", "int a;\nint b;  // as plan/plan.h and plan/none.h say\n")
        self.assertEqual(self.lines(""), ["kernels/b.cuh:2: names plan/none.h, which does not exist"])

    def test_every_document_is_read(self):
        for document in "README.md CONTRIBUTING.md CHANGELOG.md docs/a.md docs/guide/b.md docs/notes/c/d.md".split():
            self.assertEqual(len(self.lines("src/none.h\n", document)), 1, document)
            (self.root / document).unlink()
        self.assertEqual(self.lines("src/none.h\n", "docs/notes/history/old.md"), [])


if __name__ == "__main__":
    unittest.main()
