"""Every example of docs/guide runs, and prints what its page shows."""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from guide import FENCE, GUIDE, ROOT, SEPARATOR, examples, pages


def matches(expected, printed):
    """True when the texts are equal, `...` in the expected one standing for any text."""
    expected, printed = expected.strip(), printed.strip()
    first, *others = expected.split("...")
    if not others:
        return expected == printed
    offset = len(first)
    for part in others[:-1]:  # the first place of each part leaves the most for those after it
        found = printed.find(part, offset)
        if found < 0:
            return False
        offset = found + len(part)
    return printed.startswith(first) and printed.endswith(others[-1]) and len(printed) - len(others[-1]) >= offset


class Guide(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "examples").symlink_to(ROOT / "examples")

    def run_page(self, page, language, command, **options):
        blocks = [block for block in pages()[page] if block.language == language]
        result = subprocess.run(
            command,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **options,
        )
        printed = result.stdout.split(SEPARATOR)
        for block, output in zip(blocks, printed):
            self.assertTrue(
                matches(block.expected, output),
                f"docs/guide/{page}.md:{block.line} prints\n{output}\ninstead of\n{block.expected}",
            )
        self.assertEqual(result.returncode, 0, f"docs/guide/{page}.md: {result.stdout}")
        return printed, blocks

    def test_cpp(self):
        for page, blocks in pages().items():
            if not any(block.language == "cpp" for block in blocks):
                continue
            with self.subTest(page=page):
                printed, cpp = self.run_page(page, "cpp", [os.environ["GUIDE_CPP"], page])
                self.assertEqual(len(printed), len(cpp) + 1, "not every block ran to its end")

    def test_shell(self):
        program = os.path.dirname(os.environ["HEDDLE"])
        environment = {**os.environ, "PATH": f"{program}:{os.environ['PATH']}"}
        for page, blocks in pages().items():
            shell = [block.code for block in blocks if block.language == "sh"]
            if not shell:
                continue
            with self.subTest(page=page):
                script = "".join(f"{code}printf '\\036'\n" for code in shell)
                printed, _ = self.run_page(page, "sh", ["bash", "-eu", "-c", script], env=environment)
                self.assertEqual(len(printed), len(shell) + 1, "not every block ran to its end")

    @unittest.skipUnless("GUIDE_C" in os.environ, "libheddle_c.so is not built")
    def test_c(self):
        self.run_page("c", "c", [os.environ["GUIDE_C"]])

    def test_every_page_is_listed_and_every_link_leads_somewhere(self):
        for folder in (GUIDE, ROOT / "docs" / "notes"):
            contents = (folder / "README.md").read_text(encoding="utf-8")
            for path in folder.glob("*.md"):
                if path.name != "README.md":
                    self.assertIn(f"({path.name})", contents)
        for path in GUIDE.glob("*.md"):
            prose = FENCE.sub("", path.read_text(encoding="utf-8"))
            for link in re.findall(r"\]\(([^)#]+)\)", prose):
                if "://" not in link:
                    self.assertTrue((path.parent / link).exists(), f"{path.name} links to {link}")


class Tests(unittest.TestCase):
    def test_that_the_fusion_page_names_exist(self):
        text = (GUIDE / "fusion.md").read_text(encoding="utf-8")
        groups = re.findall(r"((?:`\w+\.\w+`(?:, )?)+) \((tests/[\w/.]+)\)", text)
        named = [(suite, name, path) for names, path in groups for suite, name in re.findall(r"`(\w+)\.(\w+)`", names)]
        rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
        self.assertTrue(all(re.search(r"\(tests/[^)]*\) \|$", row) for row in rows))
        self.assertGreaterEqual(len(named), len(rows))
        for suite, name, path in named:
            source = (ROOT / path).read_text(encoding="utf-8")
            self.assertRegex(source, rf"\bTEST(_F|_P)?\({suite}, {name}\)", f"fusion.md names {suite}.{name}")


class Version(unittest.TestCase):
    def test_stands_in_cmakelists_alone(self):
        cmake = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
        version = re.search(r"project\(heddle VERSION ([\d.]+)", cmake)[1]
        self.assertIn(f"\n## {version}", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
        for folder in ("include", "src", "kernels", "tests/install", "docs/guide"):
            for path in (ROOT / folder).rglob("*"):
                if path.is_file() and path.suffix != ".pyc":
                    text = path.read_text(encoding="utf-8")
                    self.assertNotRegex(text, rf"(?<![\d.]){re.escape(version)}(?![\d.])", path)


class Reading(unittest.TestCase):
    """That a rotten example would be seen."""

    def test_blocks_and_what_they_print(self):
        (first, second) = examples("x\n```cpp\na();\n```\n\n```text\n1\n```\nand\n```sh\nb\n```\n")
        self.assertEqual((first.language, first.code, first.line, first.expected), ("cpp", "a();\n", 3, "1\n"))
        self.assertEqual((second.language, second.expected), ("sh", ""))

    def test_blocks_that_would_not_run_are_refused(self):
        after_text = "```sh\na\n```\n```text\n1\n```\n```text\n2\n```\n"
        for page in ("```ruby\nx\n```\n", "```\nx\n```\n", "```text\nx\n```\n", after_text):
            with self.assertRaises(ValueError, msg=page):
                examples(page)

    def test_what_is_printed_is_compared(self):
        self.assertTrue(matches("a ... c\n", "a b c\n"))
        self.assertTrue(matches("", "\n"))
        different = (("a", "b"), ("", "a"), ("a", ""), ("a ... c", "a b d"), ("a.c", "abc"), ("a...a", "a"))
        for expected, printed in different:
            self.assertFalse(matches(expected, printed), f"{expected} and {printed}")


if __name__ == "__main__":
    unittest.main()
