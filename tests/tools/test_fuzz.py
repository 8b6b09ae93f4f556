"""A corpus of many inputs is replaced by the few that reach as much; if the program fails, it stays. Kept inputs read back."""

import base64
import importlib.util
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("fuzz", ROOT / "tools" / "fuzz.py")
fuzz = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(fuzz)

# A program that merges as libFuzzer does: it copies three inputs of the second folder into the first.
MERGES = '#!/bin/sh\n[ "$1" = -merge=1 ] || exit 3\nls "$4" | head -3 | while read name; do cp "$4/$name" "$3"; done\n'


class Corpora(unittest.TestCase):
    def shrunk(self, inputs, program_text):
        """How many of `inputs` inputs are left, and whether anything else is left beside them."""
        with tempfile.TemporaryDirectory() as folder:
            program, corpus = Path(folder, "program"), Path(folder, "texts.corpus")
            program.write_text(program_text, encoding="utf-8")
            program.chmod(0o755)
            corpus.mkdir()
            for i in range(inputs):
                (corpus / f"input-{i:05}").write_bytes(bytes([i % 256]))
            fuzz.shrink(corpus, program)
            others = [path for path in Path(folder).iterdir() if path not in (program, corpus)]
            return len(list(corpus.iterdir())), bool(others)

    def test_many_inputs_become_those_that_count(self):
        self.assertEqual(self.shrunk(fuzz.MOST_INPUTS + 1, MERGES), (3, False))

    def test_few_inputs_stay(self):
        self.assertEqual(self.shrunk(fuzz.MOST_INPUTS, MERGES), (fuzz.MOST_INPUTS, False))

    def test_a_program_that_fails_costs_no_input(self):
        self.assertEqual(self.shrunk(fuzz.MOST_INPUTS + 1, "#!/bin/sh\nexit 1\n"), (fuzz.MOST_INPUTS + 1, False))

    def test_inputs_are_kept_from_the_shortest_to_the_longest(self):
        inputs = [bytes([1]) * length for length in range(1, 2 * fuzz.KEPT_BYTES)]
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "program")
            program.write_text('#!/bin/sh\n[ "$1" = -merge=1 ] && cp "$4"/* "$3"\n', encoding="utf-8")
            program.chmod(0o755)
            Path(folder, "texts.corpus").mkdir()
            for x in inputs:
                Path(folder, "texts.corpus", str(len(x))).write_bytes(x)
            before = fuzz.OUT, fuzz.CORPORA
            fuzz.OUT, fuzz.CORPORA = Path(folder), Path(folder, "kept")
            try:
                fuzz.keep("texts", program)
                kept = fuzz.kept("texts")
            finally:
                fuzz.OUT, fuzz.CORPORA = before
        self.assertEqual(len(kept), min(fuzz.KEPT_INPUTS, fuzz.KEPT_BYTES))
        self.assertEqual(kept[0], bytes([1]))
        self.assertGreaterEqual(len(kept[-1]), fuzz.KEPT_BYTES - 1)

    def test_each_target_has_inputs_and_each_line_reads(self):
        names = {path.name.removesuffix(".txt").removesuffix(".found") for path in fuzz.CORPORA.iterdir()}
        self.assertEqual(names, set(fuzz.TARGETS))
        for path in fuzz.CORPORA.iterdir():
            for line in path.read_text(encoding="ascii").splitlines():
                self.assertEqual(base64.b64encode(base64.b64decode(line, validate=True)).decode("ascii"), line)

    def test_what_found_something_is_an_input(self):
        found = (fuzz.CORPORA / "calls.found.txt").read_text(encoding="ascii").splitlines()
        self.assertLessEqual({base64.b64decode(line) for line in found}, set(fuzz.kept("calls")))


if __name__ == "__main__":
    unittest.main()
