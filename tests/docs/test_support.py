"""The tables of docs/guide/gpu.md about what is supported, and the README's, say what the planner says."""

import json
import os
import re
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))

from program import ROOT, ProgramTest, heddle, write_safetensors  # noqa: E402

STATES = {"measured", "simulated", "compiled"}
FAMILIES = ("forward_sm90", "backward_sm90", "decode_mma", "forward_mma", "backward_mma")


def table(text, head):
    """The rows below the head whose first cell is `head`, as lists of cells."""
    lines = [line.strip()[1:-1] for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    begin = next(i for i, row in enumerate(rows) if row[0] == head)
    found = []
    for row in rows[begin + 2 :]:
        if len(row) != len(rows[begin]) or set(row[0]) == {"-"}:
            break
        found.append(row)
    return found


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def chips(cell):
    """The architectures that a cell names in brackets: "H100, H200 (9.0)"."""
    return [name for names in re.findall(r"\(([^)]*)\)", cell) for name in re.findall(r"gfx\w+|\d+\.\d", names)]


class Support(ProgramTest):
    def explain(self, gpu, backward, dtype="bf16", dim=64, family=None):
        """What `heddle explain --json` says, or the sentence that refuses."""
        rows = 16 if family == "decode_mma" else 256
        path, shape = self.folder / f"{rows}x{dim}.safetensors", [1, 1, rows, dim]
        write_safetensors(path, {name: ("F32", shape, bytes(4 * rows * dim)) for name in ("q", "k", "v", "do")})
        gradients = ("--backward", f"DO={path}:do", "--gradients", "q,k,v") if backward else ()
        environment = {**os.environ, **({"HEDDLE_FAMILY": family} if family else {})}
        result = heddle("explain", path, "--gpu", gpu, "--dtype", dtype, "--json", *gradients, env=environment)
        return json.loads(result.stdout) if result.returncode == 0 else result.stderr

    @staticmethod
    def state(plan):
        untried = plan.get("untried", "")
        if not untried:
            return "measured"
        return "simulated" if "simulator" in untried else "compiled"

    def test_each_known_gpu_has_its_families_and_its_state(self):
        support = table(page("docs/guide/gpu.md"), "`--gpu`")
        rows = {name: row for row in support for name in re.findall(r"`(\w+)`", row[0])}
        refusal = self.explain("none", False)  # "gpu is 'none'; 'h200', ... are accepted"
        self.assertEqual(set(rows), set(re.findall(r"'(\w+)'", refusal)) - {"none"}, refusal)
        for gpu, (_, chip, forward, backward, state) in rows.items():
            for gradients, family in ((False, forward), (True, backward)):
                with self.subTest(gpu=gpu, backward=gradients):
                    plan = self.explain(gpu, gradients)["explanation"]["plan"]
                    self.assertEqual(f"`{plan['family']}`", family)
                    self.assertEqual(self.state(plan), state)
                    self.assertIn(state, STATES)
            self.assertTrue(chips(chip), chip)

    def test_each_family_takes_what_its_column_says(self):
        rows = {row[0]: row[1:] for row in table(page("docs/guide/gpu.md"), "")}
        for family, types, dims, amd in zip(FAMILIES, rows["Element types"], rows["Head dimensions"], rows["On AMD"]):
            backward = family.startswith("backward")
            for dtype in ("f64", "f32", "f16", "bf16", "e4m3", "e5m2"):
                with self.subTest(family=family, dtype=dtype):
                    found = self.explain("h200", backward, dtype, 64, family)
                    self.assertEqual(isinstance(found, dict), dtype in types.split(", "), found)
            limits = {("h200", "bf16"): re.match(r"to (\d+)", dims)[1]}
            limits |= {("h200", dtype): limit for dtype, limit in re.findall(r"(f\d+): (\d+)", dims)}
            limits |= {("mi300x", dtype): limit for dtype, limit in re.findall(r"(f\d+) to (\d+)", amd)}
            for (gpu, dtype), limit in limits.items():
                for dim, fits in ((int(limit), True), (int(limit) + 1, False)):
                    with self.subTest(family=family, gpu=gpu, dtype=dtype, dim=dim):
                        found = self.explain(gpu, backward, dtype, dim, family)
                        self.assertEqual(isinstance(found, dict), fits, found)

    def test_the_readme_has_the_same_states(self):
        states = {chip: row[4] for row in table(page("docs/guide/gpu.md"), "`--gpu`") for chip in chips(row[1])}
        told = {}
        for device, state, *_ in table(page("README.md"), "Device"):
            for chip in chips(device):
                told[chip] = state
        self.assertEqual(told, states)

    def test_other_documents_leave_it_to_the_table(self):
        claim = r".*(?:\bon hardware\b|\b(?:never|not) (?:been )?run on (?:an? )?(?:chip|GPU|AMD)).*"
        for path in [ROOT / "CHANGELOG.md", ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
            if "history" not in path.parts and path.name != "gpu.md":
                told = re.findall(claim, path.read_text(encoding="utf-8"))
                self.assertEqual(told, [], f"{path.relative_to(ROOT)}: the table of docs/guide/gpu.md alone says so")


if __name__ == "__main__":
    unittest.main()
