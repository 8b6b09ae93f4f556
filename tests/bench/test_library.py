"""bench/comparison/library.py: the structs lie as in c.h, and attention on CPU memory is right through it."""

import ctypes
import json
import math
import os
import random
import subprocess
import sys
import unittest
from array import array

import bench_path
from comparison import library as c
from comparison import mod_rows

SIZE, DIM = 12, 8


def row_of(q, k, v, i, keys):
    """o and lse of one row, in plain Python."""
    scores = [sum(q[i * DIM + d] * k[j * DIM + d] for d in range(DIM)) / math.sqrt(DIM) for j in keys]
    weights = [math.exp(score) for score in scores]
    total = sum(weights)
    return [sum(w * v[j * DIM + d] for w, j in zip(weights, keys)) / total for d in range(DIM)], math.log(total)


class Library(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.library = c.Library(os.environ["HEDDLE_LIBRARY"])

    def setUp(self):
        generator = random.Random(1)
        self.q, self.k, self.v = (array("f", (generator.gauss(0, 1) for _ in range(SIZE * DIM))) for _ in range(3))
        self.o = array("f", [math.nan] * (SIZE * DIM))
        self.lse = array("f", [math.nan] * SIZE)

    def tensors(self):
        views = [c.tensor(x.buffer_info()[0], "f32", (1, 1, SIZE, DIM)) for x in (self.q, self.k, self.v, self.o)]
        return c.attention_tensors(*views, c.tensor(self.lse.buffer_info()[0], "f32", (1, 1, SIZE)))

    def expect_right(self, keys_of):
        for i in range(SIZE):
            o, lse = row_of(self.q, self.k, self.v, i, keys_of(i))
            for d in range(DIM):
                self.assertAlmostEqual(self.o[i * DIM + d], o[d], places=5)
            self.assertAlmostEqual(self.lse[i], lse, places=5)

    def test_layout(self):
        printed = subprocess.run([os.environ["HEDDLE_LAYOUT"]], capture_output=True, text=True, check=True).stdout
        layout = json.loads(printed)
        self.assertEqual(set(layout), set(c.STRUCTS))
        for name, struct in c.STRUCTS.items():
            own = {field: getattr(struct, field).offset for field, _ in struct._fields_}
            self.assertEqual({**own, "sizeof": ctypes.sizeof(struct)}, layout[name], name)

    def test_attention(self):
        self.library.attention_into(self.tensors())
        self.expect_right(lambda i: range(SIZE))

    def test_plan_with_param(self):
        param = c.Param(b"window", c.PARAM_I32, 3, 0)
        bindings = c.Bindings(params=ctypes.pointer(param), param_count=1)
        options = c.AttentionOptions(
            mask_mod=b"q_idx >= kv_idx and q_idx - kv_idx <= window", bindings=ctypes.pointer(bindings)
        )
        plan = self.library.plan(self.tensors(), options)
        plan.run(self.tensors())
        self.expect_right(lambda i: range(max(0, i - 3), i + 1))
        self.assertEqual(plan.backend(), "cpu")
        self.assertGreaterEqual(plan.workspace_bytes(), 0)
        self.assertIn("window", plan.explain())
        self.assertIn("problem", json.loads(plan.explain_json()))

    def test_check(self):
        tensors = self.tensors()
        self.library.attention_into(tensors)
        self.assertTrue(self.library.check_attention(tensors)[0])
        self.o[5] += 0.01
        passed, report = self.library.check_attention(tensors)
        self.assertFalse(passed)
        self.assertIn("FAILED", report)

    def test_errors(self):
        with self.assertRaisesRegex(c.HeddleError, "invalid_argument: mask_mod: .*nowhere") as caught:
            self.library.attention_into(self.tensors(), c.AttentionOptions(mask_mod=b"nowhere"))
        self.assertEqual(caught.exception.status, "invalid_argument")

    def test_every_mod_of_the_comparison_is_taken(self):
        ids = array("i", [i // 5 for i in range(SIZE)])
        shapes = {"slopes": (1,), "table": (32, 1), "ids": (SIZE,), "bias": (1, SIZE, SIZE)}
        shapes |= {"bias32": shapes["bias"], "enter": (SIZE,), "last": (SIZE,)}
        shapes |= {"padding": (SIZE,), "temperature": (SIZE,), "gate": (1, SIZE), "grid": (63 * 63, 1)}
        dtypes = {name: "f32" for name in ("padding", "temperature", "gate", "grid")}
        dtypes |= {
            "slopes": "f32",
            "table": "f32",
            "ids": "i32",
            "bias": "bf16",
            "bias32": "f32",
            "enter": "i32",
            "last": "i32",
        }
        for mod in mod_rows.MODS:
            views = [c.tensor(ids.buffer_info()[0], dtypes[name], shapes[name]) for name in mod.captures]
            names = (c.Capture * max(1, len(views)))(
                *(c.Capture(name.encode(), ctypes.pointer(view)) for name, view in zip(mod.captures, views))
            )
            bindings = c.Bindings(captures=names, capture_count=len(views))
            options = c.AttentionOptions(
                score_mod=mod.score.encode() or None,
                mask_mod=mod.mask.encode() or None,
                bindings=ctypes.pointer(bindings),
            )
            with self.subTest(mod.name):
                self.assertIn("plan", json.loads(self.library.plan(self.tensors(), options).explain_json()))

    def test_block_mask(self):
        sequence = c.Sequence(0, SIZE, 0, SIZE, 0, 0)
        options = c.BlockMaskOptions(
            heads=1,
            sequences=ctypes.pointer(sequence),
            sequence_count=1,
            sequence_size=ctypes.sizeof(sequence),
            q_block=4,
            kv_block=4,
            mask_mod=b"q_idx >= kv_idx",
        )
        self.assertEqual(self.library.block_mask(options).text().split(), ["+..", "#+.", "##+"])

    def test_versions(self):
        self.assertGreaterEqual(self.library.c_version(), c.C_VERSION)
        self.assertEqual(json.loads(self.library.devices_json())["heddle"], self.library.version())

    def test_strides_of_a_row_major_tensor(self):
        self.assertEqual(list(c.tensor(None, "bf16", (2, 3, 4)).strides)[:3], [12, 4, 1])

    def test_planning_in_a_process_of_its_own(self):
        child = bench_path.ROOT / "bench" / "comparison" / "compile_child.py"
        for passes in ([], ["--backward"]):
            done = subprocess.run(
                [
                    sys.executable,
                    child,
                    os.environ["HEDDLE_LIBRARY"],
                    "cpu",
                    *passes,
                    "D64/full/S512",
                    "D256/causal/S512",
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            self.assertEqual([line["cell"] for line in lines], ["D64/full/S512", "D256/causal/S512"])
            self.assertTrue(all(line["seconds"] > 0 and line["backend"] == "cpu" for line in lines), lines)

    def test_backward(self):
        self.library.attention_into(self.tensors())
        made = {name: array("f", [math.nan] * (SIZE * DIM)) for name in ("dq", "dk", "dv")}
        rows = {"q": self.q, "k": self.k, "v": self.v, "o": self.o, "d_o": self.v} | made
        views = {name: c.tensor(x.buffer_info()[0], "f32", (1, 1, SIZE, DIM)) for name, x in rows.items()}
        tensors = c.backward_tensors(views | {"lse": c.tensor(self.lse.buffer_info()[0], "f32", (1, 1, SIZE))})
        plan = self.library.plan(tensors)
        plan.run(tensors)
        self.assertIn("backward", plan.explain())
        self.assertTrue(self.library.check_backward(tensors)[0])
        made["dk"][5] += 0.01
        self.assertFalse(self.library.check_backward(tensors)[0])
        with self.assertRaisesRegex(c.HeddleError, "invalid_argument"):  # it is a plan of the other pass
            self.library.check(self.library.c.heddle_plan_run(plan.handle, ctypes.byref(self.tensors()), None))


if __name__ == "__main__":
    unittest.main()
