"""tools/bring_nvrtc.py takes what is there, else downloads once, keeps nothing half, and says what to do when it cannot.
pip is a stand-in here: nothing is downloaded."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "bring_nvrtc.py"

# Runs the tool as on a machine without NVRTC.
WITHOUT_NVRTC = f"""
import runpy, sys
tool = runpy.run_path({str(TOOL)!r})
tool["main"].__globals__["on_this_machine"] = lambda: None
sys.exit(tool["main"](sys.argv[1:]))
"""

PIP = """
import os, sys, zipfile
arguments = sys.argv[1:]
print("pip", *arguments)
if os.environ.get("PIP_FAILS"):
    sys.exit(1)
with zipfile.ZipFile(os.path.join(arguments[arguments.index("--dest") + 1], "a.whl"), "w") as wheel:
    for name in ("cu13/lib/libnvrtc.so.13", "cu13/lib/libnvrtc.alt.so.13", "cu13/lib/libnvrtc-builtins.so.13.0",
                 "cu13/include/nvrtc.h"):
        wheel.writestr("nvidia/" + name, "x")
"""


class BringNvrtc(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name).resolve()
        (self.root / "python" / "pip").mkdir(parents=True)
        (self.root / "python" / "pip" / "__init__.py").write_text("")
        (self.root / "python" / "pip" / "__main__.py").write_text(PIP)
        self.folder = self.root / "build" / "nvrtc"
        self.library = self.folder / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"

    def bring(self, *arguments, **environment):
        variables = {name: value for name, value in os.environ.items() if name != "HEDDLE_NVRTC"}
        variables.update(environment, PYTHONPATH=str(self.root / "python"))
        command = [sys.executable, "-c", WITHOUT_NVRTC, *arguments, str(self.folder)]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)

    def test_downloads_once(self):
        first = self.bring()
        self.assertEqual((first.returncode, first.stdout), (0, f"{self.library}\n"), first.stderr)
        self.assertIn("pip download", first.stderr)
        self.assertIn("nvidia-cuda-nvrtc==13.0.88", first.stderr)
        kept = sorted(path.name for path in self.folder.rglob("*") if path.is_file())
        self.assertEqual(kept, ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"])
        again = self.bring()
        self.assertEqual((again.stdout, again.stderr), (f"{self.library}\n", ""))
        self.assertEqual(self.bring("--find").stdout, f"{self.library}\n")

    def test_finding_downloads_nothing(self):
        result = self.bring("--find")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (3, "", ""))

    def test_a_failure_says_what_to_do_and_leaves_nothing(self):
        result = self.bring(PIP_FAILS="1")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("need NVRTC", result.stderr)
        self.assertIn("HEDDLE_NVRTC may name a libnvrtc.so of CUDA 12.3 or newer", result.stderr)
        self.assertFalse(self.folder.exists())
        self.assertEqual(self.bring().returncode, 0, "and the next run is none the worse")

    def test_what_the_user_names_is_taken(self):
        self.assertEqual(self.bring(HEDDLE_NVRTC="/my/libnvrtc.so.12").stdout, "/my/libnvrtc.so.12\n")

    def test_wrong_arguments_print_the_usage(self):
        for arguments in ([], ["--find"], ["a", "b"], ["--other"]):
            result = subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 2)
            self.assertIn("tools/bring_nvrtc.py [--find] FOLDER", result.stderr)


if __name__ == "__main__":
    unittest.main()
