"""heddle bench: what it refuses, and its table, JSON and picture of a tiny run. No test depends on a time."""

import json
import os
import re
import tempfile
import unittest
from pathlib import Path
from xml.etree import ElementTree

from program import ProgramTest, heddle

SVG = "{http://www.w3.org/2000/svg}"


def tiny(**options):
    """The arguments of a run of some milliseconds; `options` replace some of them or add others."""
    small = {"dtype": "f32", "head_dims": "8,16", "seqlens": "16,33", "keys": 40, "threads": 3, "seconds": 0.01}
    pairs = {**small, **options}.items()
    return ("bench", *(word for name, value in pairs for word in (f"--{name.replace('_', '-')}", value)))



class Refusals(ProgramTest):
    def test_values(self):
        for option, value, sentence in (
            ("--passes", "sideways", "'sideways' is given; forward, backward and decode are accepted"),
            ("--dtype", "f32,f64", "'f64' is given; f32, bf16 and f16 are accepted"),
            ("--masks", "striped", "'striped' is given; full and causal are accepted"),
            ("--head-dims", "0", "'0' is given; whole numbers from 1 to 1024 are accepted"),
            ("--seqlens", "512,0", "'0' is given; whole numbers from 1 to 16777216 are accepted"),
            ("--seqlens", "many", "--seqlens"),
            ("--keys", "-1", "'-1' is given; whole numbers from 1 to"),
            ("--heads", "0", "'0' is given; whole numbers from 1 to 4096"),
            ("--threads", "-1", "'-1' is given; whole numbers from 0 to 1024"),
            ("--seconds", "0", "'0' is given; numbers from 0.001 to 86400 are accepted"),
            ("--seconds", "nan", "'nan' is given; numbers from"),
            ("--json", "", "--json: the text is empty"),
            ("--svg", "", "--svg: the text is empty"),
        ):
            with self.subTest(option=option, value=value):
                self.assertIn(option, self.assert_fails(2, sentence, "bench", option, value))

    def test_other_backends(self):
        for backend in ("cuda", "amd", "reference", "automatic"):
            self.assert_fails(2, f"--backend: '{backend}' is not measured", "bench", "--backend", backend)

    def test_outputs_are_checked_before_the_work(self):
        endless = ("bench", "--seconds", 3600)
        nowhere = self.folder / "no" / "where"
        for option in ("--json", "--svg"):
            self.assert_fails(1, "there is no folder", *endless, option, nowhere, timeout=60)
        both = self.folder / "both"
        self.assert_fails(2, f"--svg: {both} is the file of --json", *endless, "--json", both, "--svg", both, timeout=60)
        self.assertFalse(both.exists())

    def test_words_of_the_matrix_unit(self):
        environment = {**os.environ, "HEDDLE_CPU_AMX": "maybe"}
        self.assert_fails(2, "HEDDLE_CPU_AMX is 'maybe'", *tiny(), env=environment)


class Tiny(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cases = [
            (name, dim, mask, length)
            for name in ("forward", "backward", "decode")
            for dim in (8, 16)
            for mask in (("full",) if name == "decode" else ("full", "causal"))
            for length in ((40,) if name == "decode" else (16, 33))
        ]
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.json, cls.svg = Path(folder.name) / "bench.json", Path(folder.name) / "bench.svg"
        run = heddle(*tiny(json=cls.json, svg=cls.svg))
        assert run.returncode == 0, run.stderr
        cls.text, cls.result = run.stdout, json.loads(cls.json.read_text(encoding="utf-8"))

    def test_figures(self):
        result = self.result
        self.assertEqual((result["verb"], result["backend"], result["threads"]), ("bench", "cpu", 3))
        self.assertEqual([peak["threads"] for peak in result["peaks"]], [1, 2, 3])
        for peak in result["peaks"]:
            self.assertGreater(peak["fma_f32_gflops"], 0)
            self.assertGreater(peak["read_gigabytes_per_second"], 0)
            self.assertGreaterEqual(peak["samples"], 1)
        found = [(case["pass"], case["head_dim"], case["mask"], case["keys"]) for case in result["cases"]]
        self.assertEqual(found, self.cases)
        for case in result["cases"]:
            self.assertGreater(case["seconds"], 0)
            self.assertGreaterEqual(case["samples"], 1)
            self.assertEqual(case["dtype"], "f32")
            decodes = case["pass"] == "decode"
            self.assertEqual(case["queries"], 1 if decodes else case["keys"])
            self.assertEqual(case["heads"], 8)  # 4096 / S exceeds 8
            self.assertEqual(case["yardstick"], "read" if decodes else "FMA")
            speed = case["gigabytes_per_second"] if decodes else case["gflops"]
            self.assertAlmostEqual(case["share"] * case["peak"] / speed, 1, places=9)
            if not decodes:
                self.assertEqual(case["peak"], result["peaks"][-1]["fma_f32_gflops"])

    def test_operations_are_those_of_the_pairs_that_attend(self):
        for case in self.result["cases"]:
            queries, keys = case["queries"], case["keys"]
            pairs = queries * (queries + 1) // 2 if case["mask"] == "causal" else queries * keys
            flops = (10 if case["pass"] == "backward" else 4) * 8 * case["head_dim"] * pairs
            self.assertAlmostEqual(case["gflops"] * case["seconds"] * 1e9 / flops, 1, places=9)
            if case["pass"] == "decode":
                bytes_read = 2 * 8 * keys * case["head_dim"] * 4
                self.assertAlmostEqual(case["gigabytes_per_second"] * case["seconds"] * 1e9 / bytes_read, 1, places=9)

    def test_table(self):
        self.assertRegex(self.text, r"(?m)^threads +FMA f32 GFLOP/s +AMX bf16 GFLOP/s +read GB/s +samples$")
        for threads in (1, 2, 3):
            self.assertRegex(self.text, rf"(?m)^ *{threads} +[\d.]+ +[\d.-]+ +[\d.]+ +\d+$")
        for name, dim, mask, length in self.cases:
            line = rf"(?m)^{name} +f32 +{dim} {mask} +8 +{length} +[\d.]+ (us|ms|s) +[\d.]+ +[\d.-]+ +[\d.]+ (FMA|read) +\d+$"
            self.assertEqual(len(re.findall(line, self.text)), 1, line)
        for output in (self.json, self.svg):
            self.assertIn(f"{output}: written", self.text)

    def test_picture(self):
        root = ElementTree.parse(self.svg).getroot()
        self.assertEqual(root.tag, SVG + "svg")
        curves = {line.get("data-case"): line.get("points").split() for line in root.iter(SVG + "polyline")}
        expected = {
            f"{name}, f32: share of {'a plain read' if name == 'decode' else 'the peak'}, D {dim}, {mask}":
                1 if name == "decode" else 2
            for name, dim, mask, _ in self.cases
        }
        self.assertEqual({case: len(points) for case, points in curves.items()}, expected)
        for points in curves.values():
            for point in points:
                self.assertTrue(all(float(part) >= 0 for part in point.split(",")), point)
        self.assertEqual(len(list(root.iter(SVG + "circle"))), len(self.cases))
        width, height = float(root.get("width")), float(root.get("height"))
        for panel in root.iter(SVG + "g"):
            left, top = (float(part) for part in re.findall(r"[\d.]+", panel.get("transform")))
            for text in panel.iter(SVG + "text"):
                self.assertLess(left + float(text.get("x")), width)
                self.assertLess(top + float(text.get("y")), height)


class Choices(ProgramTest):
    def cases(self, env=None, **options):
        self.result = json.loads(self.run_well(*tiny(json="-", **options), env=env))
        return self.result["cases"]

    def test_standard_output_holds_the_figures_alone(self):
        for other in ({}, {"svg": self.folder / "bench.svg"}):
            result = heddle(*tiny(passes="forward", json="-", **other))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(json.loads(result.stdout)["verb"], "bench")
            self.assertIn("attention on 3 threads", result.stderr)

    def test_values_given_twice_count_once(self):
        cases = self.cases(passes="forward,forward", masks="full,full", seqlens="33,16,33", head_dims="16,8,16")
        self.assertEqual([(case["head_dim"], case["keys"]) for case in cases], [(8, 16), (8, 33), (16, 16), (16, 33)])

    def test_heads(self):
        some = {"passes": "forward,decode", "head_dims": 8, "masks": "full", "seqlens": "512,1024,5000"}
        for others, heads in (({"threads": 1}, [8, 4, 1, 8]), ({"threads": 9}, [8, 4, 3, 8]), ({"heads": 2}, [2] * 4)):
            self.assertEqual([case["heads"] for case in self.cases(**some, **others)], heads)

    def test_16_bits_without_amx_are_held_against_f32(self):
        environment = {**os.environ, "HEDDLE_CPU_AMX": "off"}
        cases = self.cases(passes="forward", dtype="bf16,f16", env=environment)
        self.assertEqual({peak["amx_bf16_gflops"] for peak in self.result["peaks"]}, {None})
        self.assertEqual({(case["dtype"], case["yardstick"]) for case in cases}, {("bf16", "FMA"), ("f16", "FMA")})

    def test_amxs_stand_in_is_held_against_what_it_multiplies_with(self):
        environment = {**os.environ, "HEDDLE_CPU_AMX": "emulated"}
        cases = self.cases(passes="forward,backward", dtype="bf16", seqlens=64, env=environment)
        if self.result["peaks"][0]["amx_bf16_gflops"] is not None:
            self.skipTest("this machine has AMX, whose peak is measured in its stead")
        self.assertEqual({case["yardstick"] for case in cases}, {"FMA"})
        self.assertTrue(all(case["peak"] > 0 and case["share"] > 0 for case in cases))

    def test_amx(self):
        cases = self.cases(passes="forward,backward", dtype="bf16", seqlens=64)
        if self.result["peaks"][0]["amx_bf16_gflops"] is None:
            self.skipTest("nothing multiplies with AMX here")
        self.assertEqual({case["yardstick"] for case in cases}, {"AMX"})
        self.assertEqual({case["peak"] for case in cases}, {self.result["peaks"][-1]["amx_bf16_gflops"]})


if __name__ == "__main__":
    unittest.main()
