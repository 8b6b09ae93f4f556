"""bench/compare.py --mods without a GPU: mods, masks and shapes, their targets, draws and verdicts."""

import importlib.util
import os
import unittest

import bench_path  # noqa: F401
from comparison import mod_rows, mods, shapes


class Mods(unittest.TestCase):
    def entry(self, **fields):
        check = {"passed": True, "tensors": {"o": {"share": 0.5}, "lse": {"share": 0.2}}}
        return {"d": 64, "mod": "ALiBi", "target": 1.2, "baseline": "plain", "check": check, **fields}

    def test_verdicts(self):
        ok = self.entry(ms=1.1, baseline_ms=1.0, peers={"flex": 2.2, "fa4": 1.65}, peers_wrong=["flex"])
        self.assertEqual(mods.verdict(ok), "ok")
        self.assertEqual(
            mods.line(ok), "| 64 | ALiBi | 1.100 | 1.10 | plain | 1.20 | 2.200! | 1.650 | - | - | 1.50 | 0.50 | ok |"
        )
        self.assertEqual(mods.verdict(self.entry(ms=1.3, baseline_ms=1.0)), "MISS")
        self.assertEqual(mods.verdict(self.entry(ms=1.3)), "-")
        self.assertEqual(mods.verdict(self.entry(ms=1.0, baseline_ms=1.0, check={"passed": False})), "WRONG")
        failed = {"d": 64, "mod": "ALiBi", "target": 1.2, "baseline": "plain", "error": "no|pe"}
        self.assertEqual(mods.verdict(failed), "ERROR")
        text = mods.markdown([ok, failed], {"fa4": "No module named 'flash_attn'"})
        self.assertIn("- D 64, ALiBi, error: no\\|pe", text)
        self.assertIn("- fa4, not installed: No module named 'flash_attn'\n", text)
        self.assertIn("fails the criterion", text)
        rows = [row for row in text.splitlines() if row.startswith("|")]
        self.assertEqual(len({row.replace("\\|", "").count("|") for row in rows}), 1)

    def test_a_bias_is_beside_its_copy(self):
        streamed = self.entry(ms=2.0, baseline_ms=1.0, streamed_bytes=4_000_000_000, copy_ms=2.5, mod="bias, bf16")
        text = mods.markdown([streamed])
        self.assertIn("4 GB, read once within the call at 2000 GB/s; a copy of it reads and writes 3200 GB/s", text)

    def test_every_mod_has_its_targets(self):
        self.assertEqual(len({mod.name for mod in mod_rows.MODS}), len(mod_rows.MODS))
        for mod in mod_rows.MODS:
            self.assertEqual(set(mod.targets), {64, 128}, mod.name)
            self.assertEqual(mod.baseline, "blocks" if mod.mask else "plain")

    def test_shapes(self):
        (plain,) = (shape for shape in shapes.all_shapes(8192) if shape.d == 64 and shape.name == "plain")
        (odd,) = (shape for shape in shapes.all_shapes(8192) if shape.d == 80)
        (ragged,) = (shape for shape in shapes.all_shapes(8192) if shape.d == 64 and shape.name == "lengths drawn")
        self.assertEqual(plain.products(), 2 * 16 * 8192**2 * 128)
        self.assertEqual(odd.products() / plain.products(), 80 / 64)
        self.assertEqual(len(set(ragged.lengths())), 8)
        self.assertEqual(ragged.lengths(), ragged.lengths())
        self.assertEqual(ragged.products(), 16 * 128 * sum(n * n for n in ragged.lengths()))

        check = {"passed": True, "tensors": {}}
        fields = {"mod": "plain", "check": check, "peer_errors": {"fa2": "no"}}
        one = {"d": 64, "products": 1e12, "beside": [], "ms": {"heddle": 4.0, "cudnn": 5.0}, **fields}
        two = {"d": 80, "products": 2e12, "beside": [96, 64], "ms": {"heddle": 10.0}, **fields}
        self.assertEqual(shapes.ratios(two, [one, two]), {64: 1.25})
        self.assertEqual(
            shapes.line(two, [one, two]), "| 80 | plain | 10.000 | 400 | 1.25 of D 64 | - | - | - | right |"
        )
        self.assertIn("- D 80, plain, fa2: no", shapes.markdown([one, two]))
        self.assertEqual(shapes.verdict({**two, "check": {"passed": False}}), "WRONG")
        self.assertEqual(shapes.verdict({**two, "error": "no"}), "ERROR")

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_draws(self):
        import torch
        from comparison import philox

        # As tests/shared/philox_test.cc has it of Random123's known answers.
        words = philox.rounds(tuple(torch.full((1,), philox.LOW) for _ in range(4)), (philox.LOW, philox.LOW))
        self.assertEqual([int(x) for x in words], [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD])
        drawn = philox.random_uniform(
            torch, 7, *(torch.arange(n).view(shape) for n, shape in ((2, (2, 1, 1)), (1, (1, 1, 1)), (9, (9, 1)))),
            torch.arange(40)[None, :],
        )
        self.assertEqual(tuple(drawn.shape), (2, 9, 40))
        # 720 draws from 2^15 values: some 8 pairs are equal.
        self.assertGreater(drawn.unique().numel(), drawn.numel() - 20)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_a_tree(self):
        import torch

        enter, last = mod_rows.tree_intervals(torch, 300)
        attends = (enter[None, :] <= enter[:, None]) & (enter[:, None] <= last[None, :])
        self.assertEqual(sorted(enter.tolist()), list(range(300)))
        self.assertTrue(bool(attends.diagonal().all()))
        self.assertFalse(bool(attends.triu(1).any()))  # no node attends a later one
        self.assertEqual(attends.sum(1)[:64].tolist(), list(range(1, 65)))
        self.assertLess(int(attends.sum(1).max()), 300)  # there are branches

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_every_mod_and_shape_on_a_cpu(self):
        import torch
        from comparison import library

        heddle_c = library.Library(os.environ["HEDDLE_LIBRARY"])
        said = []
        entries = mods.Comparison(torch, heddle_c, "cpu", 1, said.append, 64, ()).run(dims=(64,))
        entries += shapes.Comparison(torch, heddle_c, "cpu", 1, said.append, 64, ()).run()
        for entry in entries:
            self.assertEqual(entry.get("error"), None)
            self.assertTrue(entry["check"]["passed"], entry["mod"])
        self.assertEqual(len(said), len(entries))


if __name__ == "__main__":
    unittest.main()
