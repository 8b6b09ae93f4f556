#!/usr/bin/env python3
"""Tests the tests: plants one small fault after another in a copy of the library, and expects a test to fail for each.

usage: plant_faults.py [--sample N [--seed SEED] [--sources N]] [--only NAME ...] [--gpu] [--list] [--fit] [--build DIR] [--copies N]

The faults stand in tools/faults/ROOM.json, a room of src/ or kernels/ each: {"name", "file", "find", "replace", "tests"}.
`find` must occur exactly once in the file, so that a fault that no longer fits the code is an error here and not a silent
pass. `tests` is a regular expression for whole names of ctest's tests, with or without their "_test", of which at least
one must fail. The name of a program stands for its parts, too (heddle_test_part). Tests that draw their cases run all of them (HEDDLE_TEST_FULL) if the drawn ones find nothing; "full": true
saves the first attempt, for faults that few cases find. A fault that does not compile does not count as found. Those of
tools/faults/gpu.json need a GPU and are planted with --gpu alone.

--sample plants as many at random; the seed is printed, and --seed or HEDDLE_TEST_SEED repeats the draw. With --sources
the draw passes over faults that would recompile more source files in all, by the dependencies that build/release knows.
The first fault is taken whatever it costs, so some seed draws each; if it exceeds the number alone, it is the only one.
Several copies of the library take faults at the same time; for each fault, only what its tests run is built.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import random
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CPUS = len(os.sched_getaffinity(0))
LATE = 124  # the exit status of what ran past its time
TEST_LINE = re.compile(r"^(?:add_test|set_tests_properties)\(\[=*\[(.*?)\]=*\](.*)\)$", re.MULTILINE)


def run(command, cwd, seconds, added=None):
    # Paths from the copy's root: all copies, and the build that is copied, share what ccache holds.
    environment = {**os.environ, "CCACHE_BASEDIR": str(cwd), "GTEST_FAIL_FAST": "1", **(added or {})}
    try:
        return subprocess.run(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=seconds)
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(command, LATE, stdout=f"ran past {seconds} s: {late}")


def source_files():
    """Those under version control; without git or a checkout, all but what builds and demos leave."""
    try:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
        return listed.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        left = {"build", "demo-out", ".git"}
        return [str(path.relative_to(ROOT)) for top in ROOT.iterdir() if top.name not in left
                for path in (top.rglob("*") if top.is_dir() else [top]) if path.is_file()]


def copy_tree(target):
    """The sources alone, so that the working tree is never touched. What an older copy has beside them goes: the build
    takes all files of some folders."""
    names = {name for name in source_files() if (ROOT / name).is_file()}
    for folder in {name.split("/")[0] for name in names if "/" in name}:
        for old in (target / folder).rglob("*"):
            if old.is_file() and old.relative_to(target).as_posix() not in names:
                old.unlink()
    for name in names:
        source, copy = ROOT / name, target / name
        if copy.exists() and copy.read_bytes() == source.read_bytes():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy)
        copy.touch()


def read_faults():
    """(those that need no GPU, those that do)."""
    rooms = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "tools" / "faults").glob("*.json"))}
    names = [fault["name"] for faults in rooms.values() for fault in faults]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        sys.exit(f"tools/faults has two faults of one name: {', '.join(sorted(twice))}")
    on_gpu = rooms.pop("gpu", [])
    return [fault for faults in rooms.values() for fault in faults], on_gpu


def drawn(faults, count, seed, cost=lambda fault: 0, most=0):
    """As many of them at random, one of each file where there are enough files, the dearest first. Together they cost
    `most` or less; a first one that costs more is drawn alone."""
    generator = random.Random(seed)
    shuffled = generator.sample(faults, len(faults))
    first_of_file = {fault["file"]: fault for fault in reversed(shuffled)}
    firsts = [fault for fault in shuffled if first_of_file[fault["file"]] is fault]
    others = [fault for fault in shuffled if first_of_file[fault["file"]] is not fault]
    taken, left = [], most
    for fault in firsts + others:
        if len(taken) == count or left < 0:
            break
        price = cost(fault)
        if not taken or price <= left:
            taken.append((price, fault))
            left -= price
    return [fault for _, fault in sorted(taken, key=lambda pair: -pair[0])]


class Recompiled:
    """How many source files a fault's tests recompile, by the release build of this checkout; 0 without one."""

    def __init__(self):
        self.folder = ROOT / "build" / "release"
        self.users, self.sources, self.inputs = {}, {}, {}
        self.words_of = words_of_tests(ROOT)
        user = ""
        for line in self.ninja("deps").splitlines():
            if ": #deps" in line:
                user = line.partition(": #deps")[0]
            elif line.startswith("    "):
                path = os.path.normpath(self.folder / line.strip())
                self.users.setdefault(path, set()).add(user)
                if path.endswith(".cc"):
                    self.sources[user] = self.sources.get(user, 0) + 1

    def ninja(self, tool, *targets):
        done = subprocess.run(["ninja", "-C", str(self.folder), "-t", tool, *targets], capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else ""

    def __call__(self, fault):
        users = self.users.get(str(ROOT / fault["file"]), set())
        targets = targets_of(ROOT, self.words_of, named_tests(self.words_of, fault["tests"]))
        if targets and targets not in self.inputs:
            self.inputs[targets] = set(self.ninja("inputs", *targets).splitlines())
        if targets:
            users = users & self.inputs[targets]
        return sum(self.sources.get(user, 0) for user in users)


def build(tree, jobs, targets=()):
    return run(["ninja", "-C", "build/release", f"-j{jobs}", *targets], tree, 1200)


def make_copy(tree):
    """Copies and configures the library; returns what went wrong, or nothing."""
    tree.mkdir(parents=True, exist_ok=True)
    copy_tree(tree)
    configured = run(["cmake", "--preset", "release", "-DHEDDLE_BENCH=OFF"], tree, 300)
    return configured.stdout[-4000:] if configured.returncode != 0 else ""


def words_of_tests(tree):
    """The words of each test's lines in CMake's files, the test's program first."""
    words_of = {}
    for file in sorted((tree / "build" / "release").rglob("CTestTestfile.cmake")):
        for name, words in TEST_LINE.findall(file.read_text()):
            words_of.setdefault(name, []).extend(
                entry.rpartition("=")[2] for text in re.findall(r'"([^"]*)"', words) for entry in text.split(";")
                # Where kernels are cached is nobody's target.
                if "CACHE_DIR" not in entry)
    return words_of


def named_tests(words_of, tests):
    """The names that the expression `tests` has, and the parts of the programs among them."""
    named = {name for name in words_of if re.search(f"^({tests})(_test)?$", name)}
    return named | {name for name, words in words_of.items() if words and pathlib.Path(words[0]).name in named}


def targets_of(tree, words_of, tests):
    """What ninja must build before these tests can run: the files of the build that their commands and environments
    name. A test that names none, or a whole folder, needs everything. Read from CMake's files, since ctest itself keeps
    silent of programs that are not built yet."""
    folder = tree / "build" / "release"
    targets = set()
    for test in tests:
        paths = [path for path in map(pathlib.Path, words_of[test]) if path == folder or folder in path.parents]
        if not paths or any(path.is_dir() for path in paths):
            return ()
        targets.update(str(path.relative_to(folder)) for path in paths)
    return tuple(targets)


def plant(tree, fault, jobs):
    """Returns (verdict, detail); verdict is 'found' when a test failed."""
    path = tree / fault["file"]
    text = path.read_text()
    if text.count(fault["find"]) != 1:
        return "does not fit", f"{fault['file']} holds the searched text {text.count(fault['find'])} times"
    words_of = words_of_tests(tree)
    tests = named_tests(words_of, fault["tests"])
    if not tests:
        return "no such test", fault["tests"]
    path.write_text(text.replace(fault["find"], fault["replace"]))
    try:
        built = build(tree, jobs, targets_of(tree, words_of, tests))
        if built.returncode != 0:
            return "does not compile", built.stdout[-800:]
        for cases in [{"HEDDLE_TEST_FULL": "1"}] if fault.get("full") else [{}, {"HEDDLE_TEST_FULL": "1"}]:
            tested = run(["ctest", "--test-dir", "build/release", "-R", f"^({'|'.join(sorted(tests))})$", f"-j{jobs}",
                          "--stop-on-failure"], tree, 900, cases)
            if tested.returncode == LATE:
                return "too slow", tested.stdout
            if tested.returncode != 0:
                return "found", ""
        return "missed", tested.stdout[-400:]
    finally:
        path.write_text(text)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", nargs="*", help="names of faults to plant")
    arguments.add_argument("--sample", type=int, metavar="N", help="plant as many at random")
    arguments.add_argument("--seed", type=int, default=os.environ.get("HEDDLE_TEST_SEED"), help="of the sample")
    arguments.add_argument("--sources", type=int, metavar="N", help="as many files the sample may recompile")
    arguments.add_argument("--gpu", action="store_true", help="plant those that are found on a GPU only, instead")
    arguments.add_argument("--list", action="store_true", help="print the faults and stop")
    arguments.add_argument("--fit", action="store_true", help="only check that each fault's text is in its file, once")
    arguments.add_argument("--build", default=str(ROOT / "build" / "faults"), help="folder for the copies")
    arguments.add_argument("--copies", type=int, default=min(4, CPUS), help="how many faults are planted at a time")
    given = arguments.parse_args()

    without_gpu, on_gpu = read_faults()
    if given.fit:
        unfit = [fault for fault in without_gpu + on_gpu if (ROOT / fault["file"]).read_text().count(fault["find"]) != 1]
        for fault in unfit:
            print(f"{fault['file']} does not hold the text of '{fault['name']}' exactly once")
        return 1 if unfit else 0

    faults = on_gpu if given.gpu else without_gpu
    if given.only:
        faults = [fault for fault in faults if fault["name"] in given.only]
    if given.sample is not None:
        seed = int(given.seed) if given.seed is not None else random.SystemRandom().randrange(10**6)
        print(f"{given.sample} of {len(faults)} faults, drawn with --seed {seed}", flush=True)
        if given.sources is None:
            faults = drawn(faults, given.sample, seed)
        else:
            faults = drawn(faults, given.sample, seed, Recompiled(), given.sources)

    if given.list:
        for fault in faults:
            print(f"{fault['name']:<40} {fault['file']}  -> {fault['tests']}")
        return 0

    copies = queue.SimpleQueue()
    count = max(1, min(given.copies, len(faults)))
    jobs = max(1, CPUS // count)
    for number in range(count):
        tree = pathlib.Path(given.build).resolve() / str(number)
        trouble = make_copy(tree)
        if trouble:
            print(trouble)
            return 1
        copies.put(tree)

    def plant_in_a_copy(fault):
        tree = copies.get()
        start = time.monotonic()
        try:
            return *plant(tree, fault, jobs), time.monotonic() - start
        finally:
            copies.put(tree)

    unfound = 0
    with concurrent.futures.ThreadPoolExecutor(count) as workers:
        for number, (fault, result) in enumerate(zip(faults, workers.map(plant_in_a_copy, faults)), 1):
            verdict, detail, seconds = result
            unfound += verdict != "found"
            print(f"[{number:2}/{len(faults)}] {fault['name']:<44} {verdict} ({seconds:.0f} s)", flush=True)
            if verdict != "found":
                print(detail)
    print(f"{len(faults) - unfound} of {len(faults)} planted faults were found by a test")
    return 1 if unfound else 0


if __name__ == "__main__":
    sys.exit(main())
