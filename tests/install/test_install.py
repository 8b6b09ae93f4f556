"""An installed heddle is found by find_package, and a program builds and runs against it."""

import os
import re
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

    def build_consumer(self, source, build, prefix, *definitions):
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
            *definitions,
        )
        self.run_well("cmake", "--build", build)
        return build / "consumer"

    def found(self, folder, prefix, arguments):
        """What a project says that asks for the package with these arguments, and how CMake ended."""
        source = Path(folder) / "finds"
        source.mkdir(exist_ok=True)
        (source / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(finds LANGUAGES CXX)\n"
            f"find_package(heddle {VERSION} {arguments})\n"
            "foreach(target heddle::heddle heddle::heddle_c)\n  if(TARGET ${target})\n"
            '    message(STATUS "there is ${target}")\n  endif()\nendforeach()\n'
            'message(STATUS "found ${heddle_FOUND}, c ${heddle_c_FOUND}")\n'
        )
        result = run("cmake", "-G", "Ninja", "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={prefix}", "--fresh")
        return " ".join((result.stdout + result.stderr).split()), result.returncode

    def test_consumers(self):
        with tempfile.TemporaryDirectory() as folder:
            prefix = Path(folder) / "prefix"
            self.run_well("cmake", "--install", BUILD, "--prefix", prefix)
            # The C interface needs none of the libraries inside.
            without = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("fmt", "TBB", "nlohmann_json", "hwy")]
            self.run_well(self.build_consumer("consumer", Path(folder) / "consumer", prefix))
            self.run_well(self.build_consumer("consumer_c", Path(folder) / "consumer_c", prefix, *without))
            self.assertEqual(self.run_well(prefix / "bin" / "heddle", "--version"), f"heddle {VERSION}\n")
            installed = {path.name for path in (prefix / "include" / "heddle").iterdir()}
            self.assertLessEqual({"heddle.h", "c.h"}, installed)
            self.assertTrue(all(name.endswith(".h") for name in installed), installed)

            # Components of find_package.
            for arguments, targets in (
                ("REQUIRED", {"heddle::heddle", "heddle::heddle_c"}),
                ("REQUIRED COMPONENTS cxx", {"heddle::heddle"}),
                ("REQUIRED COMPONENTS c", {"heddle::heddle_c"}),
                ("REQUIRED COMPONENTS c OPTIONAL_COMPONENTS fortran", {"heddle::heddle_c"}),
            ):
                with self.subTest(arguments):
                    text, status = self.found(folder, prefix, arguments)
                    self.assertEqual(status, 0, text)
                    self.assertEqual(set(re.findall(r"there is (\S+)", text)), targets)
            text, status = self.found(folder, prefix, "REQUIRED COMPONENTS fortran")
            self.assertNotEqual(status, 0)
            self.assertIn("heddle has no component 'fortran'; cxx and c are accepted", text)
            (targets,) = prefix.glob("lib*/**/heddle-c-targets.cmake")
            targets.unlink()
            text, status = self.found(folder, prefix, "REQUIRED COMPONENTS c")
            self.assertNotEqual(status, 0)
            self.assertIn("the component 'c' of heddle is not installed", text)
            text, status = self.found(folder, prefix, "REQUIRED")
            self.assertEqual((status, set(re.findall(r"there is (\S+)", text))), (0, {"heddle::heddle"}), text)

    def test_parts_of_an_install(self):
        """`--component runtime` is what programs run with, `--component dev` what they are built with."""
        with tempfile.TemporaryDirectory() as folder:
            names = {}
            for component in ("runtime", "dev"):
                prefix = Path(folder) / component
                self.run_well("cmake", "--install", BUILD, "--prefix", prefix, "--component", component)
                names[component] = {path.name for path in prefix.rglob("*") if not path.is_dir()}
            self.assertLessEqual({"heddle", "libheddle_c.so.1"}, names["runtime"])
            self.assertFalse([name for name in names["runtime"] if name.endswith((".h", ".a", ".cmake"))])
            self.assertLessEqual({"heddle.h", "c.h", "libheddle_c.so", "heddle-config.cmake"}, names["dev"])
            self.assertFalse(names["runtime"] & names["dev"])


if __name__ == "__main__":
    unittest.main()
