"""examples/generate: text from a model that was trained for some steps, held against double precision by the program.

HEDDLE_TEST_DEVICE=cuda keeps the cache on a GPU.
"""

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))

from program import ROOT, ProgramTest  # noqa: E402

TEXT = ROOT / "examples" / "data" / "text.txt"
DEVICE = ["--device", os.environ.get("HEDDLE_TEST_DEVICE", "cpu")]
STEPS, CHARACTERS = 60, 40
# One character; one less than a page, a page, and one more; longer than the windows that the model was trained with.
PROMPTS = ["C", "Some years ago-", "Some years ago--", "Some years ago--n", TEXT.read_text(encoding="ascii")[:90]]


def run(program, *arguments):
    command = [os.environ[program], *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Generate(ProgramTest):
    def trained(self):
        model = self.folder / "model.safetensors"
        result = run("TRAIN_MODEL", TEXT, STEPS, self.folder / "losses.txt", "--save", model)
        self.assertEqual(result.returncode, 0, result.stderr)
        return model

    def texts_of(self, model, *prompts):
        result = run("GENERATE_TEXT", model, CHARACTERS, *prompts, *DEVICE)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        judged = re.findall(r"\n(.*)\n  (\d+) of (\d+) characters are those", result.stdout)
        self.assertEqual([judgement[1:] for judgement in judged], [(str(CHARACTERS),) * 2] * len(prompts))
        return [judgement[0] for judgement in judged], result.stdout

    def test_texts(self):
        model = self.trained()
        texts, said = self.texts_of(model, *PROMPTS)
        for text, prompt in zip(texts, PROMPTS):
            self.assertTrue(text.startswith(prompt))
            self.assertEqual(len(text), len(prompt) + CHARACTERS)
            self.assertEqual(self.texts_of(model, prompt)[0], [text], "alone it goes on as beside others")
        before, after = re.findall(r"pages ([1-5.]+)\n", said)
        self.assertEqual(len(before), sum((len(prompt) + CHARACTERS + 15) // 16 for prompt in PROMPTS))
        for number, prompt in enumerate(PROMPTS, 1):
            self.assertEqual(before.count(str(number)), (len(prompt) + 15) // 16, prompt)
            self.assertEqual(after.count(str(number)), (len(prompt) + CHARACTERS + 14) // 16, prompt)

    def test_errors(self):
        self.assertEqual(run("GENERATE_TEXT").returncode, 2)
        self.assertEqual(run("GENERATE_TEXT", "model", 1, "a", "--device", "tpu").returncode, 2)
        model = self.trained()
        other = ROOT / "examples" / "data" / "minilm.safetensors"
        for arguments, said in (
            ((model, 0, "a"), "CHARACTERS"),
            ((model, 1, "a#"), "'#'"),
            ((model, 1, ""), "empty"),
            ((self.folder / "nowhere", 1, "a"), "nowhere"),
            ((other, 1, "a"), "train_model --save"),
        ):
            result = run("GENERATE_TEXT", *arguments)
            self.assertEqual(result.returncode, 1, arguments)
            self.assertTrue(result.stderr.startswith("generate_text: "), result.stderr)
            self.assertIn(said, result.stderr)


if __name__ == "__main__":
    unittest.main()
