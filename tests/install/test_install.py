"""An installed heddle is found by find_package, and a program builds and runs against it."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

BUILD = Path(os.environ["HEDDLE_BUILD"])
VERSION = os.environ["HEDDLE_VERSION"]
HERE = Path(__file__).resolve().parent


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


class Install(unittest.TestCase):
    def run_well(self, *command):
        result = run(*command)
        self.assertEqual(result.returncode, 0, f"{command}\n{result.stdout}\n{result.stderr}")
        return result.stdout

    def build_consumer(self, source, build, prefix):
        flags = os.environ["HEDDLE_CXX_FLAGS"]
        self.run_well(
            "cmake",
            "-G",
            "Ninja",
            "-S",
            HERE / source,
            "-B",
            build,
            f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DHEDDLE_VERSION={VERSION}",
            f"-DCMAKE_CXX_FLAGS={flags}",
            f"-DCMAKE_C_FLAGS={flags}",
        )
        self.run_well("cmake", "--build", build)
        return build / "consumer"

    def test_consumers(self):
        with tempfile.TemporaryDirectory() as folder:
            prefix = Path(folder) / "prefix"
            self.run_well("cmake", "--install", BUILD, "--prefix", prefix)
            for source in ("consumer", "consumer_c"):
                self.run_well(self.build_consumer(source, Path(folder) / source, prefix))
            self.assertEqual(self.run_well(prefix / "bin" / "heddle", "--version"), f"heddle {VERSION}\n")
            installed = {path.name for path in (prefix / "include" / "heddle").iterdir()}
            self.assertLessEqual({"heddle.h", "c.h"}, installed)
            self.assertTrue(all(name.endswith(".h") for name in installed), installed)


if __name__ == "__main__":
    unittest.main()
