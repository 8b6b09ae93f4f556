"""bench/compare.py --family portable without a GPU: cells, ratios, verdicts, tables; where PyTorch is installed a trial
on the CPU."""

import importlib.util
import tempfile
import unittest
from pathlib import Path

import bench_path  # noqa: F401
import compare
from comparison.portable import cells, report


def entry_of(rate, peers, target=1.0, **more):
    return {
        "name": "forward/bf16/D64/full/S2048",
        "target": target,
        "heddle": {"tflops": rate, "passed": True, "bytes": 3 << 20, "plan_seconds": 1.5, **more},
        "peers": peers,
    }


class Cells(unittest.TestCase):
    def test_all(self):
        every = cells.all_cells()
        self.assertEqual(len(every), 48)
        self.assertEqual(len({cell.name for cell in every}), 48)

    def test_work(self):
        forward, backward = (cells.Cell(of_pass, "f32", 64, True, 2048) for of_pass in cells.PASSES)
        self.assertEqual(forward.flops, 2 * 8 * 32 * 2048**2 * 64)
        self.assertEqual(backward.flops, 2.5 * forward.flops)

    def test_targets(self):
        self.assertEqual(cells.Cell("backward", "bf16", 64, True, 2048).target, 0.95)
        self.assertEqual(cells.Cell("backward", "f32", 64, True, 2048).target, 1.0)

    def test_choice(self):
        self.assertEqual(len(cells.choose_cells(None, quick=True)), 24)
        chosen = cells.choose_cells(["backward/f32/D64", "tf32/S8192/causal/forward/D128"], quick=False)
        self.assertEqual(len(chosen), 5)
        with self.assertRaisesRegex(ValueError, "no cell is D96"):
            cells.choose_cells(["D96"], quick=False)


class Tables(unittest.TestCase):
    def test_the_fastest_peer_counts(self):
        entry = entry_of(90.0, {"fa2": {"tflops": 100.0}, "efficient": {"tflops": 80.0}})
        self.assertEqual(report.ratio(entry), 0.9)
        self.assertEqual(report.verdict(entry), "MISS")
        self.assertEqual(report.verdict(entry | {"target": 0.9}), "ok")
        self.assertIn("| 0.90 | 1.12 | - | 0.90 |", report.line(entry))

    def test_no_peer(self):
        entry = entry_of(90.0, {"fa2": {"error": "takes none"}})
        self.assertEqual(report.verdict(entry), "-")
        self.assertFalse(report.failed({"cells": [entry]}))

    def test_failures(self):
        self.assertEqual(report.verdict(entry_of(90.0, {}, passed=False)), "WRONG")
        self.assertEqual(report.verdict(entry_of(90.0, {}, error="why")), "ERROR")
        results = {"device": "a GPU", "versions": "all", "rounds": 5, "mod_rows": 8192, "mods": []}
        results["cells"] = [entry_of(90.0, {"fa2": {"error": "out of memory"}}, error="why")]
        self.assertTrue(report.failed(results))
        text = report.markdown(results)
        self.assertIn("- forward/bf16/D64/full/S2048 fa2: out of memory", text)
        self.assertIn("- forward/bf16/D64/full/S2048 heddle: why", text)

    def test_mods(self):
        entry = {"pass": "forward", "d": 64, "mod": "window 1024", "ms": 0.5, "share": 0.117, "cost": 1.25}
        self.assertEqual(report.mod_line(entry), "| forward D64 window 1024 | 0.500 | 11.7 % | 1.25 |")
        self.assertIn("no room", report.mod_line(entry | {"error": "no room"}))


class Program(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("torch"), "needs PyTorch")
    def test_a_trial_on_a_cpu(self):
        with tempfile.TemporaryDirectory() as out:
            arguments = ["--family", "portable", "--device", "cpu", "--rounds", "5", "--no-extras", "--out", out]
            self.assertEqual(compare.main(arguments), 0)
            self.assertIn("| backward/f32/D64/causal/S64 |", (Path(out) / "portable.md").read_text())


if __name__ == "__main__":
    unittest.main()
