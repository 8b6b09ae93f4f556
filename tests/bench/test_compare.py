"""bench/compare.py without a GPU: the grid, the order of measuring, tables, verdicts, curves, arguments."""

import importlib.util
import json
import math
import os
import tempfile
import types
import unittest
from pathlib import Path

import bench_path  # noqa: F401
import compare
from compare_program import run_compare
from comparison import criterion, fp8, grid, report, timing
from comparison.decode import cells as decode_cells
from comparison.decode import run as decode


def entry_of(name, **rates):
    (cell,) = grid.parse_cell(name)
    contenders = {peer: {"tflops": rate, "ms": 1.0} for peer, rate in rates.items()}
    contenders["heddle"]["check"] = {"passed": True, "heads": 2, "tensors": {"o": {"share": 0.4}}}
    return {
        "name": cell.name,
        "d": cell.d,
        "causal": cell.causal,
        "s": cell.s,
        "target": cell.target,
        "gemm_target": cell.gemm_target,
        "contenders": contenders,
    }


def results_of(*cells):
    return {
        "title": "Attention forward",
        "device": "a GPU",
        "date": "today",
        "versions": "all",
        "method": "how",
        "rounds": 5,
        "geomean_target": 1.1,
        "contenders": ["heddle", "cudnn", "fa2", "gemm"],
        "cells": list(cells),
    }


class EightBits(unittest.TestCase):
    def entry(self, tflops, share=0.5):
        shares = {"largest": share, "mean": 0.1, "lse": 0.2}
        check = {"shares": shares, "passed": share <= 1}
        return {"name": "full/S8192", "anchor": 934, "heddle": tflops, "gemm": 651.0, "check": check}

    def test_target_follows_the_gemm(self):
        self.assertEqual(fp8.target(self.entry(400)), 467)
        self.assertIsNone(fp8.target({"anchor": 934}))

    def test_verdicts(self):
        self.assertEqual(fp8.verdict(self.entry(467)), "ok")
        self.assertEqual(fp8.verdict(self.entry(466)), "MISS")
        self.assertEqual(fp8.verdict(self.entry(999, share=1.5)), "WRONG")
        self.assertEqual(fp8.verdict({"error": "none"}), "ERROR")
        failed = {"name": "full/S8192", "anchor": 934, "error": "RuntimeError: why"}
        self.assertIn("| full/S8192 | - | - | - | - | - | ERROR |", fp8.markdown([failed]))
        self.assertIn("RuntimeError: why", fp8.markdown([failed]))

    def test_work(self):
        self.assertEqual(fp8.Cell(False, 8192).flops, 4 * 2 * 16 * 8192**2 * 128)
        self.assertEqual(fp8.Cell(True, 16384).flops, 2 * 16 * 16384**2 * 128)


class Grid(unittest.TestCase):
    def test_cells(self):
        cells = grid.all_cells()
        self.assertEqual(len(cells), 24)
        self.assertEqual(len(set(cells)), 24)
        for cell in cells:
            self.assertEqual((cell.batch * cell.s, cell.heads * cell.d), (16384, 2048))
            self.assertTrue(1.0 <= cell.target <= 1.23)
        self.assertEqual([cell.target for cell in grid.parse_cell("D128/causal")], [1.00, 1.21, 1.16, 1.11])

    def test_work(self):
        (full,) = grid.parse_cell("D128/full/S8192")
        (causal,) = grid.parse_cell("causal/S8192/D128")
        self.assertEqual(full.flops, 4 * 2 * 16 * 8192**2 * 128)
        self.assertEqual(causal.flops, full.flops / 2)
        self.assertEqual((full.gemm_target, causal.gemm_target), (0.97, 0.93))
        self.assertIsNone(grid.parse_cell("D64/full/S8192")[0].gemm_target)

    def test_choice(self):
        self.assertEqual(len(grid.choose_cells(["D64", "full/S512"], False)), 10)
        self.assertEqual(len(grid.choose_cells(None, True)), 6)
        self.assertEqual(grid.choose_cells(["S512/D64/full"], True)[0].name, "D64/full/S512")
        for bad in ("D96", "half", "S100", ""):
            with self.assertRaises(ValueError):
                grid.parse_cell(bad)


class FakeClock:
    sample_ms, most_calls = timing.SAMPLE_MS, timing.MOST_CALLS

    def __init__(self, log):
        self.log = log

    def synchronize(self):
        pass

    def milliseconds(self, call, count, host_ms=0.0):
        call()
        return 0.5


class Timing(unittest.TestCase):
    def test_rounds_are_interleaved(self):
        log = []
        clock = FakeClock(log)
        timed = {name: timing.Timed(lambda name=name: log.append(name), clock) for name in "abc"}
        self.assertEqual(timed["a"].count, 20)  # 10 ms of 0.5 ms calls
        log.clear()
        self.assertEqual(timing.interleave(timed, 4), {})
        rounds = ["".join(log[i : i + 3]) for i in range(0, 12, 3)]
        self.assertEqual({"".join(sorted(one)) for one in rounds}, {"abc"})
        self.assertGreater(len(set(rounds)), 1, rounds)
        self.assertEqual([len(one.samples) for one in timed.values()], [4, 4, 4])

    def test_one_failure_does_not_stop_the_others(self):
        calls = []

        def fails_later():
            calls.append(0)
            if len(calls) > 7:
                raise RuntimeError("out of breath")

        clock = FakeClock([])
        timed = {"good": timing.Timed(lambda: None, clock), "bad": timing.Timed(fails_later, clock)}
        failed = timing.interleave(timed, 5)
        self.assertEqual(list(failed), ["bad"])
        self.assertEqual(len(timed["good"].samples), 5)

    def test_sustained_clock(self):
        """A quarter of the calls come before the first event; nothing is flushed between the others."""
        log = []

        class Event:
            def __init__(self, enable_timing):
                self.at = None

            def record(self):
                log.append("event")

            def elapsed_time(self, end):
                return 6.0

        cuda = types.SimpleNamespace(Event=Event, synchronize=lambda: log.append("wait"))
        clock = timing.SustainedClock(types.SimpleNamespace(cuda=cuda))
        self.assertEqual(clock.milliseconds(lambda: log.append("call"), 6), 1.0)
        self.assertEqual(log, ["call"] * 2 + ["event"] + ["call"] * 6 + ["event", "wait"])
        self.assertEqual(timing.Timed(lambda: None, clock).count, 150)  # 300 ms of calls of 6 / 3 ms

    def test_host_clock(self):
        self.assertGreater(timing.HostClock().milliseconds(lambda: math.fsum(range(1000)), 3), 0)


class Report(unittest.TestCase):
    def test_figures(self):
        self.assertEqual(report.median([3, 1, 2]), 2)
        self.assertEqual(report.median([4, 1, 2, 3]), 2.5)
        self.assertAlmostEqual(report.geomean([1, 4]), 2)

    def test_verdicts(self):
        def verdict(change=None, **rates):
            cell = entry_of("D128/full/S8192", **{"heddle": 730, "cudnn": 660, "gemm": 740, **rates})
            if change:
                change(cell["contenders"])
            return report.verdict(cell)

        self.assertEqual(verdict(), "ok")
        self.assertEqual(verdict(cudnn=680), "MISS")  # 1.07 < 1.09
        self.assertEqual(verdict(gemm=760), "MISS")  # 0.96 < 0.97
        self.assertEqual(verdict(lambda peers: peers.pop("cudnn")), "-")
        self.assertEqual(verdict(lambda peers: peers["heddle"].update(error="no")), "ERROR")
        self.assertEqual(verdict(lambda peers: peers["heddle"]["check"].update(passed=False)), "WRONG")
        self.assertEqual(verdict(lambda peers: peers["heddle"].pop("check")), "UNCHECKED")

    def test_tables(self):
        missed = entry_of("D64/causal/S2048", heddle=400, cudnn=400, fa2=200, gemm=700)
        missed["contenders"]["fa2"] = {"error": "RuntimeError: a | b\n\nc"}
        results = results_of(entry_of("D128/full/S512", heddle=550, cudnn=500, fa2=300, gemm=700), missed)
        results["extras"] = {
            "run_cost": {"what": "host's cost", "text": "5.0 us", "target_text": "<= 8 us", "ok": True},
            "graph": {"what": "CUDA graph", "error": "RuntimeError: no"},
        }
        results["missing"] = {"fa4": "No module named 'flash_attn'"}
        text = report.markdown(results)
        self.assertIn("| 128 | full | 512 | 550 | 500 | 300 | 700 | 0.79 | 1.10 | 1.10 | 1.00 | ok |", text)
        self.assertIn("| 64 | causal | 2048 | 400 | 400 | - | 700 | 0.57 | 1.00 | 1.00 | 1.03 | MISS |", text)
        self.assertIn("over 2 cells: 1.049 x cuDNN (target 1.10). The GEMM: 700 TFLOP/s. Verdicts: 1 ok, 1 MISS.", text)
        self.assertIn("| host's cost | 5.0 us | <= 8 us | ok |", text)
        self.assertIn("| CUDA graph | RuntimeError: no | - | ERROR |", text)
        self.assertIn("- fa2 in D64/causal/S2048: RuntimeError: a \\| b c\n", text)
        self.assertIn("- fa4, not installed: No module named 'flash_attn'\n", text)
        self.assertIn("| heddle | 0.40 | D128/full/S512 | passed |", text)
        rows = [line for line in text.splitlines() if line.startswith("| 128") or line.startswith("| D")]
        self.assertEqual(len({line.count("|") for line in rows}), 1)

    def test_line_of_a_cell(self):
        line = report.cell_line(entry_of("D128/full/S512", heddle=550, cudnn=500))
        self.assertIn("ok  D128/full/S512", line)
        self.assertIn("1.10 x cuDNN, target 1.00; - of the GEMM | heddle 550  cudnn 500", line)


class Criterion(unittest.TestCase):
    def test_sampled_heads(self):
        self.assertEqual(len(criterion.sampled_pairs(8, 32, 2048)), 256)  # all of them
        pairs = criterion.sampled_pairs(1, 32, 16384)
        self.assertEqual((len(pairs), pairs[0], pairs[-1]), (4, (0, 0), (0, 31)))
        self.assertEqual(criterion.sampled_pairs(1, 1, 16384), [(0, 0)])
        self.assertEqual(len(set(criterion.sampled_pairs(2, 16, 8192))), 16)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_agrees_with_the_librarys_own_check(self):
        import torch
        from comparison import contenders, library

        heddle_c = library.Library(os.environ["HEDDLE_LIBRARY"])
        for causal in (False, True):
            inputs = contenders.Inputs(torch, grid.Cell(64, causal, 96), "cpu")
            inputs.q, inputs.k, inputs.v = (x[:2, :, :3].contiguous() for x in (inputs.q, inputs.k, inputs.v))
            inputs.cell = type("Small", (), {"batch": 2, "heads": 3, "s": 96, "d": 64, "causal": causal})
            ours = contenders.Heddle(inputs, heddle_c)
            ours()
            reference = criterion.Reference(torch, inputs.q, inputs.k, inputs.v, causal)
            options = library.AttentionOptions(mask_mod=contenders.MASKS[causal])
            for spoil in (0, 0.02, math.nan):
                ours.o[1, 50, 2, 7] += spoil
                ours.lse[0, 1, 3] += spoil
                judged = reference.judge(*ours.result())
                self.assertEqual(judged["passed"], spoil == 0)
                self.assertEqual(heddle_c.check_attention(ours.tensors, options)[0], judged["passed"])


class Program(unittest.TestCase):
    def test_help(self):
        status, out, _ = run_compare("--help")
        self.assertEqual(status, 0)
        self.assertIn("--draw", out)

    def test_bad_arguments(self):
        for arguments, sentence in {
            ("--peers", "cudnn,fa9"): "'fa9' is none of",
            ("--only", "D96"): "no cell of the grid",
            ("--rounds", "0"): "--rounds is 0",
            ("--sustained", "--decode"): "--sustained is of the forward's and the backward's cells",
        }.items():
            status, _, err = run_compare(*arguments)
            self.assertEqual(status, 2)
            self.assertIn(sentence, err)

    def test_a_library_that_is_not_there(self):
        status, _, err = run_compare("--device", "cpu", "--library", "/nowhere/libheddle_c.so")
        self.assertEqual(status, 2)
        self.assertRegex(err, "nowhere|torch")  # without PyTorch it says that first

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "Matplotlib is not installed")
    def test_curves(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "compare.json"
            cells = [
                entry_of(f"D{d}/{mask}/S{s}", heddle=500 + s / 100, cudnn=450, gemm=700)
                for d in (64, 128)
                for mask in ("full", "causal")
                for s in (512, 2048)
            ]
            path.write_text(json.dumps(results_of(*cells)))
            self.assertEqual(run_compare("--draw", str(path))[0], 0)
            picture = path.with_suffix(".svg").read_text()
            self.assertIn("<svg", picture)
            for text in ("D 128, causal", "Heddle", "cuDNN", "TFLOP/s"):
                self.assertIn(text, picture)

    def test_grouped_queries_alone_have_no_curves(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "compare.json"
            entry = {**entry_of("D128/full/S512", heddle=1, cudnn=1), "heads": 64, "kv_heads": 8}
            path.write_text(json.dumps(results_of(entry)))
            status, _, err = run_compare("--draw", str(path))
            self.assertEqual(status, 1 if "No module" in err else 0)
            self.assertFalse(path.with_suffix(".svg").exists())

    @unittest.skipIf(importlib.util.find_spec("matplotlib"), "Matplotlib is installed")
    def test_curves_without_matplotlib(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "compare.json"
            path.write_text(json.dumps(results_of(entry_of("D64/full/S512", heddle=1, cudnn=1))))
            status, _, err = run_compare("--draw", str(path))
            self.assertEqual(status, 1)
            self.assertIn("no curves: No module named 'matplotlib'", err)


class Decode(unittest.TestCase):
    def entry(self, **ran):
        ours = {"alone": 12.34, "in_a_row": 8.0, "error_by_plain": 0.9}
        return {"name": "B1/S64", "bytes": 1, "contenders": {"heddle": ours, "read": {"alone": 1.0}, **ran}}

    def test_the_fastest_peer_decides_alone_and_in_a_row(self):
        self.assertEqual(decode.verdict(self.entry()), "-")
        self.assertEqual(decode.verdict(self.entry(cudnn={"alone": 12.4, "in_a_row": 8.1})), "ok")
        self.assertEqual(decode.verdict(self.entry(cudnn={"alone": 12.4, "in_a_row": 7.9})), "MISS")
        slow, fast = {"alone": 99.0, "in_a_row": 99.0}, {"alone": 12.0, "in_a_row": 99.0}
        self.assertEqual(decode.verdict(self.entry(cudnn=slow, fa2=fast)), "MISS")
        self.assertEqual(decode.verdict(self.entry(cudnn=slow, forward_mma={"alone": 1.0, "in_a_row": 1.0})), "ok")
        wrong = self.entry(cudnn=slow)
        wrong["contenders"]["heddle"]["error_by_plain"] = math.nan
        self.assertEqual(decode.verdict(wrong), "WRONG")

    def test_tables(self):
        line = decode.line(self.entry(cudnn={"alone": 12.4, "in_a_row": 8.1}))
        self.assertEqual(line, "| B1/S64 | 12.3 / 8.0 | - | - | - | - | - | - | 1.0 / - | 12.4 / 8.1 | - | - | - | 0.08 / - | 0.90 | ok |")
        text = decode.markdown([self.entry(fa2={"error": "none here"})], {"flashinfer": "no module"})
        self.assertIn("- B1/S64 fa2: none here", text)
        self.assertIn("- flashinfer is not installed: no module", text)

    def test_layers_are_more_than_l2(self):
        groups = decode_cells.groups().values()
        for cell in (cell for group in groups for cell in group):
            layers = decode.layers_of(cell, "cuda")
            self.assertTrue(layers == 2 * decode.IN_A_ROW or layers * cell.bytes >= decode.ROW_BYTES, cell.name)

    def test_cells_are_chosen_by_group_and_words(self):
        names = [cell.name for cell in decode_cells.choose_cells([], ["B1/S1024/dense"], False)]
        self.assertEqual(names, ["B1/S1024", "B1/S1024/window 128"])
        every = [cell for cell in decode_cells.choose_cells(["ragged"], None, False) if cell.lengths]
        self.assertEqual([sum(cell.lengths) <= cell.keys < sum(cell.lengths) + 16 * cell.batch for cell in every], [True] * 5)
        (shared, *_) = decode_cells.choose_cells(["prefix"], None, False)
        self.assertEqual((shared.keys, shared.name), (8192 + 64 * 512, "B64/S8704/pages of 16/prefix 8192"))
        with self.assertRaisesRegex(ValueError, "'few' is none of plain, window"):
            decode_cells.choose_cells(["few"], None, False)
        with self.assertRaisesRegex(ValueError, "no cell is B3"):
            decode_cells.choose_cells([], ["B3"], False)


if __name__ == "__main__":
    unittest.main()
