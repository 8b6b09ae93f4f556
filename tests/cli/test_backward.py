"""heddle run, check and explain --backward: gradients against the formulas in Python floats."""

import math
import unittest

from program import INPUT, ProgramTest, noise, read_safetensors, small_inputs, write_npy, write_safetensors


class Loss:
    """sum(d_o * o) + sum(d_lse * lse) of a batch of one: scores with slopes, causal, a sink for each head."""

    def __init__(self, tensors):
        (_, self.heads, self.queries, self.dim), self.q = tensors["q"][1:]
        (_, self.kv_heads, self.keys, _), self.k = tensors["k"][1:]
        self.value_dim, self.v = tensors["v"][1][3], tensors["v"][2]
        self.slopes, self.sinks = tensors["slopes"][2], tensors["sink"][2]
        self.d_o, self.d_lse, self.cap = tensors["d_o"][2], tensors["d_lse"][2], 0.8

    def rows(self):
        """(h, i, {j: p}, lse) with softmax over the sink too."""
        for h in range(self.heads):
            g = h * self.kv_heads // self.heads
            for i in range(self.queries):
                t = {}
                for j in range(min(self.keys, i + 1)):
                    s = sum(
                        self.q[(h * self.queries + i) * self.dim + d] * self.k[(g * self.keys + j) * self.dim + d]
                        for d in range(self.dim)
                    )
                    t[j] = self.cap * math.tanh(s * self.dim**-0.5 / self.cap) + self.slopes[h] * (j - i)
                lse = math.log(sum(map(math.exp, t.values())) + math.exp(self.sinks[h]))
                yield h, i, {j: math.exp(x - lse) for j, x in t.items()}, lse

    def value(self):
        total = 0
        for h, i, p, lse in self.rows():
            g, row = h * self.kv_heads // self.heads, h * self.queries + i
            total += self.d_lse[row] * lse
            for c in range(self.value_dim):
                o = sum(p[j] * self.v[(g * self.keys + j) * self.value_dim + c] for j in p)
                total += self.d_o[row * self.value_dim + c] * o
        return total

    def slope(self, values, i, step=1e-4):
        """The central difference by values[i]."""
        kept, ends = values[i], []
        for moved in (kept + step, kept - step):
            values[i] = moved
            ends.append(self.value())
        values[i] = kept
        return (ends[0] - ends[1]) / (2 * step)


def training_inputs():
    """What the file of a run has; read back, so that the numbers are those of f32."""
    tensors = small_inputs()
    tensors["slopes"] = ("F32", [2], [0.5, -0.25])
    tensors["sink"] = ("F32", [2], [0.125, -1.0])
    tensors["d_o"] = ("F32", [1, 2, 5, 3], noise(1, 2, 5, 3, seed=7))
    tensors["d_lse"] = ("F32", [1, 2, 5], noise(1, 2, 5, seed=8))
    return tensors


MODS = ["--mask", "q_idx >= kv_idx", "--score", "cap * tanh(score / cap) + slopes[h] * (kv_idx - q_idx)"]
MODS += ["--param", "cap=0.8", "--sinks", "sink"]
ALL = {"dq", "dk", "dv", "d_sinks", "d_captures.slopes", "d_params.cap"}


class Backward(ProgramTest):
    def setUp(self):
        super().setUp()
        self.input = self.folder / "in.safetensors"
        write_safetensors(self.input, training_inputs())
        stored = read_safetensors(self.input)[0]
        self.tensors = {name: (dtype, shape, list(values)) for name, (dtype, shape, values) in stored.items()}
        self.incoming = ["--backward", f"DO={self.input}:d_o", "--backward", f"DLSE={self.input}:d_lse"]
        self.out = self.folder / "out.safetensors"

    def run_backward(self, *arguments, mods=MODS):
        self.run_well("run", self.input, *mods, *arguments, "-o", self.out)
        return read_safetensors(self.out)[0]

    def assert_slopes(self, loss, values, gradient):
        self.assertEqual(len(values), len(gradient))
        for i, slope in enumerate(gradient):
            self.assertAlmostEqual(slope, loss.slope(values, i), delta=1e-5, msg=f"element {i}")

    def test_gradients(self):
        out = self.run_backward(*self.incoming)
        self.assertEqual(set(out), ALL | {"o", "lse"})
        loss = Loss(self.tensors)
        inputs = {"dq": loss.q, "dk": loss.k, "dv": loss.v, "d_sinks": loss.sinks, "d_captures.slopes": loss.slopes}
        for name, values in inputs.items():
            with self.subTest(name):
                self.assert_slopes(loss, values, out[name][2])
        self.assertEqual(out["dq"][:2], ("F32", [1, 2, 5, 4]))
        self.assertEqual(out["d_params.cap"][:2], ("F32", []))
        step = 1e-4
        ends = []
        for loss.cap in (0.8 + step, 0.8 - step):
            ends.append(loss.value())
        self.assertAlmostEqual(out["d_params.cap"][2][0], (ends[0] - ends[1]) / (2 * step), delta=1e-5)

    def test_what_the_forward_stored(self):
        computed = self.run_backward(*self.incoming)
        forward = self.folder / "forward.safetensors"
        self.run_well("run", self.input, *MODS, "-o", forward)
        stored = self.run_backward(*self.incoming, "--backward", f"O={forward}:o", "--backward", f"LSE={forward}:lse")
        self.assertEqual(set(stored), ALL)
        self.assertEqual(stored, {name: computed[name] for name in ALL})
        write_safetensors(forward, {"o": ("F32", [1, 2, 5, 3], [0.0] * 30), "lse": ("F32", [1, 2, 5], [9.0] * 10)})
        other = self.run_backward(*self.incoming, "--backward", f"O={forward}:o", "--backward", f"LSE={forward}:lse")
        self.assertNotEqual(other["dq"], computed["dq"], "o and lse are not read")

    def test_without_d_lse(self):
        out = self.run_backward(*self.incoming[:2])
        loss = Loss(self.tensors)
        loss.d_lse = [0.0] * 10
        self.assert_slopes(loss, loss.q, out["dq"][2])

    def test_chosen_gradients(self):
        everything = self.run_backward(*self.incoming)
        for names, wanted in (
            ("q", {"dq"}),
            ("v,k", {"dk", "dv"}),
            ("slopes,cap,sinks", {"d_captures.slopes", "d_params.cap", "d_sinks"}),
        ):
            out = self.run_backward(*self.incoming, "--gradients", names)
            self.assertEqual(out, {name: everything[name] for name in wanted | {"o", "lse"}})

    def test_npy_rank_3_and_backends(self):
        everything = self.run_backward(*self.incoming)
        write_npy(self.folder / "d_o.npy", "F32", [2, 5, 3], self.tensors["d_o"][2])
        write_npy(self.folder / "d_lse.npy", "F32", [2, 5], self.tensors["d_lse"][2])
        incoming = ["--backward", f"DO={self.folder / 'd_o.npy'}", "--backward", f"DLSE={self.folder / 'd_lse.npy'}"]
        self.assertEqual(self.run_backward(*incoming), everything)
        for backend in ("reference", "cpu"):
            out = self.run_backward(*incoming, "--backend", backend, "--deterministic", "--threads", 1)
            for name in ALL:
                for value, wanted in zip(out[name][2], everything[name][2]):
                    self.assertAlmostEqual(value, wanted, delta=1e-5)

    def test_dtype_converts_all_of_them(self):
        everything = self.run_backward(*self.incoming)
        forward = self.folder / "forward.safetensors"
        self.run_well("run", self.input, *MODS, "-o", forward)
        stored = ["--backward", f"O={forward}:o", "--backward", f"LSE={forward}:lse"]
        for dtype, written, tolerance in (("f64", "F64", 1e-5), ("bf16", "BF16", 0.1), ("e4m3", "BF16", 0.5)):
            for given in ([], stored):
                out = self.run_backward(*self.incoming, *given, "--dtype", dtype)
                self.assertEqual(out["dq"][0], written)
                for value, wanted in zip(out["dv"][2], everything["dv"][2]):
                    self.assertAlmostEqual(value, wanted, delta=tolerance)

    def test_normalizers_without_lse(self):
        mods = ["--score", "score * slopes[h]", "--normalizer", "sigmoid"]
        out = self.run_backward(*self.incoming[:2], mods=mods)
        self.assertEqual(set(out), {"dq", "dk", "dv", "d_captures.slopes", "o"})

    def test_report(self):
        text = self.run_well("run", self.input, *MODS, *self.incoming, "-o", self.out)
        for part in ("dO [1, 2, 5, 3] f32", "forward ran in", "backward ran in", "dq [1, 2, 5, 4] f32",
                     "d_captures.slopes [2] f32", "d_params.cap [] f32", "lse [1, 2, 5] f32"):
            self.assertIn(part, text)
        result = self.run_json("run", self.input, *MODS, *self.incoming, "-o", self.out)
        self.assertEqual((result["verb"], result["pass"]), ("run", "backward"))
        self.assertEqual(set(result["results"]), ALL | {"o", "lse"})
        self.assertEqual(result["results"]["dk"], {"dtype": "f32", "shape": [1, 1, 7, 4]})
        self.assertGreater(result["seconds"]["forward"], 0)
        self.assertIn("backward", result["explanation"]["problem"]["summary"])
        stored = ["--backward", f"O={self.out}:o", "--backward", f"LSE={self.out}:lse"]
        again = self.folder / "again.safetensors"
        result = self.run_json("run", self.input, *MODS, *self.incoming, *stored, "-o", again)
        self.assertIsNone(result["seconds"]["forward"])
        self.assertEqual(read_safetensors(again)[1]["mask"], "q_idx >= kv_idx")

    def test_explain(self):
        text = self.run_well("explain", self.input, *MODS, *self.incoming)
        self.assertIn("backward softmax", text)
        self.assertIn("d 'slopes'", text)
        only_k = self.run_json("explain", self.input, *MODS, *self.incoming, "--gradients", "k")
        self.assertIn("-> dk from", only_k["explanation"]["problem"]["summary"])
        both = self.run_well("run", self.input, *MODS, *self.incoming, "--explain", "-o", self.out)
        self.assertTrue(both.startswith(text[: text.index("\nmemory ")]), both)

    def test_check(self):
        result = self.run_json("check", self.input, *MODS, *self.incoming)
        self.assertTrue(result["passed"])
        names = {"dq", "dk", "dv", "d_sinks", "d_captures['slopes']", "d_params['cap']"}
        self.assertEqual(set(result["gradients"]), names)
        self.assertGreater(result["gradients"]["dq"]["max_allowed"], 0)
        text = self.run_well("check", self.input, *MODS, *self.incoming, "--explain", "-o", self.out)
        self.assertIn("d_captures['slopes']", text)
        self.assertIn("backward softmax", text)
        self.assertFalse(self.out.exists())

    def test_check_fails_another_forward(self):
        self.run_well("run", self.input, "-o", self.out)
        stored = ["--backward", f"O={self.out}:o", "--backward", f"LSE={self.out}:lse"]
        command = ("check", self.input, *MODS, *self.incoming, *stored, "--gradients", "q")
        self.assertIn("FAILED", self.assert_exit_code(1, *command))

    def test_real_input(self):
        mods = ["--mask", "sentence[b, q_idx] == sentence[b, kv_idx]"]
        mods += ["--score", "score + slopes[h] * (kv_idx - q_idx)"]
        first, second = self.folder / "1.safetensors", self.folder / "2.safetensors"
        for out, threads in ((first, 1), (second, 3)):
            self.run_well("run", INPUT, *mods, "--backward", f"DO={INPUT}:v", "-o", out, "--threads", threads)
        self.assertEqual(first.read_bytes(), second.read_bytes())

    def test_refusals(self):
        def refused(sentence, *arguments):
            self.assert_fails(2, sentence, "run", self.input, *MODS, *arguments, "-o", self.out)
            self.assertFalse(self.out.exists())

        d_o = self.incoming[:2]
        refused("--gradients requires --backward", "--gradients", "q")
        refused("--deterministic requires --backward", "--deterministic")
        refused("--backward: DO, the gradient of o, is not given; DO=FILE is accepted", *self.incoming[2:])
        refused("--backward: 'd_o' is not of the form NAME=FILE", "--backward", "d_o")
        refused("--backward: there is no tensor 'D'; DO, DLSE, O and LSE are accepted", "--backward", "D=x.npy")
        refused("--backward: DO is given twice", *d_o, *d_o)
        refused("holds no tensor 'nothing'", "--backward", f"DO={self.input}:nothing")
        refused("DO has shape [2]; it must be [B, H, S, D], or [H, S, D] for one batch entry", "--backward",
                f"DO={self.input}:slopes")
        refused("DLSE has shape [2]; it must be [B, H, S], or [H, S] for one batch entry", *d_o, "--backward",
                f"DLSE={self.input}:slopes")
        refused("d_o has shape [1, 2, 5, 4]; [1, 2, 5, 3], o's, is accepted", "--backward", f"DO={self.input}:q")
        o = ["--backward", f"O={self.input}:d_o"]
        refused("--backward: O is given without LSE; both or none are accepted", *d_o, *o)
        refused("--backward: LSE is given without O", *d_o, "--backward", f"LSE={self.input}:d_lse")
        accepted = "q, k, v, sinks, slopes, cap are accepted"
        refused(f"--gradients: 'slope' has none; {accepted}", *d_o, "--gradients", "q,slope")
        plain = ("run", self.input, "-o", self.out, *d_o)
        self.assert_fails(2, "--gradients: 'sinks' has none; q, k, v are accepted", *plain, "--gradients", "sinks")
        lse = ["--backward", f"LSE={self.input}:d_lse", "--normalizer", "none"]
        self.assert_fails(2, "--backward: LSE is given with a normalizer that has no lse", *plain, *lse)
        self.assert_fails(1, "no/such.npy", "run", self.input, "-o", self.out, "--backward", "DO=no/such.npy")
        write_npy(self.folder / "d_o.npy", "F32", [1, 2, 5, 3], self.tensors["d_o"][2])
        link = self.folder / "link.safetensors"
        link.symlink_to(self.folder / "d_o.npy")
        self.assert_fails(2, "is the input of --backward DO=", "run", self.input, "-o", link, "--backward",
                          f"DO={self.folder / 'd_o.npy'}")


if __name__ == "__main__":
    unittest.main()
