"""Draws of faults: what they recompile is bounded, and some seed draws each fault."""

import importlib.util
import os
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("plant_faults", ROOT / "tools" / "plant_faults.py")
plant_faults = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(plant_faults)

# A ninja that knows two objects, of one and of two sources; the program of the test links the second.
NINJA = """#!/bin/sh
case "$4" in
  deps) printf 'a.o: #deps 2, deps mtime 1 (VALID)\\n    ../../src/a.cc\\n    ../../src/x.h\\n\\n'
        printf 'b.o: #deps 3, deps mtime 1 (VALID)\\n    ../../src/b.cc\\n    ../../src/c.cc\\n    ../../src/x.h\\n' ;;
  inputs) printf 'b.o\\n' ;;
esac
"""


class Draws(unittest.TestCase):
    faults = [{"name": str(i), "file": f"file {i // 2}"} for i in range(20)]

    @staticmethod
    def cost(fault):
        return int(fault["name"]) * 3

    def names(self, seed, most):
        drawn = plant_faults.drawn(self.faults, 4, seed, self.cost, most)
        return [fault["name"] for fault in drawn]

    def test_cost_as_much_as_allowed_or_stand_alone(self):
        for seed in range(200):
            names = self.names(seed, 30)
            costs = [3 * int(name) for name in names]
            self.assertTrue(sum(costs) <= 30 or len(names) == 1, names)
            self.assertEqual(costs, sorted(costs, reverse=True))

    def test_reach_each_fault(self):
        reached = {name for seed in range(400) for name in self.names(seed, 30)}
        self.assertEqual(len(reached), len(self.faults))

    def test_without_costs_are_of_different_files(self):
        for seed in range(50):
            self.assertEqual(len({fault["file"] for fault in plant_faults.drawn(self.faults, 4, seed)}), 4)

    def test_of_none_are_none(self):
        self.assertEqual(plant_faults.drawn([], 4, 1), [])


class Costs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        root = Path(self.folder.name).resolve()
        build = root / "build" / "release"
        build.mkdir(parents=True)
        program = build / "b_test"
        build.joinpath("CTestTestfile.cmake").write_text(f'add_test([=[b_test]=] "{program}")\n')
        ninja = root / "ninja"
        ninja.write_text(NINJA)
        ninja.chmod(0o755)
        before = plant_faults.ROOT, os.environ["PATH"]
        plant_faults.ROOT, os.environ["PATH"] = root, f"{root}{os.pathsep}{before[1]}"

        def restore():
            plant_faults.ROOT, os.environ["PATH"] = before

        self.addCleanup(restore)

    def test_are_the_sources_that_the_tests_program_takes(self):
        cost = plant_faults.Recompiled()
        self.assertEqual(cost({"file": "src/x.h", "tests": "b"}), 2)
        self.assertEqual(cost({"file": "src/a.cc", "tests": "b"}), 0)
        self.assertEqual(cost({"file": "src/b.cc", "tests": "b"}), 2)


if __name__ == "__main__":
    unittest.main()
