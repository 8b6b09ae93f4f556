#!/usr/bin/env python3
"""Fuzzes what reads bytes from others, by libFuzzer with ASan and UBSan: it needs clang.

usage: tools/fuzz.py [--seconds N] [--only NAME ...] [--build DIR]

Each target is an entry LLVMFuzzerTestOneInput in tests/, built with the rooms that it watches. The C structs are an exception:
they go through libheddle_c.so of DIR (build/release), which is watched from outside alone. What is found stays in
build/fuzz/NAME-crash-*, which the program build/fuzz/NAME repeats; mend it, and keep the bytes in a test. Inputs that reach
new code stay in build/fuzz/NAME.corpus for later runs; from MOST_INPUTS on, only those that the others do not make
superfluous.
"""

import argparse
import concurrent.futures
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "fuzz"
WATCHED = ["-fsanitize=fuzzer-no-link,address,undefined", "-fno-sanitize-recover=undefined"]
FLAGS = ["-std=c++20", "-O1", "-g1", f"-I{ROOT}/include", f"-I{ROOT}/src", f"-I{ROOT}/tests"]


MOST_INPUTS = 1000


class Target(NamedTuple):
    entry: str
    sources: tuple[str, ...]  # patterns
    seeds: "callable"
    library: bool = False  # linked with libheddle_c.so instead


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
    "texts": Target("tests/expr/fuzz_parse.cc", ("src/expr/*.cc", "src/base/*.cc"), texts),
    "files": Target("tests/files/fuzz_files.cc", ("src/files/*.cc", "src/base/*.cc"), files),
    "kernels": Target("tests/backend/jit/fuzz_kernel_record.cc", ("src/backend/jit/kernel_record.cc", "src/base/*.cc"),
                      changes_of_a_kernel),
    "archives": Target("tests/backend/jit/fuzz_kernel_archive.cc",
                       ("src/backend/jit/kernel_archive.cc", "src/backend/jit/kernel_record.cc", "src/base/*.cc"),
                       changes_of_an_archive),
    "tuning": Target("tests/tune/fuzz_tuning_record.cc", ("src/tune/tuning_record.cc", "src/base/*.cc"), records),
    "capsules": Target("tests/base/fuzz_dlpack.cc", ("src/base/*.cc",), capsules),
    "plan-cache": Target("tests/engine/fuzz_plan_cache.cc", (), sequences_of_calls, library=True),
    "calls": Target("tests/capi/fuzz_calls.cc", (), calls, library=True),
    "structs": Target("tests/capi/fuzz_structs.cc", (), structs, library=True),
}


def compiler():
    """clang++, the newest, behind ccache where it is there."""
    for name in ("clang++-19", "clang++"):
        if shutil.which(name) and subprocess.run([name, "-fsanitize=fuzzer", "-x", "c++", "-", "-o", os.devnull], input=(
                "#include <cstddef>\n#include <cstdint>\n"
                'extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t*, std::size_t) { return 0; }'),
                capture_output=True, text=True, check=False).returncode == 0:
            return name
    sys.exit("no clang++ with libFuzzer is installed (Debian: clang, libclang-rt-dev)")


def compiled(source, clang):
    target = OUT / "objects" / (str(source.relative_to(ROOT)).replace("/", "-") + ".o")
    cache = ["ccache"] if shutil.which("ccache") else []
    subprocess.run([*cache, clang, *FLAGS, *WATCHED, "-c", str(source), "-o", str(target)], check=True)
    return target


def build(clang, names, folder):
    """The programs, by name."""
    (OUT / "objects").mkdir(parents=True, exist_ok=True)
    wanted = {name: [ROOT / TARGETS[name].entry,
                     *(path for pattern in TARGETS[name].sources for path in sorted(ROOT.glob(pattern)))] for name in names}
    sources = {path for paths in wanted.values() for path in paths}
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = dict(zip(sources, pool.map(lambda path: compiled(path, clang), sources)))
    programs = {}
    for name, paths in wanted.items():
        programs[name] = OUT / name
        libraries = ["-lfmt", "-ltbb"]
        if TARGETS[name].library:
            found = sorted(folder.rglob("libheddle_c.so"))
            if not found:
                sys.exit(f"{folder} has no libheddle_c.so; build it first")
            libraries = [str(found[0]), f"-Wl,-rpath,{found[0].parent}"]
        subprocess.run([clang, "-fsanitize=fuzzer,address,undefined", *(str(objects[path]) for path in paths), *libraries,
                        "-o", str(programs[name])], check=True)
    return programs


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


def run(name, program, seconds):
    """Whether nothing was found."""
    corpus = OUT / f"{name}.corpus"
    corpus.mkdir(exist_ok=True)
    shrink(corpus, program)
    for i, seed in enumerate(TARGETS[name].seeds()):
        (corpus / f"seed-{i}").write_bytes(seed)
    command = [str(program), str(corpus), f"-max_total_time={seconds}", f"-artifact_prefix={OUT}/{name}-", "-timeout=20",
               "-rss_limit_mb=2048", "-verbosity=0", "-print_final_stats=1"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
                          env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1"})
    if done.returncode != 0:
        print(done.stdout[-6000:])
        print(f"{name}: something was found")
        return False
    executed = [line.split()[-1] for line in done.stdout.splitlines() if "number_of_executed_units" in line]
    print(f"{name}: nothing found in {executed[0] if executed else '?'} runs")
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=10, help="for each target")
    parser.add_argument("--only", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="where libheddle_c.so is")
    arguments = parser.parse_args()
    programs = build(compiler(), arguments.only, arguments.build)
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        passed = list(pool.map(lambda target: run(*target, arguments.seconds), programs.items()))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
