"""cmake/embed_text.cmake keeps every byte, cuts long texts at line ends, and refuses what it cannot write."""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "cmake" / "embed_text.cmake"
CMAKE = sys.argv.pop() if len(sys.argv) > 1 else "cmake"


class EmbedText(unittest.TestCase):
    def embed(self, **texts):
        """The outcome of the script, and what it wrote: name -> pieces."""
        with tempfile.TemporaryDirectory() as folder:
            entries = []
            for name, text in texts.items():
                path = Path(folder) / f"{name}.cuh"
                path.write_bytes(text.encode())
                entries.append(f"dir/{name}.cuh={path}")
            output = Path(folder) / "out.cc"
            command = [CMAKE, f"-DOUTPUT={output}", f"-DFILES={';'.join(entries)}", "-P", SCRIPT]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            written = output.read_text(encoding="utf-8") if output.exists() else ""
        arrays = {}
        for array, body in re.findall(r"^const char\* const (\w+)\[\] = {\n(.*?)^    nullptr};", written, re.M | re.S):
            arrays[array] = re.findall(r'R"heddle\((.*?)\)heddle",\n', body, re.S)
        names = re.findall(r'^    {"(.*)", (\w+)},$', written, re.M)
        return result, {name: arrays[array] for name, array in names}

    def test_bytes(self):
        texts = {
            "empty": "",
            "plain": "#pragma once\nint x;\n",
            "cmake": "a;b;;c [x] ]] [[ [=[ ${OUTPUT} @OUTPUT@ \\n \\ \\; \"q\" # $<1:a> $ENV{HOME}\n",
            "unterminated": "no line end",
            "utf8": "// \u00b7 \u2264 \U0001f9f6\n",
        }
        result, embedded = self.embed(**texts)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual({f"dir/{name}.cuh": text for name, text in texts.items()},
                         {name: "".join(pieces) for name, pieces in embedded.items()})

    def test_long_text_is_cut_at_line_ends(self):
        text = "".join(f"// line {i}; " + "\u2264" * (i % 50) + "\n" for i in range(3000))
        result, embedded = self.embed(long=text)
        self.assertEqual(result.returncode, 0, result.stderr)
        pieces = embedded["dir/long.cuh"]
        self.assertEqual("".join(pieces), text)
        self.assertGreater(len(pieces), 10)
        for piece in pieces:
            self.assertLessEqual(len(piece.encode()), 8000)
            self.assertTrue(piece.endswith("\n"))

    def test_what_cannot_be_written(self):
        for text, sentence in (("x" * 8001 + "\n", "a line of more than 8000 bytes"), (')heddle"', "raw string")):
            result, embedded = self.embed(bad=text)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(sentence, " ".join(result.stderr.split()))
            self.assertIn("dir/bad.cuh", result.stderr)
            self.assertEqual(embedded, {})


if __name__ == "__main__":
    unittest.main()
