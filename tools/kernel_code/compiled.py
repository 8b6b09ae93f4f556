"""Machine code of programs, compiled once: kept by what the compiler reads, so that a comment costs nothing."""

import multiprocessing
import os
import sys
import time
import zlib
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from kernel_code.cubin import code_of
from kernel_code.nvrtc import Nvrtc

_worker = {}


def _start(library, niceness):
    os.nice(niceness)
    _worker["nvrtc"] = Nvrtc(library)


def _compile(kernel):
    return kernel.key, *_worker["nvrtc"].compile(kernel.name, kernel.text, kernel.options)


class Compiled:
    """`folder`: where machine code is kept, of each build of NVRTC; `library`: its file, or name on the loader's path."""

    def __init__(self, folder, library, jobs, niceness=0):
        self.folder = Path(folder) / Nvrtc(library).identity
        self.folder.mkdir(parents=True, exist_ok=True)
        self.library, self.jobs, self.niceness = library, jobs, niceness

    def _path(self, key):
        return self.folder / key[:2] / key

    def has(self, kernel):
        return self._path(kernel.key).is_file()

    def code(self, kernel):
        log, _, cubin = zlib.decompress(self._path(kernel.key).read_bytes()).partition(b"\0")
        return code_of(cubin, log.decode())

    def keep(self, key, cubin, log):
        path = self._path(key)
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(zlib.compress(log.encode() + b"\0" + cubin, 1))
        fresh.rename(path)

    def compile(self, kernels):
        """Those that are not kept yet; how many that were."""
        missing = [kernel for kernel in {kernel.key: kernel for kernel in kernels}.values() if not self.has(kernel)]
        if not missing:
            return 0
        start = told = time.monotonic()
        with ProcessPoolExecutor(self.jobs, multiprocessing.get_context("spawn"), _start,
                                 (self.library, self.niceness)) as pool:
            for done, result in enumerate(as_completed([pool.submit(_compile, kernel) for kernel in missing]), 1):
                self.keep(*result.result())
                now = time.monotonic()
                if now - told > 20:
                    told = now
                    rest = (now - start) / done * (len(missing) - done)
                    print(f"compiled {done} of {len(missing)}, about {rest:.0f} s more", file=sys.stderr, flush=True)
        return len(missing)
