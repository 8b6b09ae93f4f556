"""The programs of a commit's compile table: its tests are built and run with a recorder in NVRTC's place."""

import fcntl
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from kernel_code.programs import Program, digest, read_program

RECORDER = Path(__file__).with_name("recording_nvrtc.cc")
# The test programs that ask for kernels, and which of their tests.
TESTS = {
    r"(backend_cuda_)?compile_table_test": "*",
    r"backend_cuda_\w*launch_test": "MergeStates*",
    r"backend_(cuda_\w*mask_rows_text|cuda_emit|gpu)_test": "MaskRowsCompile*",
}


class Trouble(Exception):
    """A sentence for the user."""


def run(command, folder, **options):
    """Its output; Trouble where it fails."""
    result = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                            **options)
    if result.returncode != 0:
        raise Trouble(f"{' '.join(map(str, command))} failed in {folder}:\n{result.stdout[-4000:]}")
    return result.stdout


def commit_of(root, name):
    """The full hash of what a user calls a commit."""
    return run(["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"], root).strip()


def store_of(root):
    """Where results are kept: in the build folder of the repository's first checkout, for all of its worktrees."""
    common = Path(run(["git", "rev-parse", "--path-format=absolute", "--git-common-dir"], root).strip())
    first = common.parent if common.name == ".git" else root
    folder = first / "build" / "compare_kernels"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(path):
    """Of several processes one is here at a time."""
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(tree, jobs, log):
    """The test programs of a tree: [(file, which tests)]."""
    environment = {**os.environ, "CCACHE_BASEDIR": str(tree), "CCACHE_NOHASHDIR": "1"}
    folder = tree / "build" / "release"
    if not (folder / "build.ninja").is_file():
        log(f"configures {folder}")
        run(["cmake", "--preset", "release", "-DHEDDLE_BENCH=OFF"], tree, env=environment)
    # Asked for first, so that the list of targets is that of the tree as it stands.
    run(["ninja", "-C", str(folder), "build.ninja"], tree, env=environment)
    listed = run(["ninja", "-C", str(folder), "-t", "targets", "all"], tree)
    names = {}
    for line in listed.splitlines():
        target = line.partition(":")[0]
        for pattern, tests in TESTS.items():
            if line.endswith(": phony") and re.fullmatch(pattern, target):
                names[target] = tests
    if not any("compile_table" in name for name in names):
        raise Trouble(f"{tree} has no test program of the compile table")
    log(f"builds {', '.join(sorted(names))} in {folder}")
    run(["ninja", "-C", str(folder), f"-j{jobs}", *sorted(names)], tree, env=environment)
    return [(next(path for path in (folder / "tests").rglob(name) if path.is_file()), names[name])
            for name in sorted(names)]


def record(programs, version):
    """All that those test programs ask NVRTC for, in order, as [Program]."""
    with tempfile.TemporaryDirectory(prefix="compare_kernels-") as name:
        folder = Path(name)
        library = folder / "librecorder.so"
        compiler = os.environ.get("CXX", "c++")
        run([compiler, "-std=c++20", "-O1", "-shared", "-fPIC", str(RECORDER), "-o", str(library)], folder)
        found = []
        for number, (program, tests) in enumerate(programs):
            records = folder / str(number)
            records.mkdir()
            environment = {**os.environ, "HEDDLE_NVRTC": str(library), "RECORDED_PROGRAMS": str(records),
                           "RECORDED_VERSION": version, "HEDDLE_REQUIRE_NVRTC": "1", "HEDDLE_TEST_FULL": "1",
                           "HEDDLE_CACHE_DIR": str(folder / "cache")}
            environment.pop("HEDDLE_TEST_REDUCED", None)
            environment.pop("HEDDLE_DUMP", None)
            result = subprocess.run([str(program), f"--gtest_filter={tests}"], cwd=folder, env=environment, text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            if result.returncode not in (0, 1):  # 1: no kernel is accepted, so tests fail
                raise Trouble(f"{program} ended with {result.returncode}:\n{result.stdout[-2000:]}")
            found += [read_program(path.read_bytes()) for path in sorted(records.iterdir())]
        if not found:
            raise Trouble(f"{', '.join(str(path) for path, _ in programs)} asked for no kernel")
        return found


def save(path, programs):
    headers = {digest(text): text for program in programs for _, text in program.headers}
    rows = [[program.name, program.text, program.options, [(name, digest(text)) for name, text in program.headers]]
            for program in programs]
    fresh = path.with_suffix(".new")
    with lzma.open(fresh, "wt", preset=1, encoding="utf-8") as file:
        json.dump({"headers": headers, "programs": rows}, file)
    fresh.rename(path)


def load(path):
    with lzma.open(path, "rt", encoding="utf-8") as file:
        stored = json.load(file)
    return [Program(name, text, tuple(options), tuple((header, stored["headers"][key]) for header, key in headers))
            for name, text, options, headers in stored["programs"]]


def programs_of(root, name, version, jobs, log=lambda line: print(line, file=sys.stderr, flush=True)):
    """The programs of a commit, or of the working tree where the name is "."."""
    if name == ".":
        return record(build(root, jobs, log), version)
    commit, store = commit_of(root, name), store_of(root)
    how = digest(RECORDER.read_text(encoding="utf-8"), repr(TESTS), version)[:8]
    path = store / f"{commit}-{how}.json.xz"
    with locked(store / "lock"):
        if not path.is_file():
            tree = store / "tree"
            if tree.exists():
                shutil.rmtree(tree)
            run(["git", "worktree", "prune"], root)
            run(["git", "worktree", "add", "--detach", "--force", str(tree), commit], root)
            try:
                save(path, record(build(tree, jobs, log), version))
            finally:
                run(["git", "worktree", "remove", "--force", str(tree)], root)
    return load(path)
