"""Help texts and their examples, heddle mask, heddle devices, the progress bar."""

import os
import pty
import re
import select
import subprocess
import time
import unittest
from pathlib import Path
from xml.etree import ElementTree

from program import HEDDLE, INPUT, ProgramTest, heddle, noise, write_npy, write_safetensors

VERBS = ("run", "check", "explain", "tune", "bench", "mask", "devices")


def example_of(help_text):
    """The command that follows the word Example in a help text."""
    after = help_text[help_text.index("Example") :].split("\n", 1)[1]
    lines = []
    for line in after.splitlines():
        lines.append(line.strip().removesuffix("\\"))
        if not line.endswith("\\"):
            break
    return " ".join(lines)


class Help(ProgramTest):
    def test_program(self):
        text = self.run_well("--help")
        for verb in (*VERBS, "aot"):
            self.assertRegex(text, rf"(?m)^  {verb} ")
        self.assertIn("Exit codes", text)
        self.assertRegex(self.run_well("--version"), r"^heddle \d+\.\d+\.\d+\n$")

    def test_each_row_of_the_options_has_a_flag(self):
        rows = Path(__file__).resolve().parents[2] / "include" / "heddle" / "options.def"
        kinds = r"(?m)^HEDDLE_(?:TENSOR|LENGTHS|FLAG|BACKWARD_FLAG)_OPTION\((\w+),"
        names = re.findall(kinds, rows.read_text(encoding="utf-8"))
        self.assertIn("clamp_reads", names)
        for verb in ("run", "check", "explain", "tune"):
            text = self.run_well(verb, "--help")
            for name in names:
                self.assertRegex(text, rf"(?m)^  --{name.replace('_', '-')} ", verb)

    def test_every_verb_has_an_example_that_runs(self):
        environment = {**os.environ, "PATH": f"{os.path.dirname(HEDDLE)}:{os.environ['PATH']}"}
        for verb in VERBS:
            command = example_of(self.run_well(verb, "--help"))
            self.assertTrue(command.startswith(f"heddle {verb}"), command)
            result = subprocess.run(
                command, shell=True, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
            )
            self.assertEqual(result.returncode, 0, f"{command}\n{result.stdout}\n{result.stderr}")
            self.assertTrue(result.stdout.strip(), command)

    def test_lines_fit_a_wide_terminal(self):
        for verb in (*VERBS, "aot"):
            for line in self.run_well(verb, "--help").splitlines():
                self.assertLessEqual(len(line), 120, line)


class Tune(ProgramTest):
    def setUp(self):
        super().setUp()
        self.environment = {**os.environ, "HEDDLE_CACHE_DIR": str(self.folder / "cache")}
        self.environment.pop("HEDDLE_TUNING", None)

    def test_times_are_printed_and_serve_later_plans(self):
        result = self.run_json("tune", INPUT, "--mask", "q_idx >= kv_idx", env=self.environment)
        kernels = [time["kernel"] for time in result["tuned"]["kernels"]]
        self.assertEqual(set(kernels), {f"cpu_forward {rows} x 64" for rows in (12, 24, 48, 96)})
        self.assertEqual(result["tuned"]["kernel"], kernels[0])
        explained = self.run_json("explain", INPUT, "--mask", "q_idx >= kv_idx", env=self.environment)
        self.assertEqual(explained["explanation"]["tuned"]["kernel"], kernels[0])
        self.assertEqual(explained["explanation"]["tuned"]["measured"], "before")
        text = self.run_well("explain", INPUT, "--mask", "q_idx >= kv_idx", env=self.environment)
        self.assertRegex(text, r"(?m)^tuned      [\d.]+ .s, measured before")

    def test_of_gradients(self):
        text = self.run_well("tune", INPUT, "--backward", f"DO={INPUT}:q", env=self.environment)
        self.assertRegex(text, r"cpu_backward \d+ x 64; kept")
        self.assertIn("; the planner's first", text)

    def test_nothing_to_measure(self):
        text = self.run_well("tune", INPUT, "--backend", "reference", env=self.environment)
        self.assertIn("nothing was measured", text)

    def test_times_that_cannot_be_kept_are_an_error(self):
        (self.folder / "cache").write_text("a file")
        self.assert_fails(1, "what was measured is not kept", "tune", INPUT, env=self.environment)


class Devices(ProgramTest):
    def test_text_and_json(self):
        result = self.run_json("devices")
        cpu = next(device for device in result["devices"] if device["kind"] == "cpu")
        self.assertGreater(cpu["memory_bytes"], 1 << 20)
        self.assertIn(cpu["name"], self.run_well("devices"))

    def test_no_driver_is_said_and_no_error(self):
        environment = dict(os.environ, HEDDLE_CUDA_DRIVER="/no/such/libcuda.so.1")
        result = self.run_json("devices", env=environment)
        self.assertEqual([device["kind"] for device in result["devices"]], ["cpu"])
        self.assertIn("HEDDLE_CUDA_DRIVER is '/no/such/libcuda.so.1'", result["cuda_missing"])
        self.assertIn("no CUDA: " + result["cuda_missing"], self.run_well("devices", env=environment))

    def test_a_gpu_without_a_compiler_is_told_so(self):
        environment = dict(os.environ, HEDDLE_CUDA_DRIVER=os.environ["FAKE_CUDA_DRIVER"], HEDDLE_NVRTC="/no/such/file")
        gpu = self.run_json("devices", env=environment)["devices"][1]
        self.assertIn("no kernel compiler (NVRTC", gpu["detail"])
        self.assertIn("HEDDLE_NVRTC is '/no/such/file'", gpu["detail"])

    def test_gpus_are_listed_as_their_driver_tells(self):
        environment = dict(os.environ, HEDDLE_CUDA_DRIVER=os.environ["FAKE_CUDA_DRIVER"], FAKE_CUDA_VERSION="12080")
        result = self.run_json("devices", env=environment)
        self.assertNotIn("cuda_missing", result)
        first, second = (device for device in result["devices"] if device["kind"] == "cuda")
        self.assertEqual((first["name"], second["name"]), ("Fake H200 number 0", "Fake H200 number 1"))
        self.assertEqual(second["memory_bytes"], 1 << 30)
        facts = "compute capability 9.0, 132 SMs, 227 KiB shared memory a block, L2 50 MiB, driver of CUDA 12.8"
        self.assertTrue(second["detail"].startswith(facts), second["detail"])
        self.assertRegex(second["detail"].removeprefix(facts), r"^, NVRTC \d+\.\d+$|^, no kernel compiler \(.+\)$")
        self.assertIn(f"cuda: Fake H200 number 1, {second['detail']}, 1.0 GiB", self.run_well("devices", env=environment))


class Mask(ProgramTest):
    def test_figures(self):
        result = self.run_json("mask", "--q-len", 64, "--kv-len", 64, "--mask", "q_idx >= kv_idx", "--block", "16x16")
        self.assertEqual([result[kind] for kind in ("blocks", "full", "partial", "empty")], [16, 6, 4, 6])
        self.assertEqual(result["block"], [16, 16])
        self.assertEqual(result["mask"], "q_idx >= kv_idx")

    def test_uneven_blocks_heads_and_start(self):
        arguments = ("--q-len", 10, "--kv-len", 30, "--block", "10x10", "--heads", 2, "--q-start", 15)
        result = self.run_json("mask", *arguments, "--mask", "q_idx >= kv_idx")
        self.assertEqual([result[kind] for kind in ("full", "partial", "empty")], [2, 4, 0])
        result = self.run_json("mask", *arguments, "--kv-start", 15, "--mask", "q_idx >= kv_idx")
        self.assertEqual([result[kind] for kind in ("full", "partial", "empty")], [0, 2, 4])

    def test_starts_below_zero(self):
        size = ("--q-len", 30, "--kv-len", 30, "--block", "10x10", "--mask", "q_idx >= kv_idx", "--text")
        self.assertIn("...\n...\n+..\n", self.run_well("mask", *size, "--q-start", -20))
        self.assertIn("###\n###\n###\n", self.run_well("mask", *size, "--kv-start", -(2**31)))

    def test_text(self):
        size = ("--q-len", 48, "--kv-len", 48, "--block", 16)
        text = self.run_well("mask", *size, "--mask", "q_idx >= kv_idx", "--text")
        for row in ("+..", "#+.", "##+"):
            self.assertIn(row, text)

    def test_captures_and_params(self):
        write_npy(self.folder / "doc.npy", "I32", [64], [i // 32 for i in range(64)])
        write_safetensors(self.folder / "doc.safetensors", {"doc": ("I64", [64], [i // 32 for i in range(64)])})
        size = ("--q-len", 64, "--kv-len", 64, "--block", "16x16", "--mask", "ids[q_idx] == ids[kv_idx] and kv_idx < n")
        for file in ("doc.npy", "doc.safetensors:doc"):
            result = self.run_json("mask", *size, "--capture", f"ids={self.folder / file}", "--param", "n=56")
            self.assertEqual([result[kind] for kind in ("full", "partial", "empty")], [6, 2, 8])

    def test_svg(self):
        picture = self.folder / "mask.svg"
        size = (
            "--q-len",
            256,
            "--kv-len",
            256,
            "--block",
            "32x32",
            "--batch",
            2,
            "--entry",
            1,
            "--heads",
            2,
            "--head",
            1,
        )
        self.run_well("mask", *size, "--mask", "q_idx >= kv_idx", "--svg", picture)
        self.assertTrue(ElementTree.parse(picture).getroot().tag.endswith("svg"))

    def draw(self, file, **options):
        size = ("--q-len", 8, "--kv-len", 8)
        return self.run_well("mask", *size, "--mask", "q_idx >= kv_idx", "--svg", file, **options)

    def test_svg_keeps_links_and_modes(self):
        picture, link = self.folder / "mask.svg", self.folder / "link.svg"
        picture.write_text("old", encoding="utf-8")
        picture.chmod(0o640)
        link.symlink_to("mask.svg")
        self.draw(link)
        self.assertTrue(link.is_symlink())
        self.assertTrue(ElementTree.parse(picture).getroot().tag.endswith("svg"))
        self.assertEqual(picture.stat().st_mode & 0o777, 0o640)
        self.assertEqual({path.name for path in self.folder.iterdir()}, {"examples", "mask.svg", "link.svg"})

    def test_svg_into_pipes(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        self.draw(pipe)
        self.assertTrue(pipe.is_fifo())
        self.assertIn(b"</svg>", os.read(reader, 1 << 16))
        # As /dev/stdout is a link, but one that no fault can take away.
        link = self.folder / "stdout"
        link.symlink_to("/proc/self/fd/1")
        self.assertIn("</svg>", self.draw(link))
        self.assertTrue(link.is_symlink())

    def test_svg_on_the_standard_output_is_nothing_but_it(self):
        for file in ("-", "/dev/stdout"):
            size = ("--q-len", 8, "--kv-len", 8)
            result = heddle("mask", *size, "--mask", "q_idx >= kv_idx", "--svg", file)
            self.assertTrue(ElementTree.fromstring(result.stdout).tag.endswith("svg"))
            self.assertIn("blocks of 128x128", result.stderr)
        self.assertFalse((self.folder / "-").exists())


class ProgressBar(ProgramTest):
    def stderr_on_a_terminal(self, *arguments, enough=None):
        """What the program writes to a terminal on stderr, until it ends or `enough` matches; and its exit code."""
        try:
            leader, follower = pty.openpty()
        except OSError as refusal:  # a bare chroot has no /dev/pts
            self.skipTest(f"this system lends no terminal: {refusal}")
        with subprocess.Popen([HEDDLE, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=follower) as process:
            os.close(follower)
            text, deadline = "", time.monotonic() + 120
            while time.monotonic() < deadline:
                if select.select([leader], [], [], 0.1)[0]:
                    try:
                        text += os.read(leader, 4096).decode()
                    except OSError:  # the other end closed
                        break
                if enough and re.search(enough, text):
                    process.kill()
                    break
            process.wait(timeout=10)
        os.close(leader)
        return text, process.returncode

    def test_short_jobs_show_nothing(self):
        text, code = self.stderr_on_a_terminal("run", INPUT, "-o", self.folder / "out.safetensors")
        self.assertEqual((text, code), ("", 0))

    def long_job(self):
        """Takes the reference some seconds."""
        shapes = {"q": [1, 1, 2000, 16], "k": [1, 1, 2000, 16], "v": [1, 1, 2000, 16]}
        write_safetensors(
            self.folder / "in.safetensors", {name: ("F32", shape, noise(*shape)) for name, shape in shapes.items()}
        )
        mods = ["--backend", "reference", "--threads", "1", "--score", "sin(cos(sin(cos(score)))) + score"]
        return ["run", self.folder / "in.safetensors", "-o", self.folder / "out.safetensors", *mods]

    def test_long_jobs_show_a_bar_and_wipe_it(self):
        text, code = self.stderr_on_a_terminal(*self.long_job())
        self.assertEqual(code, 0)
        self.assertRegex(text, r"run \[=* *\] +\d+ %")
        self.assertTrue(text.endswith("\r\x1b[K"), repr(text[-80:]))

    def test_no_bar_without_a_terminal(self):
        self.assertEqual(heddle(*self.long_job()).stderr, "")


if __name__ == "__main__":
    unittest.main()
