"""heddle aot: archives of kernels from recorded and from written calls, with a stand-in for the compiler."""

import json
import os
import subprocess
import unittest

from program import HEDDLE, INPUT, ProgramTest, heddle

FIGURES = (
    "//log ptxas info    : Compiling entry function 'f' for 'sm_90a'\n"
    "//log ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    "//log ptxas info    : Used 168 registers, used 1 barriers\n//kernels\n"
)


def call(**members):
    tensor = {"dtype": "bf16", "shape": [1, 4, 512, 64]}
    return {"q": tensor, "k": tensor, "v": tensor, **members}


class Aot(ProgramTest):
    def setUp(self):
        super().setUp()
        self.environment = {
            **os.environ,
            "HEDDLE_NVRTC": os.environ["FAKE_NVRTC"],
            "FAKE_NVRTC_LINES": FIGURES,
            "HEDDLE_CACHE_DIR": str(self.folder / "cache"),
        }
        self.environment.pop("HEDDLE_ARCHIVE", None)
        self.archive = self.folder / "kernels.archive"

    def calls(self, *lines):
        file = self.folder / "calls.jsonl"
        file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return file

    def write(self, *lines, gpus="h100", more=()):
        return self.run_json("aot", self.calls(*lines), "-o", self.archive, "--gpus", gpus, *more, env=self.environment)

    def list(self):
        kernels = self.run_json("aot", "--list", self.archive)["kernels"]
        return [(kernel["architecture"], kernel["name"].split()[0]) for kernel in kernels]

    def refusal(self, *lines, gpus="h100", code=2):
        result = heddle("aot", self.calls(*lines), "-o", self.archive, "--gpus", gpus, env=self.environment)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertFalse(self.archive.exists())
        return result.stderr

    def test_recorded_calls(self):
        log = self.folder / "calls.jsonl"
        heddle("explain", INPUT, "--mask", "q_idx >= kv_idx", env={**self.environment, "HEDDLE_LOG": str(log)})
        result = self.run_json("aot", log, "-o", self.archive, "--gpus", "h100,sm_80", env=self.environment)
        self.assertEqual((result["calls"], result["kernels"], result["rejected"]), (1, 2, 0))
        self.assertEqual(result["bytes"], self.archive.stat().st_size)
        self.assertEqual(self.list(), [("sm_80", "forward_mma"), ("sm_90a", "forward_sm90")])
        self.assertIn("forward_sm90 f16 d32", self.run_well("aot", "--list", self.archive))

    def test_an_archive_needs_no_compiler(self):
        log = self.folder / "calls.jsonl"
        mask = ("--mask", "q_idx >= kv_idx")
        heddle("explain", INPUT, *mask, env={**self.environment, "HEDDLE_LOG": str(log)})
        self.run_well("aot", log, "-o", self.archive, "--gpus", "h200", env=self.environment)
        without = {
            **self.environment,
            "HEDDLE_CUDA_DRIVER": os.environ["FAKE_CUDA_DRIVER"],
            "HEDDLE_NVRTC": "/nonexistent",
            "HEDDLE_CACHE_DIR": str(self.folder / "other"),
        }
        run = ("run", INPUT, "-o", self.folder / "o.safetensors", "--backend", "cuda")
        self.assertEqual(heddle(*run, *mask, env=without).returncode, 1)
        result = self.run_json(*run, *mask, env={**without, "HEDDLE_ARCHIVE": str(self.archive)})
        self.assertEqual(result["explanation"]["kernel"]["origin"], "from an archive")
        other = heddle(*run, env={**without, "HEDDLE_ARCHIVE": str(self.archive)})
        self.assertEqual(other.returncode, 1)
        self.assertIn("no archive has the kernel 'forward_sm90 f16 d32", other.stderr)

    def test_written_calls(self):
        result = self.write(
            "# of two passes, and of what stands beside them",
            "",
            call(lse=True, options={"mask_mod": "q_idx - kv_idx < w", "params": {"w": 64}}),
            call(of="backward", lse=True, dq=True, dk=True, dv=True),
            {"of": "merge_states", "parts": ["bf16", "f32"], "o": "bf16"},
            {"of": "append_kv", "k": "bf16", "k_cache": "e4m3", "v_cache": "e4m3", "q_out": "bf16", "rotary": "f32"},
            {"of": "move_rows", "from": "f32", "to": "bf16"},
            {"of": "move_rows", "from": "f32", "to": "f32", "adds": True},
            {"event": "kernel", "name": "no call"},
            call(lse=True, options={"mask_mod": "q_idx - kv_idx < w", "params": {"w": 64}}),
        )
        self.assertEqual(result["calls"], 6)
        names = {name for _, name in self.list()}
        beside = {"merge_states", "append_kv", "move_rows"}
        self.assertLess({"forward_sm90", "backward_sm90", "backward_rows"} | beside, names | {"x"})

    def test_equal_calls_give_equal_bytes(self):
        lines = [
            call(lse=True, options={"mask_mod": "q_idx - kv_idx < w", "params": {"w": 64}}),
            call(of="backward", lse=True, dq=True, dk=True, dv=True),
            call(),
            {"of": "merge_states", "parts": ["bf16", "f32"], "o": "bf16"},
        ]
        archives = []
        for threads, gpus, order, milliseconds in ((1, "h100,sm_80", 1, "1.5"), (4, "sm_80,h100", -1, "21.75")):
            # Caches, folders and processes differ, and the compiler's times.
            log = f"//log ptxas info    : Compile time = {milliseconds} ms\n//kernels"
            environment = {
                **dict(list(self.environment.items())[::order]),
                "HEDDLE_CACHE_DIR": str(self.folder / f"cache of {threads}"),
                "FAKE_NVRTC_LINES": FIGURES.replace("//kernels", log),
            }
            file = self.folder / f"archive of {threads}"
            calls = self.calls(*lines[::order])
            self.run_json("aot", calls, "-o", file, "--gpus", gpus, "--threads", threads, env=environment)
            archives.append(file.read_bytes())
        self.assertGreater(len(archives[0]), 1000)
        self.assertEqual(archives[0], archives[1])

    def test_gpus_are_names_and_architectures(self):
        self.write(call(), gpus="sm_90,sm_86,l4,h100:20")
        self.assertEqual({architecture for architecture, _ in self.list()}, {"sm_90a", "sm_86", "sm_89"})
        self.assertIn("'h100', ", self.refusal_of_gpu("h1000"))
        self.assertIn("and the architectures sm_90a, sm_80", self.refusal_of_gpu("sm_70"))
        self.assertIn("a number of multiprocessors from 1 to 4096", self.refusal_of_gpu("h100:many"))

    def refusal_of_gpu(self, name):
        self.archive.unlink(missing_ok=True)
        return self.refusal(call(), gpus=name)

    def test_wrong_calls_are_named_by_line(self):
        self.assertIn("the calls have none", self.refusal("# nothing"))
        self.assertIn("line 2 of the calls is 'q'; an object of JSON is accepted", self.refusal(call(), "q"))
        self.assertIn("line 1 on h100: the call has no 'k'", self.refusal({"q": call()["q"]}))
        self.assertIn("the call has 'mask_mod', which is none of its members", self.refusal(call(mask_mod="True")))
        self.assertIn("options has 'mask', which is none", self.refusal(call(options={"mask": "True"})))
        self.assertIn("q.shape is 3; a list of whole numbers", self.refusal(call(q={"dtype": "bf16", "shape": 3})))
        self.assertIn("'attention', 'backward', 'merge_states', ", self.refusal(call(of="forward")))
        self.assertIn("has no 'to' that is", self.refusal({"of": "move_rows", "from": "f32"}))
        self.assertIn("'adds' is 1; true", self.refusal({"of": "move_rows", "from": "f32", "to": "f32", "adds": 1}))
        self.assertIn("could not be recorded: too long", self.refusal({"unwritten": "too long"}))
        on_host = {"dtype": "i32", "shape": [1], "on": "host"}
        self.assertIn("so its 'values' are needed", self.refusal(call(options={"kv_lengths": on_host})))
        wrong = {"dtype": "i32", "shape": [1], "on": "host", "values": [1, 2]}
        self.assertIn("a list of 1 numbers is accepted", self.refusal(call(options={"kv_lengths": wrong})))

    def test_calls_that_a_gpu_refuses(self):
        large = {"dtype": "bf16", "shape": [1, 1, 64, 2000]}
        refused = {"q": large, "k": large, "v": large}
        self.assertIn("Nothing was written", self.refusal(call(), refused, code=1))
        result = self.write(call(), refused, more=("--skip-refused",))
        self.assertEqual(len(result["refused"]), 1)
        self.assertTrue(result["refused"][0].startswith("line 2 on h100: no kernel family"), result["refused"])

    def test_without_a_compiler(self):
        self.environment["HEDDLE_NVRTC"] = "/nonexistent"
        self.assertIn("line 1 on h100: NVRTC cannot be used", self.refusal(call(), code=1))

    def test_usage(self):
        calls = self.calls(call())
        for arguments, sentence in (
            ((), "CALLS, -o and --gpus are needed"),
            ((calls, "-o", calls, "--gpus", "h100"), "is the input"),
            (("--list", self.archive, "--gpus", "h100"), "--list stands alone"),
        ):
            result = heddle("aot", *arguments)
            self.assertEqual(result.returncode, 2)
            self.assertIn(sentence, result.stderr)
        self.assertEqual(heddle("aot", "--list", self.archive).returncode, 1)

    def test_the_example_runs(self):
        text = self.run_well("aot", "--help")
        environment = {**self.environment, "PATH": f"{os.path.dirname(HEDDLE)}:{os.environ['PATH']}"}
        for line in text[text.index("Example") :].splitlines()[1:3]:
            result = subprocess.run(
                line, shell=True, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
            )
            self.assertEqual(result.returncode, 0, f"{line}\n{result.stderr}")


if __name__ == "__main__":
    unittest.main()
