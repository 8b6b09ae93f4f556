"""What tools/build_reference.py makes of docstrings and comments, and which links it calls dead."""

import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "reference"))
sys.path.insert(0, str(ROOT / "tools"))

from build_reference import copied_document  # noqa: E402
from dead_links import dead_links  # noqa: E402
from member_comments import documented  # noqa: E402
from plain_text import rst  # noqa: E402


class PlainText(unittest.TestCase):
    def test_words_stand_for_themselves(self):
        self.assertEqual(rst("|x| * y_ of\nq_idx"), "\\|x\\| \\* y\\_ of q\\_idx\n")

    def test_code_is_literal(self):
        self.assertEqual(rst("Give `out` and ``a * b``s."), "Give \\ ``out``\\  and \\ ``a * b``\\ s.\n")

    def test_public_names_lead_to_their_pages(self):
        names = {"heddle.check"}
        self.assertEqual(rst("As heddle.check, not heddle.other.", names),
                         "As \\ :py:obj:`heddle.check`\\ , not heddle.other.\n")
        self.assertEqual(rst("`check` and `x`", names), "\\ :py:obj:`check <heddle.check>`\\  and \\ ``x``\\ \n")

    def test_bullets_examples_and_formulas_keep_their_lines(self):
        text = "- one\n  more\n- two\n\n>>> f(*x)\n'|'\n\n  s = a*b\n  t = s\n\nend"
        self.assertEqual(rst(text).split("\n"), [
            "- one more", "", "- two", "", ">>> f(*x)", "'|'", "",
            ".. code-block:: text", "", "     s = a*b", "     t = s", "", "end", ""])


class MemberComments(unittest.TestCase):
    def test_a_comment_behind_a_member_documents_it(self):
        self.assertEqual(documented("  int a = 0;  // one\n              // more\n  // of b\n  int b;\n"),
                         "  int a = 0;  ///< one\n              ///< more\n  // of b\n  int b;\n")
        self.assertEqual(documented("  kFirst = 1  // the first\n"), "  kFirst = 1  ///< the first\n")

    def test_documentation_and_directives_stay(self):
        for text in ("/// of f\nint f();\n", "#endif  // HEDDLE_C_H_\n", "// head\n"):
            self.assertEqual(documented(text), text)


class Documents(unittest.TestCase):
    def test_links_out_of_the_site_become_text(self):
        guide = ROOT / "docs" / "guide"
        text = "[Mods](mods.md#dropout), [notes](../notes/torch.md), [a](https://a.b)"
        self.assertEqual(copied_document(text, guide),
                         "[Mods](mods.md#dropout), notes (`docs/notes/torch.md`), [a](https://a.b)")

    def test_dead_links_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            site = Path(folder)
            (site / "a.html").write_text('<h1 id="top"></h1><a href="b.html#here">b</a><a href="#top"></a>'
                                         '<a href="c.html"></a><a href="b.html#there"></a><a href="#no"></a>'
                                         '<a href="https://else.where/x"></a><img src="x.svg">')
            (site / "b.html").write_text('<p id="here"></p><a href="../outside.html"></a>')
            self.assertEqual(sorted(dead_links(site)), [
                ("a.html", "#no"), ("a.html", "b.html#there"), ("a.html", "c.html"), ("a.html", "x.svg"),
                ("b.html", "../outside.html")])


if __name__ == "__main__":
    unittest.main()
