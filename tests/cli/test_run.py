"""heddle run, check and explain: what they compute, write and print."""

import json
import math
import os
import random
import subprocess
import unittest

from program import HEDDLE, INPUT, ProgramTest, heddle, read_safetensors, small_inputs, write_npy, write_safetensors


def attention(tensors, attends=lambda h, i, j: True, score=lambda s, h, i, j: s, scale=None):
    """o of a batch of one in Python floats, row-major."""
    (_, heads, queries, dim), q = tensors["q"][1:]
    (_, kv_heads, keys, _), k = tensors["k"][1:]
    value_dim, v = tensors["v"][1][3], tensors["v"][2]
    scale = dim**-0.5 if scale is None else scale
    out = []
    for h in range(heads):
        g = h * kv_heads // heads
        for i in range(queries):
            row = {}
            for j in range(keys):
                if attends(h, i, j):
                    dot = sum(q[(h * queries + i) * dim + d] * k[(g * keys + j) * dim + d] for d in range(dim))
                    row[j] = math.exp(score(scale * dot, h, i, j))
            total = sum(row.values())
            for c in range(value_dim):
                out.append(sum(p * v[(g * keys + j) * value_dim + c] for j, p in row.items()) / total if row else 0.0)
    return out


class Run(ProgramTest):
    def assert_close(self, values, expected, tolerance=1e-5):
        self.assertEqual(len(values), len(expected))
        for i, (value, wanted) in enumerate(zip(values, expected)):
            self.assertLessEqual(abs(value - wanted), tolerance, f"element {i}: {value}, expected {wanted}")

    def run_small(self, tensors, *arguments):
        """Runs on a file with these tensors; returns its output's tensors."""
        write_safetensors(self.folder / "in.safetensors", tensors)
        self.run_well("run", self.folder / "in.safetensors", "-o", self.folder / "out.safetensors", *arguments)
        return read_safetensors(self.folder / "out.safetensors")[0]

    def test_plain(self):
        tensors = small_inputs()
        out = self.run_small(tensors)
        self.assertEqual(set(out), {"o", "lse"})
        self.assertEqual(out["o"][:2], ("F32", [1, 2, 5, 3]))
        self.assertEqual(out["lse"][:2], ("F32", [1, 2, 5]))
        self.assert_close(out["o"][2], attention(tensors))

    def test_rows_of_two_tensors(self):
        tensors = small_inputs()
        cut = dict(tensors)
        for name, columns in (("q", 1), ("k", 3)):
            dtype, (batch, heads, rows, dim), values = tensors[name]
            starts = range(0, len(values), dim)
            cut[name] = dtype, [batch, heads, rows, columns], [x for i in starts for x in values[i : i + columns]]
            cut[f"{name}_last"] = (dtype, [batch, heads, rows, dim - columns],
                                   [x for i in starts for x in values[i + columns : i + dim]])
        out = self.run_small(cut, "--q-rest", "q_last", "--k-rest", "k_last")
        self.assert_close(out["o"][2], attention(tensors))

    def test_tensors_that_nothing_reads_may_be_of_any_type(self):
        tensors = small_inputs()
        odd = {"spin": ("C64", [1], bytes(8)), "deep": ("U8", [1] * 9, bytes(1))}
        self.assert_close(self.run_small({**odd, **tensors})["o"][2], attention(tensors))
        path = self.folder / "in.safetensors"
        for option, value in (
            ("--score", "score + spin[h]"),
            ("--sinks", "spin"),
            ("--capture", f"x={path}:spin"),
        ):
            with self.subTest(option):
                sentence = f"cannot read {path}: tensor 'spin' has dtype 'C64', which heddle does not have"
                self.assert_fails(1, sentence, "run", path, "-o", self.folder / "none.safetensors", option, value)
        self.assert_fails(1, "tensor 'deep' has 9 axes", "run", path, "-o", self.folder / "o.safetensors", "--mask", "deep")
        write_safetensors(path, {**tensors, "k": ("F8_E8M0", [1], bytes(1))})
        self.assert_fails(1, "tensor 'k' has dtype 'F8_E8M0'", "run", path, "-o", self.folder / "o.safetensors")

    def test_mods_captures_and_params(self):
        tensors = {**small_inputs(), "slopes": ("F32", [2], [0.5, 0.25])}
        mods = ["--mask", "q_idx >= kv_idx - shift", "--score", "score + slopes[h] * (kv_idx - q_idx)"]
        out = self.run_small(tensors, *mods, "--param", "shift=1")
        slopes = tensors["slopes"][2]
        expected = attention(tensors, lambda h, i, j: i >= j - 1, lambda s, h, i, j: s + slopes[h] * (j - i))
        self.assert_close(out["o"][2], expected)

    def test_param_types_follow_the_literal(self):
        tensors = small_inputs()
        for literal, mod in (("3", "kv_idx % w == 0"), ("true", "w"), ("False", "not w"), ("0.5", "tanh(w) < 0.47")):
            self.run_small(tensors, "--mask", mod, "--param", f"w={literal}")

    def test_scale_weight_and_reference(self):
        tensors = small_inputs()
        for backend in ("reference", "cpu"):
            out = self.run_small(tensors, "--scale", "-0.5", "--weight", "2.0", "--backend", backend)
            self.assert_close(out["o"][2], [2 * value for value in attention(tensors, scale=-0.5)])

    def test_integer_captures_of_any_width(self):
        tensors = {**small_inputs(), "group": ("U8", [7], [0, 0, 1, 1, 1, 2, 255])}
        out = self.run_small(tensors, "--mask", "group[q_idx] == group[kv_idx]")
        group = tensors["group"][2]
        self.assert_close(out["o"][2], attention(tensors, lambda h, i, j: group[i] == group[j]))

    def test_rank_3_is_one_batch_entry(self):
        tensors = small_inputs()
        flat = {name: (dtype, shape[1:], values) for name, (dtype, shape, values) in tensors.items()}
        out = self.run_small(flat)
        self.assertEqual(out["o"][1], [1, 2, 5, 3])
        self.assert_close(out["o"][2], attention(tensors))

    def test_npy_inputs_equal_safetensors(self):
        tensors = {**small_inputs(), "slopes": ("F32", [2], [0.5, 0.25])}
        mods = ["--score", "score * slopes[h]"]
        from_file = self.run_small(tensors, *mods)
        for name, (dtype, shape, values) in tensors.items():
            write_npy(self.folder / f"{name}.npy", dtype, shape, values)
        inputs = [part for name in "qkv" for part in (f"--{name}", self.folder / f"{name}.npy")]
        out = self.folder / "npy.safetensors"
        for file in (self.folder / "slopes.npy", f"{self.folder / 'in.safetensors'}:slopes"):
            self.run_well("run", *inputs, "--capture", f"slopes={file}", *mods, "-o", out)
            self.assertEqual(read_safetensors(out)[0], from_file)

    def test_dtype_converts_on_load(self):
        tensors = small_inputs()
        exact = attention(tensors)
        for dtype, stored, tolerance in (
            ("f64", "F64", 1e-6),
            ("f16", "F16", 1e-2),
            ("bf16", "BF16", 5e-2),
            ("e4m3", "BF16", 0.2),
        ):
            out = self.run_small(tensors, "--dtype", dtype)
            self.assertEqual(out["o"][0], stored, dtype)
            self.assertEqual(out["lse"][0], "F64" if dtype == "f64" else "F32")
            self.assert_close(out["o"][2], exact, tolerance)

    def test_sinks(self):
        tensors = {**small_inputs(), "no_sink": ("F32", [2], [-math.inf] * 2), "deep": ("F16", [2], [1e4, 1e4])}
        self.assert_close(self.run_small(tensors, "--sinks", "no_sink")["o"][2], attention(tensors))
        self.assert_close(self.run_small(tensors, "--sinks", "deep")["o"][2], [0.0] * 30)

    def test_normalizers_have_no_lse(self):
        for normalizer in ("none", "sigmoid"):
            out = self.run_small(small_inputs(), "--normalizer", normalizer)
            self.assertEqual(set(out), {"o"})

    def test_lengths(self):
        tensors = {**small_inputs(), "queries": ("I32", [1], [3]), "keys": ("I64", [1], [4])}
        out = self.run_small(tensors, "--q-lengths", "queries", "--kv-lengths", "keys")
        self.assert_close(out["o"][2], attention(tensors, lambda h, i, j: j < 4 and i < 3))
        self.assertEqual(out["lse"][2][3:5], (-math.inf, -math.inf))

    def test_packed_batch_and_start(self):
        tensors = {**small_inputs(queries=6, keys=6), "cu": ("I32", [3], [0, 2, 6]), "start": ("I32", [2], [1, 0])}
        packed = ["--cu-seqlens-q", "cu", "--cu-seqlens-kv", "cu", "--q-start", "start"]
        out = self.run_small(tensors, *packed, "--mask", "q_idx >= kv_idx")
        begin, start = [0, 0, 2, 2, 2, 2], [1, 1, 0, 0, 0, 0]
        expected = attention(tensors, lambda h, i, j: begin[i] == begin[j] and i - begin[i] + start[i] >= j - begin[j])
        self.assert_close(out["o"][2], expected)

    def test_keys_of_a_longer_sequence(self):
        tensors = {**small_inputs(), "start": ("I64", [1], [3])}
        out = self.run_small(tensors, "--kv-start", "start", "--mask", "q_idx + 1 >= kv_idx - kv_start and kv_idx > 3")
        self.assert_close(out["o"][2], attention(tensors, lambda h, i, j: i + 1 >= j and j > 0))
        self.run_well("check", self.folder / "in.safetensors", "--kv-start", "start", "--mask", "q_idx >= kv_idx - 2")

    def test_descales(self):
        tensors = {**small_inputs(), "two": ("F32", [1, 1], [2.0])}
        once = self.run_small(tensors, "--dtype", "e5m2")["o"][2]
        descales = ["--q-descale", "two", "--k-descale", "two", "--v-descale", "two", "--scale", "0.125"]
        twice = self.run_small(tensors, "--dtype", "e5m2", *descales)["o"][2]
        self.assertEqual([2 * value for value in once], list(twice))

    def test_pages(self):
        tensors = small_inputs(keys=6)
        k, v = tensors["k"][2], tensors["v"][2]
        table = [3, 0, 2]
        rows = {"k": [9.0] * (4 * 2 * 4), "v": [9.0] * (4 * 2 * 3)}
        for n, page in enumerate(table):
            rows["k"][page * 8 : page * 8 + 8] = k[n * 8 : n * 8 + 8]
            rows["v"][page * 6 : page * 6 + 6] = v[n * 6 : n * 6 + 6]
        pages = {"k": ("F32", [4, 1, 2, 4], rows["k"]), "v": ("F32", [4, 1, 2, 3], rows["v"])}
        lists = {"table": ("I32", [1, 3], table), "keys": ("I32", [1], [5])}
        paged = {**tensors, **pages, **lists}
        out = self.run_small(paged, "--page-table", "table")
        self.assertEqual(out["o"][1], [1, 2, 5, 3])
        self.assert_close(out["o"][2], attention(tensors))
        out = self.run_small(paged, "--page-table", "table", "--kv-lengths", "keys")
        self.assert_close(out["o"][2], attention(tensors, lambda h, i, j: j < 5))
        self.assertIn("passed", self.run_well("check", self.folder / "in.safetensors", "--page-table", "table"))

    def test_output_on_the_standard_output(self):
        tensors = small_inputs()
        wanted = self.run_small(tensors)
        for name in ("-", "/dev/stdout", "/proc/self/fd/1"):
            command = [HEDDLE, "run", str(self.folder / "in.safetensors"), "-o", name, "--explain"]
            result = subprocess.run(command, capture_output=True, check=True)
            (self.folder / "stream.safetensors").write_bytes(result.stdout)
            self.assertEqual(read_safetensors(self.folder / "stream.safetensors")[0], wanted)
            self.assertIn(b"planned in", result.stderr)
            self.assertIn(b"problem", result.stderr)
        with open(self.folder / "file.safetensors", "wb") as file:
            report = subprocess.run([*command[:4], "-", "--json"], stdout=file, stderr=subprocess.PIPE, check=True).stderr
        self.assertEqual(read_safetensors(self.folder / "file.safetensors")[0], wanted)
        self.assertEqual(json.loads(report)["output"], "-")
        self.assertFalse((self.folder / "-").exists())

    def test_names_that_mean_something_else_in_mods(self):
        tensors = {**small_inputs(), "h": ("F32", [], [5.0]), "b": ("F32", [2], [1.0, 2.0])}
        write_safetensors(self.folder / "in.safetensors", tensors)
        command = ["run", self.folder / "in.safetensors", "-o", self.folder / "out.safetensors"]
        result = heddle(*command, "--score", "score + f32(h)")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(
            result.stderr,
            "heddle: --score: 'h' has a meaning of its own in mods: the tensor 'h' is not read; "
            "--capture NAME=FILE.safetensors:h gives it another name\n",
        )
        self.assertEqual(heddle(*command, "--score", "score + hb", "--capture", "hb=x").returncode, 1)
        self.assertEqual(heddle(*command, "--score", "score * 2").stderr, "")
        message = self.assert_fails(2, "--score", *command, "--score", "score + b[h]")
        self.assertIn("the tensor 'b' is not read", message)
        renamed = ["--capture", f"bias={self.folder / 'in.safetensors'}:b"]
        self.run_well(*command, "--score", "score + bias[h]", *renamed)

    def test_json(self):
        out = self.folder / "out.safetensors"
        result = self.run_json("run", INPUT, "-o", out, "--mask", "kv_idx < lengths[b]", "--threads", 1)
        self.assertEqual(result["verb"], "run")
        self.assertEqual(result["backend"], "cpu")
        self.assertEqual(result["q"], {"dtype": "f16", "shape": [2, 4, 512, 32]})
        self.assertEqual(result["o"], result["q"])
        self.assertEqual(result["lse"], {"dtype": "f32", "shape": [2, 4, 512]})
        self.assertGreater(result["seconds"]["run"], 0)
        self.assertGreater(result["block_mask"]["empty"], 0)
        self.assertIn("lengths", result["explanation"]["mods"]["mask"]["given"])
        self.assertEqual(result["output"], str(out))

    def test_text_names_what_was_done(self):
        text = self.run_well("run", INPUT, "-o", self.folder / "out.safetensors", "--mask", "q_idx >= kv_idx")
        for part in ("q [2, 4, 512, 32] f16", "cpu", "ran in", "out.safetensors", "lse [2, 4, 512] f32", "% of"):
            self.assertIn(part, text)

    def test_metadata_tells_the_mods(self):
        out = self.folder / "out.safetensors"
        self.run_well("run", INPUT, "-o", out, "--mask", "q_idx>=kv_idx")
        metadata = read_safetensors(out)[1]
        self.assertEqual(metadata["mask"], "q_idx >= kv_idx")
        self.assertIn("heddle", metadata)

    def test_two_runs_are_bitwise_equal(self):
        first, second = self.folder / "1.safetensors", self.folder / "2.safetensors"
        mods = ["--mask", "abs(q_idx - kv_idx) <= 40", "--score", "tanh(score)"]
        self.run_well("run", INPUT, "-o", first, *mods, "--threads", 1)
        self.run_well("run", INPUT, "-o", second, *mods, "--threads", 3)
        self.assertEqual(first.read_bytes(), second.read_bytes())

    def test_explain(self):
        mods = ("--mask", "not (kv_idx > q_idx)")
        text = self.run_well("explain", INPUT, *mods)
        self.assertIn("kv_idx", text)
        explanation = self.run_json("explain", INPUT, *mods)["explanation"]
        stages = ["problem", "mods", "mask", "plan", "predicted", "tuned", "rejected", "kernel"]
        self.assertEqual(list(explanation), stages)
        for part in (explanation["problem"]["summary"], explanation["mods"]["mask"]["simplified"],
                     explanation["kernel"]["summary"]):
            self.assertIn(part, text)
        both = self.run_well("run", INPUT, "-o", self.folder / "out.safetensors", *mods, "--explain")
        self.assertTrue(both.startswith(text[: text.index("\nmemory ")]), both)
        self.assertIn("ran in", both)

    def test_explains_packed_heads_of_every_family(self):
        for kv_heads, queries in ((2, 1), (1, 2)):
            shape = {"q": [1, 8, queries, 64], "k": [1, kv_heads, 517, 64], "v": [1, kv_heads, 517, 64]}
            path = self.folder / "packed.safetensors"
            write_safetensors(path, {n: ("F16", s, bytes(2 * math.prod(s))) for n, s in shape.items()})
            for gpu in ("a100", "rtx4090", "h200", "mi300x"):
                environment = {**os.environ, "HEDDLE_FAMILY": "forward_mma"}
                text = self.run_well("explain", path, "--gpu", gpu, env=environment)
                self.assertIn(f"packs {8 // kv_heads} heads a tile", text)
                plan = self.run_json("explain", path, "--gpu", gpu, env=environment)["explanation"]["plan"]
                self.assertEqual(plan["packed_heads"], 8 // kv_heads)
            self.run_well("explain", path, "--gpu", "h200")

    def test_explains_for_a_gpu_that_is_not_here(self):
        tensors = small_inputs(queries=300, keys=500, dim=64, value_dim=64)
        tensors["ids"] = ("I32", [500], [i // 100 for i in range(500)])
        write_safetensors(self.folder / "in.safetensors", tensors)
        arguments = ["explain", self.folder / "in.safetensors", "--dtype", "bf16", "--gpu", "h200"]
        arguments += ["--mask", "ids[q_idx] == ids[kv_idx]"]
        explanation = self.run_json(*arguments)["explanation"]
        self.assertEqual(explanation["plan"]["family"], "forward_sm90")
        self.assertEqual(explanation["problem"]["device"], "cuda:0")
        self.assertGreater(explanation["mask"]["empty"], 0)
        self.assertGreater(explanation["predicted"]["seconds"], 0)
        self.assertGreater(len(explanation["rejected"]), 0)
        self.assertIsNone(explanation["kernel"])
        text = self.run_well(*arguments)
        for part in ("on cuda:0", "predicted  ", "rejected   ", "kernel     none prepared"):
            self.assertIn(part, text)

    def test_empty_queries(self):
        out = self.run_small(small_inputs(queries=0))
        self.assertEqual(out["o"][:2], ("F32", [1, 2, 0, 3]))


class Check(ProgramTest):
    def test_passes_on_real_input(self):
        result = self.run_json("check", INPUT, "--mask", "sentence[b, q_idx] == sentence[b, kv_idx]")
        self.assertTrue(result["passed"])
        self.assertLessEqual(result["o"]["max_error"], result["o"]["max_allowed"])
        self.assertGreater(result["o"]["max_allowed"], 0)
        self.assertTrue(result["lse"]["passed"])

    def test_takes_the_arguments_of_run(self):
        write_safetensors(self.folder / "in.safetensors", small_inputs())
        out = self.folder / "out.safetensors"
        text = self.run_well("check", self.folder / "in.safetensors", "-o", out, "--scale", "0.3", "--explain")
        self.assertIn("cpu", text)
        self.assertFalse(out.exists())

    def test_without_lse(self):
        write_safetensors(self.folder / "in.safetensors", small_inputs())
        self.assertIsNone(self.run_json("check", self.folder / "in.safetensors", "--normalizer", "sigmoid")["lse"])


class OnAGpu(ProgramTest):
    def setUp(self):
        super().setUp()
        if all(device["kind"] == "cpu" for device in json.loads(self.run_well("devices", "--json"))["devices"]):
            self.skipTest("no GPU is here")

    # More tiles than a GPU has multiprocessors: a run needs its workspace.
    def test_runs_and_checks(self):
        shapes = {"q": [1, 140, 130, 64], "k": [1, 1, 70, 64], "v": [1, 1, 70, 64]}
        numbers = random.Random(1)
        tensors = {}
        for name, shape in shapes.items():
            tensors[name] = ("F16", shape, [numbers.gauss(0, 1) for _ in range(math.prod(shape))])
        write_safetensors(self.folder / "in.safetensors", tensors)
        arguments = (self.folder / "in.safetensors", "--backend", "cuda", "--mask", "q_idx >= kv_idx")
        self.assertIn("passed", self.run_well("check", *arguments))
        self.run_well("run", *arguments, "-o", self.folder / "out.safetensors")
        self.assertEqual(read_safetensors(self.folder / "out.safetensors")[0]["o"][1], [1, 140, 130, 64])


if __name__ == "__main__":
    unittest.main()
