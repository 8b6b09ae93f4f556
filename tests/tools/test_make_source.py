"""tools/make_source.py packs a commit into a tarball, which configures without git, and with HEDDLE_TEST_FULL=1 builds,
installs and serves a program."""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "make_source.py"
VERSION = os.environ["HEDDLE_VERSION"]
FULL = os.environ.get("HEDDLE_TEST_FULL", "0") != "0"
# A git that nobody may call: it leaves a mark.
NO_GIT = '#!/bin/sh\necho "$@" >>"$(dirname "$0")/called"\nexit 128\n'


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)


def has_git():
    return run("git", "-C", ROOT, "rev-parse", "--verify", "HEAD").returncode == 0


@unittest.skipUnless(has_git(), "no git, or no commit: this tree is itself from a tarball")
class MakeSource(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = Path(kept.name)

    def run_well(self, *command, **options):
        result = run(*command, **options)
        self.assertEqual(result.returncode, 0, f"{command}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}")
        return result.stdout

    def pack(self, *arguments, into="out"):
        path = Path(self.run_well(sys.executable, TOOL, "--into", self.folder / into, *arguments).strip())
        self.assertEqual(path, self.folder / into / f"heddle-{VERSION}.tar.gz")
        return path

    def test_the_same_bytes_each_time(self):
        first, second = self.pack(), self.pack("HEAD", into="again")
        self.assertEqual(first.read_bytes(), second.read_bytes())
        written = first.with_name(first.name + ".sha256").read_text()
        self.assertEqual(written, f"{hashlib.sha256(first.read_bytes()).hexdigest()}  {first.name}\n")
        self.assertEqual(len(list(first.parent.iterdir())), 2)  # nothing half is left

    def test_what_is_no_commit_is_refused(self):
        for wrong in ("no-such-commit", "HEAD:README.md"):
            result = run(sys.executable, TOOL, "--into", self.folder / "out", wrong)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(wrong, result.stderr)
        self.assertFalse((self.folder / "out").exists())

    def test_it_builds_without_git(self):
        with tarfile.open(self.pack()) as tarball:
            names = tarball.getnames()
            tarball.extractall(self.folder)
        tree = self.folder / f"heddle-{VERSION}"
        self.assertEqual({name.split("/")[0] for name in names}, {tree.name})
        committed = self.run_well("git", "-C", ROOT, "ls-tree", "-r", "--name-only", "HEAD").split("\n")[:-1]
        self.assertEqual({str(p.relative_to(tree)) for p in tree.rglob("*") if not p.is_dir()}, set(committed))

        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "git").write_text(NO_GIT)
        (tools / "git").chmod(0o755)
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "CCACHE_BASEDIR": str(tree)}
        build, prefix = self.folder / "build", self.folder / "prefix"
        options = ["TESTS", "BENCH", "EXAMPLES"]
        self.run_well("cmake", "-G", "Ninja", "-S", tree, "-B", build, *(f"-DHEDDLE_{name}=OFF" for name in options),
                      "-DHEDDLE_FAMILIES=cpu;reference", "-DHEDDLE_SIMD=native", env=environment)
        if FULL:
            self.run_well("cmake", "--build", build, env=environment)
            self.run_well("cmake", "--install", build, "--prefix", prefix, env=environment)
            self.assertEqual(self.run_well(prefix / "bin" / "heddle", "--version"), f"heddle {VERSION}\n")
            consumer = self.folder / "consumer"
            self.run_well("cmake", "-G", "Ninja", "-S", tree / "tests/install/consumer", "-B", consumer,
                          f"-DCMAKE_PREFIX_PATH={prefix}", f"-DHEDDLE_VERSION={VERSION}", env=environment)
            self.run_well("cmake", "--build", consumer, env=environment)
            self.run_well(consumer / "consumer")
        else:  # the headers and the package of CMake need no build
            (build / "libheddle.a").touch()
            (build / "lib").mkdir(exist_ok=True)
            for name in ("libheddle_c.so", "libheddle_c.so.1"):
                (build / "lib" / name).touch()
            self.run_well("cmake", "--install", build, "--prefix", prefix, "--component", "dev", env=environment)
            installed = {path.name for path in (prefix / "include/heddle").iterdir()}
            self.assertEqual(installed, {path.name for path in (ROOT / "include/heddle").glob("*.h")})
        self.assertFalse((tools / "called").exists(), "the build called git")


if __name__ == "__main__":
    unittest.main()
