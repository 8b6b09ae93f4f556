"""bench/compare.py --backward without a GPU: the grid, the criterion, contenders, verdicts, tables."""

import collections
import importlib.util
import itertools
import math
import os
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import bench_path  # noqa: F401
import compare
from compare_program import run_compare
from comparison import library
from comparison.backward import cells, contenders, report

HAS_TORCH = importlib.util.find_spec("torch")
if HAS_TORCH:
    import torch
    from comparison import mods as forward
    from comparison.backward import criterion, mod_peers, mods, run


def entry_of(name, check=True, **rates):
    (cell,) = cells.parse_cell(name)
    ran = {peer.replace("_", "-"): {"tflops": rate, "ms": 1.0} for peer, rate in rates.items()}
    if "heddle" in ran:
        ran["heddle"]["check"] = {"passed": check, "heads": 2, "tensors": {"dq": {"share": 0.4 if check else 2.0}}}
        ran["heddle"]["workspace_bytes"] = 12 * cell.batch * cell.heads * cell.s
    fields = ("name", "d", "causal", "s", "batch", "heads", "kv_heads", "target", "counts")
    return {field: getattr(cell, field) for field in fields} | {"contenders": ran}


def results_of(*entries, deterministic=()):
    return {
        "title": "Attention backward",
        "device": "a GPU",
        "date": "today",
        "versions": "all",
        "method": "how",
        "contenders": ["heddle", "cudnn", "fa4", "gemm"],
        "deterministic": list(deterministic),
        "cells": list(entries),
        "missing": {},
    }


def columns(text):
    """The numbers of columns of each table's rows."""
    tables = itertools.groupby(text.splitlines(), lambda line: line.startswith("|"))
    return [{line.replace("\\|", "").count("|") for line in rows} for is_table, rows in tables if is_table]


class Cells(unittest.TestCase):
    def test_grid(self):
        grid = cells.all_cells()
        self.assertEqual((len(grid), len(set(grid))), (28, 28))
        self.assertEqual(sum(cell.counts for cell in grid), 16)
        for cell in grid:
            self.assertEqual(cell.batch * cell.s, 16384)
        self.assertEqual({cell.heads * cell.d for cell in grid if not cell.grouped}, {2048})

    def test_targets(self):
        def target(name):
            return cells.parse_cell(name)[0].target

        self.assertEqual([target(f"D64/full/S{s}") for s in (512, 2048, 8192)], [1.25, 1.0, 1.0])
        self.assertEqual([target(f"D256/causal/S{s}") for s in (512, 2048, 16384)], [1.0, 1.25, 1.25])
        self.assertEqual(target("D128/causal/S8192/GQA"), 1.05)

    def test_work(self):
        (full,) = cells.parse_cell("D128/full/S8192")
        (grouped,) = cells.parse_cell("GQA/causal/S8192")
        self.assertEqual(full.flops, 10 * 2 * 16 * 8192**2 * 128)
        self.assertEqual(grouped.flops, full.flops * 4 / 2)
        self.assertEqual((grouped.heads, grouped.kv_heads, grouped.batch), (64, 8, 2))

    def test_choice(self):
        self.assertEqual(len(cells.parse_cell("D128")), 8)
        self.assertEqual(len(cells.parse_cell("GQA")), 4)
        self.assertEqual(len(cells.choose_cells(["D64", "full/S512"], False)), 10)
        self.assertEqual(len(cells.choose_cells(None, True)), 7)
        for bad in ("D96", "half", "S512/GQA", ""):
            with self.assertRaises(ValueError):
                cells.parse_cell(bad)


class Report(unittest.TestCase):
    def verdict(self, name="D128/full/S8192", change=None, **rates):
        entry = entry_of(name, **{"heddle": 640, "cudnn": 510, "fa4": 600, **rates})
        if change:
            change(entry["contenders"])
        return report.verdict(entry)

    def test_verdicts(self):
        self.assertEqual(self.verdict(), "ok")
        self.assertEqual(self.verdict(fa4=641), "MISS")
        self.assertEqual(self.verdict("D128/full/S512", fa4=513), "MISS")  # 1.25 is asked for
        self.assertEqual(self.verdict("D128/full/S512", fa4=512), "ok")
        self.assertEqual(self.verdict(change=lambda ran: [ran.pop(name) for name in ("cudnn", "fa4")]), "-")
        self.assertEqual(self.verdict(change=lambda ran: ran["heddle"].update(error="no")), "ERROR")
        self.assertEqual(self.verdict(change=lambda ran: ran.update(heddle={"refused": "no"})), "REFUSED")
        self.assertEqual(self.verdict(change=lambda ran: ran["heddle"].pop("check")), "UNCHECKED")
        self.assertEqual(self.verdict(change=lambda ran: ran["heddle"]["check"].update(passed=False)), "WRONG")

    def test_only_results_of_ours_fail_the_run(self):
        right = entry_of("D64/full/S512", heddle=440, cudnn=276, fa4=339)
        right["contenders"]["fa2"] = {"error": "RuntimeError: no"}
        refused = entry_of("D256/full/S512", cudnn=240)
        refused["contenders"]["heddle"] = {"refused": "unsupported: q and k have head dimension 256"}
        self.assertFalse(report.failed(results_of(right, refused)))
        self.assertTrue(report.failed(results_of(right, entry_of("D64/full/S2048", check=False, heddle=1))))

    def test_tables(self):
        refused = entry_of("D256/full/S2048", cudnn=360, fa4=347)
        refused["contenders"]["heddle"] = {"refused": "HeddleError: unsupported: a | b"}
        wrong = entry_of("D64/causal/S512", heddle=280, cudnn=168, fa4=216)
        wrong["contenders"]["cudnn"]["check"] = {"passed": False, "tensors": {"dk": {"share": 1.4}}}
        grouped = entry_of("GQA/full/S2048", heddle=520, fa4=522)
        results = results_of(
            entry_of("D128/full/S8192", heddle=660, cudnn=500, fa4=600, gemm=700), refused, wrong, grouped
        )
        text = report.markdown(results)
        self.assertIn("| 128 | full | 8192 | 660 | 500 | 600 | 700 | 12.0 | 1.10 | 1.32 | 1.00 | ok |", text)
        self.assertIn("| 256 | full | 2048 | - | 360 | 347 | - | - | - | - | 1.25 | REFUSED |", text)
        self.assertIn("| 64 | causal | 512 | 280 | 168! | 216 | - | 12.0 | 1.30 | 1.67 | 1.25 | ok |", text)
        self.assertIn("| 128, GQA 64/8 | full | 2048 | 520 | - | 522 | - | 12.0 | 1.00 | - | 1.05 | MISS |", text)
        self.assertIn("over 2 cells of D 64 and 128: 1.194 x the best", text)
        self.assertIn("1.483 x cuDNN (target 1.28). Verdicts: 2 ok, 1 MISS, 1 REFUSED.", text)
        self.assertIn("- heddle in D256/full/S2048: HeddleError: unsupported: a \\| b\n", text)
        self.assertTrue(all(len(counts) == 1 for counts in columns(text)), columns(text))

    def test_deterministic_table(self):
        entry = entry_of("D128/full/S8192", heddle=640, cudnn=500, fa4=600, heddle_det=620, fa4_det=580)
        slow = entry_of("D64/full/S8192", heddle=640, fa4=600, heddle_det=600, fa4_det=580)
        refused = entry_of("D64/causal/S8192", heddle=640, fa4_det=580)
        refused["contenders"]["heddle-det"] = {"refused": "no"}
        text = report.markdown(results_of(entry, slow, refused, deterministic=["heddle-det", "fa4-det"]))
        self.assertIn("| 128 | full | 8192 | 620 | 580 | 0.97 | 0.95 | 1.07 | ok |", text)
        self.assertIn("| 64 | full | 8192 | 600 | 580 | 0.94 | 0.95 | 1.03 | MISS |", text)
        self.assertIn("| 64 | causal | 8192 | - | 580 | - | 0.95 | - | REFUSED |", text)
        self.assertTrue(all(len(counts) == 1 for counts in columns(text)), columns(text))

    def test_line_of_a_cell(self):
        line = report.cell_line(entry_of("D128/full/S8192", heddle=660, cudnn=500, fa4=600))
        self.assertIn("ok  D128/full/S8192", line)
        self.assertIn("1.10 x the best, target 1.00; 1.32 x cuDNN | heddle 660  cudnn 500  fa4 600", line)


# Rows of mods.py that another row's gradients contain.
SAME_GRADIENTS = ("full", "causal", "ALiBi, causal", "bias, bf16", "key bias")
# Blocks of 40 rows of 3 heads, where the small cells have 64 rows and up to 8 heads.
IN_PARTS = mock.patch.multiple("comparison.backward.criterion", ROWS=40, CHUNK=3 * 40 * 64)


def small_cell(causal=False, kv_heads=4, s=64):
    return types.SimpleNamespace(batch=2, heads=4, kv_heads=kv_heads, s=s, d=64, causal=causal, name="small", flops=1e9)


def chosen_with(peers=(), deterministic=False, mods=None):
    return types.SimpleNamespace(
        device="cpu",
        sustained=False,
        rounds=1,
        peers=peers,
        deterministic=deterministic,
        mods=mods,
        seconds=math.inf,
        cells=[],
    )


def judged_by_the_library(lib, ours):
    """By tensor, the figures of heddle_check_backward: largest and mean error, and what is allowed and plain's."""
    passed, table = lib.check_backward(ours.tensors, ours.attention)
    names = (
        "max_error",
        "max_allowed",
        "plain_max_error",
        "mean_error",
        "mean_allowed",
        "plain_mean_error",
        "worst_row",
    )
    rows = (line.split() for line in table.splitlines()[1:])
    return passed, {row[0]: dict(zip(names, map(float, row[1:]))) for row in rows if row}


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Criterion(unittest.TestCase):
    def setUp(self):
        self.lib = library.Library(os.environ["HEDDLE_LIBRARY"])

    def expect_agreement(self, ours, reference, tolerance):
        judged = reference.judge(ours.result(), *ours.stored(), ours.captures)
        passed, figures = judged_by_the_library(self.lib, ours)
        self.assertEqual(judged["passed"], passed)
        self.assertEqual(set(judged["tensors"]), set(figures))
        for name, theirs in figures.items():
            for figure, value in theirs.items():
                own = judged["tensors"][name][figure]
                self.assertAlmostEqual(own, value, delta=tolerance * value, msg=f"{name} {figure}")
        return passed

    def test_agrees_with_the_librarys_own_check(self):
        for causal, kv_heads in ((False, 4), (True, 2)):
            with self.subTest(causal=causal, kv_heads=kv_heads), IN_PARTS:
                inputs = contenders.Inputs(torch, small_cell(causal, kv_heads), "cpu")
                ours = contenders.make("heddle", inputs, {}, self.lib)
                ours()
                reference = criterion.Reference(
                    criterion.Inputs(torch, inputs.q, inputs.k, inputs.v, inputs.d_o, causal)
                )
                self.assertTrue(self.expect_agreement(ours, reference, 0.01))
                for x in ours.gradients:
                    kept = x[1, 50, -1, 7].clone()
                    for spoiled in (kept + 0.1, math.nan):
                        x[1, 50, -1, 7] = spoiled
                        self.assertFalse(reference.judge(ours.result(), *ours.stored())["passed"])
                    x[1, 50, -1, 7] = kept
                ours.gradients[0][1, 50, 3, 7] += 0.1
                self.assertFalse(self.expect_agreement(ours, reference, 0.01))

    def test_mods_agree_with_the_librarys_own_check(self):
        """Floors here leave out what derivatives of mods err by, so a little less is allowed."""
        comparison = mods.Comparison(torch, self.lib, chosen_with(mods=[]), lambda line: None)
        cell = forward.ModCell(64, 64, heads=4)
        rows = [mod for mod in mods.MODS if mod.name not in SAME_GRADIENTS]
        inputs = contenders.Inputs(torch, cell, "cpu")
        captures = mods.capture_tensors(torch, "cpu", cell)
        for mod in rows:
            with self.subTest(mod.name), IN_PARTS:
                ours = comparison.make("heddle", inputs, captures, mod)
                ours()
                reference = criterion.Reference(comparison.judged(inputs, captures, mod))
                self.assertTrue(self.expect_agreement(ours, reference, 0.05))
                for x in ours.captures.values():
                    x.view(-1)[1] += 0.5 * x.abs().max()
                    self.assertFalse(reference.judge(ours.result(), *ours.stored(), ours.captures)["passed"])

    def test_sampled_heads(self):
        shape = types.SimpleNamespace(batch=2, kv_heads=8, group=8, s=2048, reads={})
        pairs = criterion.sampled_heads(shape, 1 << 28)
        self.assertEqual((len(pairs), pairs[0], pairs[-1]), (8, (0, 0), (1, 7)))
        self.assertEqual(len(criterion.sampled_heads(shape, 1)), 2)
        shape.reads = {"bias": (("h", "q", "k"), None)}  # sums over all batch entries
        self.assertEqual(criterion.sampled_heads(shape, 1), [(0, 0), (1, 0), (0, 7), (1, 7)])
        shape.reads = {"key_bias": (("k",), None)}  # and over all heads
        self.assertEqual(len(criterion.sampled_heads(shape, 1)), 16)


class Refused:
    def __init__(self):
        raise library.HeddleError("unsupported", "no kernel family computes this backward")


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Run(unittest.TestCase):
    def setUp(self):
        self.lib = library.Library(os.environ["HEDDLE_LIBRARY"])
        self.said = []

    def compare(self, peers=(), deterministic=False, make=contenders.make, cell=None):
        comparison = run.Comparison(torch, self.lib, chosen_with(peers, deterministic), self.said.append)
        entry = {}
        with mock.patch.object(contenders, "make", make):
            comparison.compare(cell or small_cell(True), entry)
        return comparison, entry

    def test_contenders(self):
        _, entry = self.compare(("fa2", "gemm"), deterministic=True)
        self.assertEqual(set(entry), {"heddle", "fa2", "gemm", "heddle-det", "fa2-det"})
        for name, ran in entry.items():
            self.assertGreater(ran["tflops"], 0, name)
            if name.startswith("heddle"):
                self.assertTrue(ran["check"]["passed"], name)
            elif name != "gemm":  # PyTorch's bf16 on a CPU rounds more often than plain
                self.assertLess(max(part["share"] for part in ran["check"]["tensors"].values()), 5)
        self.assertIn("backward", entry["heddle"]["plan"])

    def test_one_failure_does_not_stop_the_others(self):
        def make(name, *rest):
            if name == "cudnn":
                raise RuntimeError("none here")
            if name == "fa4":
                raise ImportError("No module named 'flash_attn'")
            return Refused() if name == "heddle" else contenders.fa2(rest[0], True)

        comparison, entry = self.compare(("cudnn", "fa2", "fa4"), make=make)
        self.assertEqual(entry["cudnn"], {"error": "RuntimeError: none here"})
        self.assertEqual(comparison.missing, {"fa4": "No module named 'flash_attn'"})
        self.assertIn("no kernel family", entry["heddle"]["refused"])
        self.assertIn("check", entry["fa2"])

    def test_a_wrong_gradient_and_bits_that_change(self):
        class Spoiled(contenders.Heddle):
            calls = itertools.count()

            def __call__(self):
                super().__call__()
                self.gradients[1][0, 0, 0, 0] += next(self.calls)

        def make(name, inputs, shared, lib):
            return Spoiled(inputs, lib, mods.named("causal"), deterministic=name.endswith("-det"))

        _, entry = self.compare((), deterministic=True, make=make)
        self.assertFalse(entry["heddle"]["check"]["passed"])
        self.assertGreater(entry["heddle"]["tflops"], 0)
        self.assertEqual(entry["heddle-det"]["error"], "a later run gave other bits than the first")

    def test_mods(self):
        with mock.patch.object(mods, "TRIAL_LENGTH", 64), mock.patch.object(mods, "DIM", 64):
            rows = ["full", "dropout", "documents, causal", "bias, bf16, and its gradient"]
            results = mods.Comparison(torch, self.lib, chosen_with(("fa2",), mods=rows), self.said.append).run()
        self.assertEqual({entry["mod"] for entry in results["mods"]}, set(rows))
        self.assertFalse(mods.failed(results))
        for entry in results["mods"]:
            self.assertTrue(entry["contenders"]["heddle"]["check"]["passed"], entry["mod"])
        self.assertEqual(len(self.said), 2 * len(rows))
        self.assertRegex(self.said[0], r"^full: heddle, fa2 ready after \d+ s$")
        by_fa2 = {entry["mod"] for entry in results["mods"] if "fa2" in entry["contenders"]}
        self.assertEqual(by_fa2, {"full", "dropout"})
        text = mods.markdown(results)
        self.assertEqual([len(counts) for counts in columns(text)], [1])


class Program(unittest.TestCase):
    def test_bad_arguments(self):
        for arguments, sentence in {
            ("--deterministic",): "--deterministic is of --backward",
            ("--only", "D128/GQA"): "'GQA' in 'D128/GQA' is no part of a cell",
            ("--backward", "--only", "S512/GQA"): "no cell of the grid",
        }.items():
            status, _, err = run_compare(*arguments)
            self.assertEqual(status, 2)
            self.assertIn(sentence, err)

    @unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
    def test_an_unknown_mod(self):
        status, _, err = run_compare("--backward", "--device", "cpu", "--mods", "nonsense")
        self.assertEqual(status, 2)
        self.assertIn("'nonsense' is none of 'full', 'causal'", err)

    @unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
    def test_a_cell(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.multiple("comparison.grid", TOKENS=512, WIDTH=128):
            status, out, err = run_compare(
                *("--backward", "--device", "cpu", "--only", "D64/causal/S512", "--peers", "fa2", "--out", folder),
                "--sustained",
            )
            written = {path.name for path in Path(folder).iterdir()} - {"backward_sustained.svg"}
            self.assertEqual(written, {"backward_sustained.md", "backward_sustained.json"})
            self.assertEqual(Path(folder, "backward_sustained.md").read_text(), out[:-1])
        self.assertIn("calls in a row for 0.3 s, L2 not flushed; median of", out)
        self.assertEqual(status, 0, err)
        self.assertRegex(out, r"\| 64 \| causal \| 512 \| \d+ \| \d+!? \| [\d.]+ \| - \| - \| 1.25 \| - \|")
        self.assertRegex(out, r"cold compile of forward and backward together \(D\d+/\w+/S2048\)")


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Mods(unittest.TestCase):
    def entry(self, mod, target_ms=None, anchor="causal", factor=None, beside="", **ms):
        ran = {name: {"ms": value} for name, value in ms.items()}
        if "heddle" in ran:
            ran["heddle"]["check"] = {"passed": True, "tensors": {"dq": {"share": 0.5}}}
        fields = {"mod": mod, "target_ms": target_ms, "anchor": anchor, "factor": factor, "beside": beside}
        return fields | {"contenders": ran}

    def test_targets_follow_cudnn_and_other_rows(self):
        full = self.entry("full", heddle=4.0, cudnn=9.32)
        softcap = self.entry("softcap 20", target_ms=5.8, anchor="full", heddle=11.0)
        relative = self.entry("relative position", factor=1.1, beside="full", heddle=4.5)
        window = self.entry("window 1024", target_ms=0.65, heddle=0.6)
        entries = [full, softcap, relative, window]
        self.assertAlmostEqual(mods.target_ms(softcap, entries), 11.6)  # cuDNN takes twice the anchor's time
        self.assertAlmostEqual(mods.target_ms(relative, entries), 4.4)
        self.assertEqual(mods.target_ms(window, entries), 0.65)  # no causal cuDNN to scale by
        self.assertEqual([mods.verdict(entry, entries) for entry in entries], ["-", "ok", "MISS", "ok"])

    def test_verdicts(self):
        entry = self.entry("causal", heddle=2.0)
        self.assertEqual(mods.verdict(self.entry("causal"), []), "UNCHECKED")
        entry["contenders"]["heddle"]["check"]["passed"] = False
        self.assertEqual(mods.verdict(entry, []), "WRONG")
        entry["contenders"]["heddle"] = {"refused": "no"}
        self.assertEqual(mods.verdict(entry, []), "REFUSED")
        self.assertFalse(mods.failed({"mods": [entry]}))
        entry["contenders"]["heddle"] = {"error": "no"}
        self.assertTrue(mods.failed({"mods": [entry]}))

    def test_lines(self):
        names = ["heddle", "flex", "fa4"]
        bias = self.entry("bias, and its gradient", factor=1.5, beside="full", flex=9.0)
        bias["contenders"]["heddle"] = {"refused": "HeddleError: unsupported: the gradient of capture 'bias'"}
        bias["contenders"]["flex"]["check"] = {"passed": False}
        self.assertEqual(
            mods.line(bias, [bias], names), "| bias, and its gradient | refused | 9.000! | - | - | - | - | REFUSED |"
        )
        causal = self.entry("causal", heddle=2.0, flex=5.0, fa4=3.0)
        self.assertEqual(mods.line(causal, [causal], names), "| causal | 2.000 | 5.000 | 3.000 | - | 1.50 | 0.50 | - |")
        results = {"mods": [bias, causal], "contenders": names, "missing": {"fa2": "why"}, "rounds": 5}
        text = mods.markdown(results | {"length": 8192, "device": "a GPU", "versions": "all"})
        self.assertIn("- bias, and its gradient, heddle, refused: HeddleError: unsupported: the gradient of", text)
        self.assertIn("- fa2, not installed: why", text)

    def test_rows_and_baselines(self):
        names = [mod.name for mod in mods.MODS]
        self.assertEqual(len(set(names)), len(names))
        for mod in mods.MODS:
            self.assertTrue(not mod.beside or mod.beside in names, mod.name)
            self.assertTrue(set(mod.reads) <= set(mod.of.captures if mod.of else ()), mod.name)

    def test_blocks_by_keys(self):
        Blocks = collections.namedtuple(
            "Blocks", "mask_block_cnt mask_block_idx full_block_cnt full_block_idx block_size", defaults=[None] * 5
        )
        listed = torch.tensor([[[1, 2, 1]]], dtype=torch.int32), torch.tensor([[[[2, 9, 9], [0, 2, 9], [1, 0, 9]]]])
        turned = mod_peers.blocks_by_keys(torch, Blocks(*listed), 128)
        self.assertEqual(turned.block_size, (128, 128))
        self.assertIsNone(turned.full_block_cnt)
        rows = zip(turned.mask_block_cnt[0, 0].tolist(), turned.mask_block_idx[0, 0].tolist())
        self.assertEqual([sorted(row[:count]) for count, row in rows], [[1], [2], [0, 1]])


if __name__ == "__main__":
    unittest.main()
