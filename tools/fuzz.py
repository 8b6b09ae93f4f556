#!/usr/bin/env python3
"""Fuzzes what reads bytes from others, by libFuzzer with ASan and UBSan: it needs clang.

usage: tools/fuzz.py [--seconds N] [--only NAME ...] [--keep]

Each target is an entry LLVMFuzzerTestOneInput in tests/. It is linked with the library of build/fuzz (preset fuzz), which is
built first: ASan, UBSan and libFuzzer watch it. A build of the rooms that read texts and files (HEDDLE_FRONT, the default)
has no C interface: targets that call it then take libheddle_c.so of build/release, which is watched from outside alone.
Findings stay in build/fuzz/targets/NAME-crash-*, which the program build/fuzz/targets/NAME repeats; mend them, and keep the
bytes in tests/fuzz_corpora/NAME.found.txt (base64, one a line). Runs begin with the inputs of tests/fuzz_corpora. Inputs that reach new code stay in
build/fuzz/targets/NAME.corpus for later runs; from MOST_INPUTS on, only those that the others do not make superfluous.
--keep writes some of them to tests/fuzz_corpora.
"""

import argparse
import base64
import concurrent.futures
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "fuzz"
OUT = BUILD / "targets"
CORPORA = ROOT / "tests" / "fuzz_corpora"
WATCHED = ["-fsanitize=fuzzer-no-link,address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"]
FLAGS = ["-std=c++20", "-O1", "-g1", f"-I{ROOT}/include", f"-I{ROOT}/src", f"-I{ROOT}/tests"]

MOST_INPUTS = 1000
KEPT_INPUTS, KEPT_BYTES = 300, 400  # for each target: the longest input's bytes are the second


class Target(NamedTuple):
    entry: str
    seeds: "callable"
    c: bool = False  # calls the C interface
    beside: tuple[str, ...] = ()  # sources of rooms that HEDDLE_FRONT leaves out


def texts():
    for file in sorted((ROOT / "tests" / "expr" / "kept_texts").glob("*.txt")):
        for line in file.read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                yield line.split(" => ")[0].encode()


def files():
    """A safetensors and a .npy, behind the byte that picks the format."""
    header = b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"a":"b"}}'
    yield b"\0" + struct.pack("<Q", len(header)) + header + bytes(8)
    for dtype, size in ((b"<f4", 4), (b"<i8", 8), (b"|b1", 1)):
        text = b"{'descr': '" + dtype + b"', 'fortran_order': False, 'shape': (2, 3), }"
        text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
        yield b"\1" + b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + bytes(6 * size)


def changes_of_a_kernel():
    yield b"\0HDLK"
    for place in range(0, 104, 8):
        yield bytes((1, place, 255))


def changes_of_an_archive():
    yield b"\0HEDDLEA\n"
    for place in range(0, 256, 8):
        yield bytes((1, place, 255))


def records():
    yield b'{"problem":"a class of problems","planned":"k","kernels":[{"kernel":"k","seconds":0.001}]}'
    yield b'{"problem":"another","planned":"k","kernels":[]}'


def structs():
    for byte in (0, 1, 7, 11, 59, 200, 255):
        yield bytes([byte]) * 200
    yield bytes(range(256))


def calls():
    for byte in (0, 3, 5, 17, 60, 130, 201):
        yield bytes([byte]) * 400
    yield bytes(range(200)) * 3


def capsules():
    """Of both versions, taken as they are."""
    for version in (0, 1):
        yield bytes([version]) + bytes([1, 1, 0, 3, 2, 2, 0, 2, 12, 0, 3, 4, 0, 4, 1, 0]) + bytes(60)


def sequences_of_calls():
    for mask in range(4):
        yield bytes(byte for i in range(12) for byte in (0, mask << 3 | i % 8, i * 20))
    yield bytes((255, 8, 3, 0, 40, 3, 230, 8, 3, 251, 16, 7))


TARGETS = {
    "texts": Target("tests/expr/fuzz_parse.cc", texts),
    "files": Target("tests/files/fuzz_files.cc", files),
    "kernels": Target("tests/backend/jit/fuzz_kernel_record.cc", changes_of_a_kernel),
    "archives": Target("tests/backend/jit/fuzz_kernel_archive.cc", changes_of_an_archive),
    "tuning": Target("tests/tune/fuzz_tuning_record.cc", records, beside=("src/tune/tuning_record.cc",)),
    "capsules": Target("tests/base/fuzz_dlpack.cc", capsules),
    "plan-cache": Target("tests/engine/fuzz_plan_cache.cc", sequences_of_calls, c=True),
    "calls": Target("tests/capi/fuzz_calls.cc", calls, c=True),
    "structs": Target("tests/capi/fuzz_structs.cc", structs, c=True),
}


def compiler():
    """clang++, the newest."""
    for name in ("clang++-19", "clang++"):
        if shutil.which(name) and subprocess.run([name, "-fsanitize=fuzzer", "-x", "c++", "-", "-o", os.devnull], input=(
                "#include <cstddef>\n#include <cstdint>\n"
                'extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t*, std::size_t) { return 0; }'),
                capture_output=True, text=True, check=False).returncode == 0:
            return name
    sys.exit("no clang++ with libFuzzer is installed (Debian: clang-19, libclang-rt-19-dev)")


def cores():
    return len(os.sched_getaffinity(0))


def watched_library(clang):
    """Builds it, and says whether all rooms are in it."""
    cache = BUILD / "CMakeCache.txt"
    if not cache.exists():
        subprocess.run(["cmake", "--preset", "fuzz", f"-DCMAKE_CXX_COMPILER={clang}", "-DHEDDLE_FRONT=ON"], cwd=ROOT, check=True,
                       stdout=subprocess.DEVNULL)
    whole = "HEDDLE_FRONT:BOOL=OFF" in cache.read_text(encoding="utf-8")
    subprocess.run(["cmake", "--build", str(BUILD), "-j", str(cores()), "--target", "heddle_c" if whole else "heddle"], check=True)
    return whole


def compiled(source, clang):
    target = OUT / "objects" / (source.replace("/", "-") + ".o")
    cache = ["ccache"] if shutil.which("ccache") else []
    subprocess.run([*cache, clang, *FLAGS, *WATCHED, "-c", str(ROOT / source), "-o", str(target)], check=True)
    return str(target)


def libraries(target, whole):
    if not target.c:
        return [str(BUILD / "libheddle.a"), "-lfmt", "-ltbb"]
    folder = BUILD if whole else ROOT / "build" / "release"
    found = folder / "lib" / "libheddle_c.so"
    if not found.exists():
        sys.exit(f"{folder} has no libheddle_c.so; build it first")
    return [str(found), f"-Wl,-rpath,{found.parent}"]


def build(clang, names):
    """The programs, by name."""
    whole = watched_library(clang)
    (OUT / "objects").mkdir(parents=True, exist_ok=True)

    def program(name):
        target = TARGETS[name]
        objects = [compiled(source, clang) for source in (target.entry, *(() if whole else target.beside))]
        subprocess.run([clang, "-fsanitize=fuzzer,address,undefined", *objects, *libraries(target, whole), "-o",
                        str(OUT / name)], check=True)
        return OUT / name

    with concurrent.futures.ThreadPoolExecutor(cores()) as pool:
        return dict(zip(names, pool.map(program, names)))


def shrink(corpus, program):
    """Leaves the inputs that together reach what all of them reach, if there are many. libFuzzer runs each once."""
    if len(list(corpus.iterdir())) <= MOST_INPUTS:
        return
    fewer = corpus.with_suffix(".fewer")
    shutil.rmtree(fewer, ignore_errors=True)
    fewer.mkdir()
    merged = subprocess.run([str(program), "-merge=1", "-verbosity=0", str(fewer), str(corpus)], stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL, check=False)
    if merged.returncode != 0:
        shutil.rmtree(fewer)
        return
    shutil.rmtree(corpus)
    fewer.rename(corpus)


def kept(name):
    """The inputs that tests/fuzz_corpora has for a target: base64, one a line. Those that found something stand in
    NAME.found.txt, which --keep does not write."""
    files = (CORPORA / f"{name}.txt", CORPORA / f"{name}.found.txt")
    lines = [line for file in files if file.exists() for line in file.read_text(encoding="ascii").splitlines()]
    return [base64.b64decode(line) for line in lines]


def keep(name, program):
    """Writes inputs of each length from those that together reach what all of the corpus reaches."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([str(program), "-merge=1", "-verbosity=0", folder, str(OUT / f"{name}.corpus")], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        inputs = {path.read_bytes() for path in Path(folder).iterdir()}
    inputs = sorted((x for x in inputs if 0 < len(x) <= KEPT_BYTES), key=lambda x: (len(x), x))
    count = min(len(inputs), KEPT_INPUTS)
    inputs = [inputs[i * len(inputs) // count] for i in range(count)]
    CORPORA.mkdir(exist_ok=True)
    lines = [base64.b64encode(x).decode("ascii") + "\n" for x in inputs]
    (CORPORA / f"{name}.txt").write_text("".join(lines), encoding="ascii")
    print(f"{name}: {len(inputs)} inputs are kept")


def own_environment(name):
    """Without the user's settings, and with a cache that no other process has."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HEDDLE_")}
    return {**environment, "HEDDLE_CACHE_DIR": str(OUT / f"{name}.cache"), "ASAN_OPTIONS": "detect_leaks=1"}


def run(name, program, seconds):
    """Whether nothing was found."""
    corpus = OUT / f"{name}.corpus"
    corpus.mkdir(exist_ok=True)
    shrink(corpus, program)
    for i, seed in enumerate([*TARGETS[name].seeds(), *kept(name)]):
        (corpus / f"seed-{i}").write_bytes(seed)
    command = [str(program), str(corpus), f"-max_total_time={seconds}", f"-artifact_prefix={OUT}/{name}-", "-timeout=20",
               "-rss_limit_mb=2048", "-verbosity=0", "-print_final_stats=1"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
                          env=own_environment(name))
    if done.returncode != 0:
        print(done.stdout[-6000:])
        print(f"{name}: something was found")
        return False
    numbers = dict(re.findall(r"^stat::(\w+): *(\d+)$", done.stdout, re.MULTILINE))
    count, slowest, memory = (numbers.get(key, "?") for key in (
        "number_of_executed_units", "slowest_unit_time_sec", "peak_rss_mb"))
    print(f"{name}: nothing found in {count} runs, the slowest of {slowest} s, with {memory} MB", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=10, help="for each target")
    parser.add_argument("--only", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--keep", action="store_true", help="then keep the inputs that count in tests/fuzz_corpora")
    arguments = parser.parse_args()
    programs = build(compiler(), arguments.only)
    with concurrent.futures.ThreadPoolExecutor(cores()) as pool:
        passed = list(pool.map(lambda target: run(*target, arguments.seconds), programs.items()))
    if arguments.keep:
        for target in programs.items():
            keep(*target)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
