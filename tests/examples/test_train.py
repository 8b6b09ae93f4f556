"""examples/train: its first steps against the recorded ones, which PyTorch computed in double precision."""

import os
import subprocess
import sys
import unittest
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))

from program import ROOT, ProgramTest  # noqa: E402

TEXT = ROOT / "examples" / "data" / "text.txt"
EXPECTED = ROOT / "examples" / "train" / "expected_losses.txt"
STEPS = 20
# In 300 steps losses differ by at most 3.3e-7 and what is learned by 3.6e-7 (AVX2), in the first 20 by 7.4e-8.
TOLERANCE = 2e-6
LOSS, FIRST_LEARNED = 1, 2  # columns


def rows_of(path):
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [[float(field) for field in line.split()] for line in lines if not line.startswith("#")]


def train(*arguments):
    command = [os.environ["TRAIN_MODEL"], *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Train(ProgramTest):
    def test_follows_double_precision(self):
        losses = self.folder / "losses.txt"
        result = train(TEXT, STEPS, losses)
        self.assertEqual(result.returncode, 0, result.stderr)
        given, expected = rows_of(losses), rows_of(EXPECTED)[:STEPS]
        self.assertEqual(len(given), STEPS)
        for own, other in zip(given, expected):
            self.assertEqual(len(own), 8)
            for column, (x, y) in enumerate(zip(own, other)):
                self.assertLessEqual(abs(x - y), TOLERANCE, f"step {own[0]:.0f}, column {column}: {x}, not {y}")
        self.assertLess(given[-1][LOSS], given[0][LOSS] - 1)
        # Each slope and table is learned, by far more than the tolerance.
        for column in range(FIRST_LEARNED, 8):
            self.assertGreater(abs(given[-1][column] - given[0][column]), 100 * TOLERANCE, f"column {column}")

    def test_draws_both_curves(self):
        picture = self.folder / "losses.svg"
        result = train(TEXT, 3, self.folder / "losses.txt", EXPECTED, picture)
        self.assertEqual(result.returncode, 0, result.stderr)
        svg = ElementTree.parse(picture).getroot()
        lines = [line.get("points").split() for line in svg.iter("{http://www.w3.org/2000/svg}polyline")]
        expected, ours, differences = ([tuple(map(float, p.split(","))) for p in line] for line in lines)
        self.assertEqual([len(ours), len(expected), len(differences)], [3, 3, 3])
        self.assertEqual(ours, expected)  # nearer than a tenth of a pixel
        self.assertLess(ours[0][1], ours[2][1])  # the loss falls: downward in a picture

    def test_errors(self):
        self.assertEqual(train().returncode, 2)
        nowhere, out = self.folder / "nowhere" / "file", self.folder / "losses.txt"
        for arguments in ((nowhere, 1, out), (TEXT, 0, out), (TEXT, 1, nowhere), (TEXT, 1, out, nowhere, out)):
            result = train(*arguments)
            self.assertEqual(result.returncode, 1, arguments)
            self.assertTrue(result.stderr.startswith("train_model: "), result.stderr)


if __name__ == "__main__":
    unittest.main()
