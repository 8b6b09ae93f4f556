"""The README's examples, the attention map, and the real input against what an independent program computed."""

import os
import re
import resource
import signal
import struct
import subprocess
import sys
import unittest
from base64 import b64decode
from pathlib import Path
from xml.etree import ElementTree
from zlib import crc32, decompress

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))

from program import HEDDLE, INPUT, ROOT, ProgramTest, read_safetensors, write_safetensors  # noqa: E402

COMPARE = ROOT / "examples" / "data" / "compare.py"


class Readme(ProgramTest):
    def test_cpp_example(self):
        result = subprocess.run(
            [os.environ["README_EXAMPLE"]], cwd=self.folder, capture_output=True, text=True, check=False
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, "o [2, 4, 512, 32], lse [2, 4, 512]\n")

    def test_command_line_example(self):
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        script = re.search(r"```sh\n(.*?)```", readme, re.DOTALL).group(1)
        environment = {**os.environ, "PATH": f"{os.path.dirname(HEDDLE)}:{os.environ['PATH']}"}
        result = subprocess.run(
            ["bash", "-eu", "-c", script], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        self.assertEqual(result.returncode, 0, f"{result.stdout}\n{result.stderr}")
        self.assertEqual(read_safetensors(self.folder / "out.safetensors")[0]["o"][1], [2, 4, 512, 32])


class RealInput(ProgramTest):
    """The model's own attention, written as a mask mod and as lengths, on both backends."""

    def compare(self, path):
        return subprocess.run([sys.executable, COMPARE, path], capture_output=True, text=True, check=False)

    def test_equals_the_independent_program(self):
        out = self.folder / "out.safetensors"
        for arguments in (
            ("--dtype", "f32", "--mask", "kv_idx < lengths[b]"),
            ("--dtype", "f32", "--kv-lengths", "lengths"),
            ("--kv-lengths", "lengths"),
            ("--dtype", "f32", "--kv-lengths", "lengths", "--backend", "reference"),
        ):
            self.run_well("run", INPUT, "-o", out, *arguments)
            result = self.compare(out)
            self.assertEqual(result.returncode, 0, f"{arguments}\n{result.stdout}{result.stderr}")

    def test_a_wrong_result_is_seen(self):
        out = self.folder / "out.safetensors"
        self.run_well("run", INPUT, "-o", out, "--dtype", "f32")
        self.assertEqual(self.compare(out).returncode, 1, "padding was not masked")
        self.run_well("run", INPUT, "-o", out, "--dtype", "f32", "--kv-lengths", "lengths")
        tensors = {
            name: (dtype, shape, list(values)) for name, (dtype, shape, values) in read_safetensors(out)[0].items()
        }
        for name, change in (("o", 1e-4), ("o", float("nan")), ("lse", 1e-3), ("lse", float("nan"))):
            dtype, shape, values = tensors[name]
            changed = {**tensors, name: (dtype, shape, [values[0] + change, *values[1:]])}
            write_safetensors(out, changed)
            self.assertEqual(self.compare(out).returncode, 1, f"{name} changed by {change}")


def rows_of_png(data):
    """The palette indices of an 8-bit palette PNG, row by row; every checksum is checked."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    offset, chunks = 8, {}
    while offset < len(data):
        (size,) = struct.unpack(">I", data[offset : offset + 4])
        kind, content = data[offset + 4 : offset + 8], data[offset + 8 : offset + 8 + size]
        (checksum,) = struct.unpack(">I", data[offset + 8 + size : offset + 12 + size])
        assert crc32(kind + content) == checksum
        chunks[kind] = content
        offset += 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    pixels = decompress(chunks[b"IDAT"])
    assert len(pixels) == height * (width + 1) and len(chunks[b"PLTE"]) == 768
    return [pixels[i * (width + 1) + 1 : (i + 1) * (width + 1)] for i in range(height)]


class AttentionMap(ProgramTest):
    def draw(self, *arguments, **options):
        command = [os.environ["ATTENTION_MAP"], *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)

    def picture(self, *arguments):
        path = self.folder / "map.svg"
        result = self.draw(INPUT, *arguments, path)
        self.assertEqual(result.returncode, 0, result.stderr)
        svg = ElementTree.parse(path).getroot()
        texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
        (image,) = svg.iter("{http://www.w3.org/2000/svg}image")
        return texts, rows_of_png(b64decode(image.get("href").removeprefix("data:image/png;base64,")))

    def test_words_and_pixels(self):
        texts, rows = self.picture(0, 0, 8)
        for word in ("[CLS]", "call", "me", "##hma"):
            self.assertEqual(texts.count(word), 2)  # one for the row and one for the column
        self.assertEqual(len(rows), len(rows[0]))
        self.assertEqual(len(rows) % 8, 0)
        self.assertEqual(len({row[0] for row in rows[: len(rows) // 8]}), 1)

    def test_all_tokens(self):
        texts, rows = self.picture(2, 0, 10**6)
        self.assertEqual(len(rows), 508)
        self.assertIn("448", texts)
        near = sum(rows[i][j] for i in range(508) for j in range(508) if abs(i - j) <= 32)
        self.assertGreater(near, sum(map(sum, rows)) / 4, "this head looks at its neighbourhood")

    def test_errors(self):
        self.assertEqual(self.draw().returncode, 2)
        nowhere = self.folder / "nowhere"
        for arguments in ((INPUT, 9, 0, 8), (INPUT, 0, -1, 8), (INPUT, 0, 8, 8), (nowhere, 0, 0, 8)):
            result = self.draw(*arguments, self.folder / "map.svg")
            self.assertEqual(result.returncode, 1)
            self.assertTrue(result.stderr.startswith("attention_map: "), result.stderr)

    def test_a_picture_that_cannot_be_written_leaves_the_old_one(self):
        def little_room():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

        picture = self.folder / "map.svg"
        picture.write_text("old", encoding="utf-8")
        result = self.draw(INPUT, 0, 0, 8, picture, preexec_fn=little_room)
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot write", result.stderr)
        self.assertEqual(picture.read_text(encoding="utf-8"), "old")

    def test_the_input_is_not_drawn_over(self):
        copy = self.folder / "in.safetensors"
        copy.write_bytes(INPUT.read_bytes())
        result = self.draw(copy, 0, 0, 8, copy)
        self.assertEqual(result.returncode, 1)
        self.assertIn("is the input", result.stderr)
        self.assertEqual(copy.read_bytes(), INPUT.read_bytes())


if __name__ == "__main__":
    unittest.main()
