#!/usr/bin/env python3
"""Compares the machine code of all kernels of the compile table at two commits. No GPU is needed.

    tools/compare_kernels.py A B        A, B: commits, or . for the working tree
    tools/compare_kernels.py A B --sample 60
    tools/compare_kernels.py A B --only 'd128 .*masked'
    tools/compare_kernels.py A          compiles A's kernels ahead

Prints which kernels differ, and by what; which there are at one side only. Exits with 0 where those compared are all the
same, with 1 where not, with 2 where it could not compare. Machine code is kept in build/compare_kernels, so a kernel
whose text has changed in comments only is not compiled again. The whole table takes about 25 minutes of processor time.
"""

import argparse
import os
import re
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from bring_nvrtc import brought, on_this_machine
from kernel_code.compiled import Compiled
from kernel_code.cubin import difference, moved_parameters
from kernel_code.nvrtc import Nvrtc
from kernel_code.programs import OneText, kernel_of, paired, sampled, unique
from kernel_code.table import Trouble, programs_of, store_of

ROOT = Path(__file__).resolve().parent.parent


def arguments_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B", nargs="?")
    parser.add_argument("--only", metavar="REGEX", help="kernels whose name holds a match")
    parser.add_argument("--sample", metavar="N", type=int, help="as many kernels, by chance but always the same")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="compilers at a time")
    parser.add_argument("--nice", type=int, default=0, help="how far the compilers stand back behind others, to 19")
    return parser.parse_args(words)


def nvrtc_of(root):
    path = os.environ.get("HEDDLE_NVRTC") or on_this_machine() or brought(root / "build" / "nvrtc")
    if path is None:
        raise Trouble("NVRTC was not found; `python3 tools/bring_nvrtc.py build/nvrtc` brings it")
    return path


def kernels_of(name, version, given):
    texts = OneText()
    kernels = unique([kernel_of(program, texts) for program in programs_of(ROOT, name, version, given.jobs)])
    return [kernel for kernel in kernels if given.only is None or re.search(given.only, kernel.name)]


def compare(given):
    """0 where all are the same, else 1."""
    start, library = time.monotonic(), nvrtc_of(ROOT)
    version = Nvrtc(library).version
    compiled = Compiled(store_of(ROOT), library, given.jobs, given.nice)
    if given.b is None:
        kernels = sampled(kernels_of(given.a, version, given), given.sample)
        count = compiled.compile(kernels)
        print(f"{given.a}, NVRTC {version}: {len(kernels)} kernels, {count} compiled in {time.monotonic() - start:.0f} s")
        return 0
    all_pairs, only_a, only_b = paired(*(kernels_of(name, version, given) for name in (given.a, given.b)))
    chosen = {kernel.key for kernel in sampled([a for a, _ in all_pairs], given.sample)}
    pairs = [pair for pair in all_pairs if pair[0].key in chosen]
    other_text = [pair for pair in pairs if pair[0].key != pair[1].key]
    count = compiled.compile([kernel for pair in other_text for kernel in pair])
    differing = moved = 0
    for a, b in other_text:
        one, other = compiled.code(a), compiled.code(b)
        words = difference(one, other)
        if words and moved_parameters(one, other):
            moved += 1
        elif words:
            differing += 1
            print(f"{a.name}: {words}")
    for name, alone in ((given.a, only_a), (given.b, only_b)):
        for kernel in alone:
            print(f"{kernel.name}: only at {name}")
    same = "all the same" if differing == 0 else f"{differing} differ"
    if moved > 0:
        same += f" ({moved} of them but for where parameters are)" if differing == 0 else f", {moved} in where parameters are alone"
    print(f"{given.a} and {given.b}, NVRTC {version}: {len(pairs)} of {len(all_pairs)} kernels compared, {same}; "
          f"{len(pairs) - len(other_text)} have the same text, {len(only_a)} are only at {given.a}, {len(only_b)} only at "
          f"{given.b}; {count} compiled in {time.monotonic() - start:.0f} s")
    return 0 if differing == 0 and not only_a and not only_b else 1


def main(words):
    given = arguments_of(words)
    try:
        return compare(given)
    except (Trouble, BrokenProcessPool, OSError) as trouble:
        print(trouble, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
