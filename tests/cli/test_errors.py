"""Wrong usage ends with 2, a failed job with 1; the sentence names what was wrong, and no output is touched."""

import os
import resource
import signal
import subprocess
import unittest

from program import INPUT, ProgramTest, heddle, noise, small_inputs, write_npy, write_safetensors

MASK = ("mask", "--q-len", 8, "--kv-len", 8, "--mask", "q_idx >= kv_idx")


class ErrorTest(ProgramTest):
    """Every test of these ends with the old output as it was, and with no file beside it."""

    def setUp(self):
        super().setUp()
        self.out = self.folder / "out.safetensors"
        self.out.write_text("old", encoding="utf-8")

    def tearDown(self):
        self.assertEqual(self.out.read_text(encoding="utf-8"), "old")
        left = {path.name for path in self.folder.iterdir()} - {"out.safetensors", "examples"}
        self.assertEqual({name for name in left if name.startswith("out.") or "tmp" in name}, set())

    def assert_refused(self, sentence, *arguments):
        return self.assert_fails(2, sentence, "run", INPUT, "-o", self.out, *arguments)


class WrongUsage(ErrorTest):
    def test_no_verb(self):
        self.assert_fails(2, "Usage")
        self.assert_fails(2, "heddle --help", "fly")

    def test_unknown_option(self):
        self.assertIn("heddle run --help", self.assert_refused("--msk", "--msk", "q_idx >= kv_idx"))

    def test_missing_output(self):
        self.assert_fails(2, "--output", "run", INPUT)

    def test_caret_under_the_column(self):
        for option, text, column in (("--mask", "q_idx >= kv_index", 9), ("--score", "score + * 2", 8)):
            lines = self.assert_refused(f"{option}: ", option, text).splitlines()
            shown = next(i for i, line in enumerate(lines) if text in line)
            self.assertEqual(lines[shown + 1].strip("~ "), "^")
            self.assertEqual(lines[shown + 1].index("^") - lines[shown].index(text), column)

    def test_mod_of_the_wrong_type(self):
        self.assert_refused("mask_mod", "--mask", "q_idx + kv_idx")
        self.assert_refused("score_mod", "--score", "q_idx >= kv_idx")

    def test_unknown_names_list_the_known(self):
        self.assert_refused("slops", "--score", "score + slops[h]")
        message = self.assert_refused("--sinks: no tensor 'sink'", "--sinks", "sink")
        for name in ("lengths", "sentence", "slopes"):
            self.assertIn(name, message)

    def test_capture_index_that_may_fall_outside(self):
        self.assert_refused("slopes", "--score", "score + slopes[q_idx]")

    def test_params(self):
        mask = ("--mask", "kv_idx < w")
        self.assert_refused("NAME=VALUE", *mask, "--param", "w")
        self.assert_refused("'many' is no value", *mask, "--param", "w=many")
        self.assert_refused("does not fit in i32", *mask, "--param", "w=3000000000")
        self.assert_refused("'w' is given twice", *mask, "--param", "w=3", "--param", "w=4")
        self.assert_refused("'slopes' is given twice", *mask, "--param", "slopes=3")
        self.assert_refused("w", *mask)

    def test_captures(self):
        self.assert_refused("--capture: 'x' is not of the form NAME=FILE", "--capture", "x")
        self.assert_refused("'slopes' is given twice", "--capture", f"slopes={INPUT}:slopes")
        self.assert_refused("holds no tensor 'y'", "--capture", f"x={INPUT}:y")
        sentence = f"--capture: '{INPUT}' does not say which of its tensors; {INPUT}:TENSOR is accepted"
        self.assert_refused(sentence, "--capture", f"x={INPUT}")
        self.assert_refused("--backward: 'DO' is not of the form NAME=FILE", "--backward", "DO")
        self.assert_refused("--backward: ", "--backward", f"DO={INPUT}")

    def test_files_in_place_of_names_hear_of_captures(self):
        self.assert_refused("no tensor 'len.npy'; the tensors are", "--kv-lengths", "len.npy")
        self.assert_refused("--capture NAME=FILE.npy adds one", "--kv-lengths", "len.npy")

    def test_devices_of_no_gpu(self):
        for backend in ("automatic", "cpu", "reference"):
            sentence = f"--device 1 is given with --backend {backend}; it chooses a GPU of --backend cuda or amd"
            self.assert_refused(sentence, "--backend", backend, "--device", 1)
        self.assert_refused("--device 0 is given with --backend automatic", "--device", 0)
        self.assert_fails(2, "--device 1 is given", "explain", INPUT, "--gpu", "h100", "--device", 1)
        for backend in ("cpu", "reference", "cuda", "amd"):
            sentence = f"--gpu h100 is given with --backend {backend}; one of them is accepted"
            self.assert_fails(2, sentence, "explain", INPUT, "--gpu", "h100", "--backend", backend)

    def test_names_that_no_mod_can_read(self):
        for name in ("score", "q_idx", "True", "and"):
            sentence = f"cannot be named '{name}': the name has a meaning of its own"
            self.assert_refused(f"--param: a param {sentence}", "--param", f"{name}=1")
            self.assert_refused(f"--capture: a capture {sentence}", "--capture", f"{name}={INPUT}:slopes")
        self.assert_refused("'a b' is not", "--param", "a b=3")
        self.assert_refused("'a b' is not", "--capture", f"a b={INPUT}:slopes")

    def test_choices(self):
        kinds = "softmax, none and sigmoid are accepted"
        self.assert_refused(f"--normalizer: 'hardmax' is given; {kinds}", "--normalizer", "hardmax")
        self.assert_refused("--dtype: 'i32' is given; f64, f32, f16, bf16, e4m3 and e5m2 are accepted", "--dtype", "i32")
        self.assert_refused("--backend: 'metal' is given", "--backend", "metal")
        gpu = ("--backend", "cuda", "--device")
        self.assert_refused("--device: '-1' is given; whole numbers from 0 to 1023 are accepted", *gpu, "-1")
        for text in ("-1", "3.5", "many", "65537", "99999999999999999999", "0x10"):
            sentence = f"--threads: '{text}' is given; whole numbers from 0 to 65536 are accepted"
            self.assert_refused(sentence, "--threads", text)
        self.assert_refused("--scale: 'big' is not a number", "--scale", "big")
        self.assert_refused("scale", "--scale", "nan")
        self.assert_refused("scale is 1e+39; f16 inputs are computed in f32", "--scale", "1e39")

    def test_output_that_is_the_input(self):
        path = self.folder / "in.safetensors"
        write_safetensors(path, small_inputs())
        before = path.read_bytes()
        self.assert_fails(2, "is the input", "run", path, "-o", path)
        self.assertEqual(path.read_bytes(), before)

    def test_output_that_is_any_file_that_is_read(self):
        write_safetensors(self.folder / "cap.safetensors", {"slopes": ("F32", [2], [0.5, 0.25])})
        write_npy(self.folder / "q.npy", "F16", [2, 4, 512, 32], [0.0] * (2 * 4 * 512 * 32))
        (self.folder / "link.safetensors").symlink_to("cap.safetensors")
        (self.folder / "hard.safetensors").hardlink_to(self.folder / "cap.safetensors")
        (self.folder / "hard_q.safetensors").hardlink_to(self.folder / "q.npy")
        before = {path: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}
        capture = f"x={self.folder / 'cap.safetensors'}:slopes"
        for name in ("cap", "link", "hard"):
            out = self.folder / f"{name}.safetensors"
            sentence = f": {out} is the input of --capture x="
            self.assert_fails(2, "-o" + sentence, "run", INPUT, "--capture", capture, "-o", out)
            self.assert_fails(2, "--svg" + sentence, *MASK, "--capture", capture, "--svg", out)
        for name in "qkv":
            arguments = ("run", INPUT, f"--{name}", self.folder / "q.npy", "-o", self.folder / "hard_q.safetensors")
            self.assert_fails(2, f"is the input of --{name}", *arguments)
        picture = self.folder / "q.npy"
        self.assert_fails(2, f"--svg: {picture} is the input", *MASK, "--capture", f"x={picture}", "--svg", picture)
        self.assertEqual({path: path.read_bytes() for path in before}, before)
        self.assertTrue((self.folder / "link.safetensors").is_symlink())

    def test_empty_texts(self):
        sentence = ": the text is empty where a value was expected"
        for option in ("--mask", "--score", "--weight", "--scale", "--sinks", "--q"):
            self.assert_refused(option + sentence, option, "")
        self.assert_fails(2, "--output" + sentence, "run", INPUT, "-o", "")
        self.assert_fails(2, "--mask" + sentence, "mask", "--q-len", 8, "--kv-len", 8, "--mask", "")
        self.assert_fails(2, "--svg" + sentence, *MASK, "--svg", "")
        for verb in ("check", "explain"):
            self.assert_fails(2, "--mask" + sentence, verb, INPUT, "--mask", "")

    def test_output_of_another_format(self):
        self.assert_fails(2, ".npy", "run", INPUT, "-o", self.folder / "o.npy")

    def test_missing_inputs(self):
        self.assert_fails(2, "no q: give", "run", "-o", self.out)
        write_safetensors(self.folder / "in.safetensors", {"q": small_inputs()["q"]})
        self.assert_fails(2, "holds no tensor 'k'", "run", self.folder / "in.safetensors", "-o", self.out)

    def test_shapes(self):
        for name, shape, sentence in (
            ("q", [5, 4], "q has shape [5, 4]"),
            ("k", [1, 3, 7, 4], "k"),
            ("k", [1, 1, 7, 5], "k"),
            ("v", [1, 1, 6, 3], "v"),
        ):
            write_safetensors(self.folder / "in.safetensors", {**small_inputs(), name: ("F32", shape, noise(*shape))})
            self.assert_fails(2, sentence, "run", self.folder / "in.safetensors", "-o", self.out)

    def test_mask_verb(self):
        size = ("mask", "--q-len", 8, "--kv-len", 8)
        self.assert_fails(2, "--mask", *size)
        self.assert_fails(2, "--block: '8y8'", *size, "--mask", "True", "--block", "8y8")
        self.assert_fails(2, "--block: '0x8'", *size, "--mask", "True", "--block", "0x8")
        self.assert_fails(2, "--head: 1 is not below --heads 1", *size, "--mask", "True", "--head", 1)
        self.assert_fails(2, "--entry: 2 is not below --batch 1", *size, "--mask", "True", "--entry", 2)
        self.assert_fails(2, "--q-len", "mask", "--q-len", -1, "--kv-len", 8, "--mask", "True")
        self.assert_fails(2, "^", *size, "--mask", "q_idx >")
        self.assert_fails(2, "score", *size, "--mask", "score > 0.0")
        sentence = "--q-len: '5e3' is given; whole numbers from 0 to 2147483647 are accepted"
        self.assert_fails(2, sentence, "mask", "--q-len", "5e3", "--kv-len", 8, "--mask", "True")
        self.assert_fails(2, "--kv-start: '-2147483649' is given", *size, "--mask", "True", "--kv-start", -(2**31) - 1)
        for option in ("--heads", "--batch"):
            self.assert_fails(2, option, *size, "--mask", "h + b == 0", option, 10**12)
        self.assert_fails(1, "2000000000 heads with 1 rows", *size, "--mask", "h == 0", "--heads", 2 * 10**9)


class FailedJobs(ErrorTest):
    def test_damaged_safetensors(self):
        path = self.folder / "damaged.safetensors"
        write_safetensors(path, small_inputs())
        good = path.read_bytes()
        wrong_type = good.replace(b'"F32"', b'"F99"', 1)
        for content in (b"", good[:5], good[:40], good[:-1], good + b"\0", b"\xff" * 64, wrong_type):
            path.write_bytes(content)
            self.assert_fails(1, "damaged.safetensors", "run", path, "-o", self.out)

    def test_damaged_npy(self):
        path = self.folder / "q.npy"
        for content in (b"", b"\x93NUMPY", b"not a tensor at all" * 10):
            path.write_bytes(content)
            self.assert_fails(1, "q.npy", "run", INPUT, "--q", path, "-o", self.out)

    def test_missing_files(self):
        self.assert_fails(1, "nowhere.safetensors", "run", self.folder / "nowhere.safetensors", "-o", self.out)
        self.assert_fails(
            1, "nowhere.npy", "run", INPUT, "--capture", f"x={self.folder / 'nowhere.npy'}", "-o", self.out
        )

    def test_no_gpu(self):
        environment = dict(os.environ, HEDDLE_CUDA_DRIVER="/no/such/libcuda.so.1")
        sentence = "HEDDLE_CUDA_DRIVER is '/no/such/libcuda.so.1'"
        for verb in (("run", INPUT, "-o", self.out), ("check", INPUT), ("explain", INPUT)):
            self.assert_fails(1, sentence, *verb, "--backend", "cuda", env=environment)

    def test_no_such_gpu(self):
        environment = dict(os.environ, HEDDLE_CUDA_DRIVER=os.environ["FAKE_CUDA_DRIVER"])
        arguments = ("run", INPUT, "-o", self.out, "--backend", "cuda", "--device", 7)
        self.assert_fails(1, "there is no CUDA device 7; this machine has 2", *arguments, env=environment)

    def test_no_kernel_takes_it(self):
        environment = dict(os.environ, HEDDLE_CUDA_DRIVER=os.environ["FAKE_CUDA_DRIVER"])
        small = self.folder / "in.safetensors"
        write_safetensors(small, small_inputs(dim=584))
        arguments = ("run", small, "-o", self.out, "--backend", "cuda")
        self.assert_fails(1, "q and k have head dimension 584; 1 to 576 are accepted", *arguments, env=environment)
        self.assert_fails(1, "q and k have head dimension 584", "explain", small, "--gpu", "h200")
        names = ("'h200', 'h100', 'h20', 'a100', 'a10', 'a6000', 'rtx3090', 'l4', 'l40s', 'rtx4090', 'rtx5090', 'rx6800xt', 'rx7900xtx', 'rx9070xt', 'mi210', "
                 "'mi300x'")
        self.assert_fails(2, f"gpu is 'h900'; {names} are accepted", "explain", INPUT, "--gpu", "h900")

    def test_missing_folder(self):
        self.assert_fails(1, "there is no folder", "run", INPUT, "-o", self.folder / "no" / "where.safetensors")

    def test_output_is_a_folder(self):
        (self.folder / "taken").mkdir()
        self.assert_fails(1, "taken", "run", INPUT, "-o", self.folder / "taken")

    def test_picture_that_cannot_be_written_is_told_before_the_work(self):
        endless = ("mask", "--q-len", 200000, "--kv-len", 200000, "--mask", "q_idx * kv_idx % 7 == 0")
        self.assert_fails(1, "there is no folder", *endless, "--svg", self.folder / "no" / "mask.svg", timeout=60)
        self.assert_fails(1, "it is a folder", *endless, "--svg", self.folder, timeout=60)

    def test_link_loop(self):
        loop = self.folder / "loop"
        loop.symlink_to("loop")
        sentence = f"cannot write {loop}: Too many levels of symbolic links"
        self.assert_fails(1, sentence, "run", INPUT, "-o", loop)
        self.assert_fails(1, sentence, *MASK, "--svg", loop)

    def test_folder_that_takes_no_files(self):
        self.assert_fails(1, "out.safetensors", "run", INPUT, "-o", "/proc/out.safetensors")

    def test_unwritable_folder(self):
        closed = self.folder / "closed"
        closed.mkdir()
        (closed / "old.safetensors").write_text("old", encoding="utf-8")
        closed.chmod(0o500)
        self.addCleanup(closed.chmod, 0o700)
        if os.access(closed, os.W_OK):
            self.skipTest("this user may write everywhere")
        self.assert_fails(1, "old.safetensors", "run", INPUT, "-o", closed / "old.safetensors")
        self.assertEqual((closed / "old.safetensors").read_text(encoding="utf-8"), "old")

    def test_full_disk(self):
        def little_room():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # its signal, SIGXFSZ, kills by default

        self.assert_fails(1, "out.safetensors", "run", INPUT, "-o", self.out, preexec_fn=little_room)
        picture = self.folder / "mask.svg"
        picture.write_text("old", encoding="utf-8")
        arguments = ("mask", "--q-len", 512, "--kv-len", 512, "--mask", "(q_idx * 7 + kv_idx * 5) // 64 % 3 == 0")
        self.assert_fails(1, "mask.svg", *arguments, "--block", "8x8", "--svg", picture, preexec_fn=little_room)
        self.assertEqual(picture.read_text(encoding="utf-8"), "old")
        self.assertEqual([path.name for path in self.folder.iterdir() if "tmp" in path.name], [])

    def test_full_standard_output(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            for arguments in (("devices",), ("devices", "--json"), ("--help",), ("run", "--help")):
                result = heddle(*arguments, stdout=full, stderr=subprocess.PIPE)
                self.assertEqual(result.returncode, 1, arguments)
                self.assertIn("standard output", result.stderr)


if __name__ == "__main__":
    unittest.main()
