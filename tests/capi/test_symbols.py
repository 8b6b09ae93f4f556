"""libheddle_c.so shows the functions of heddle/c.h, all of them and nothing else, and needs few libraries."""

import os
import re
import subprocess
import unittest
from pathlib import Path

LIBRARY = os.environ["HEDDLE_LIBRARY"]
HEADER = Path(__file__).resolve().parents[2] / "include" / "heddle" / "c.h"
SANITIZED = os.environ.get("HEDDLE_SANITIZE", "") != ""


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Symbols(unittest.TestCase):
    def test_exports_are_the_headers_functions(self):
        exported = {line.split()[-1] for line in output_of("nm", "-D", "--defined-only", LIBRARY).splitlines()}
        declared = set(re.findall(r"^HEDDLE_API[^;]*?\b(heddle_\w+)\(", HEADER.read_text(), re.MULTILINE))
        self.assertGreater(len(declared), 10)
        self.assertEqual(exported, declared)

    @unittest.skipIf(SANITIZED, "a sanitizer's build needs its run time too")
    def test_needed_libraries(self):
        needed = set(re.findall(r"\(NEEDED\).*\[(\w+?)\.so", output_of("readelf", "-d", LIBRARY).replace("-", "_")))
        system = {"libc", "libm", "libstdc++", "libgcc_s", "ld_linux_x86_64", "libpthread", "libdl"}
        self.assertLessEqual(needed - system, {"libfmt", "libtbb", "libhwy", "libsleef", "libheddle"})

    def test_finds_libraries_beside_it(self):
        folders = re.search(r"RUNPATH.*\[(.*)\]", output_of("readelf", "-d", LIBRARY)).group(1).split(":")
        self.assertIn("$ORIGIN", folders)


if __name__ == "__main__":
    unittest.main()
