"""A C++ compiler that links against a chosen glibc, for this machine or for another: Zig's, from PyPI, which is clang
with libc++ and the symbols of every glibc. libc++ is linked statically."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .steps import environment

ZIG = "ziglang==0.17.1"
ARCHITECTURES = ("x86_64", "aarch64")

CMAKE = """\
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR {architecture})
set(CMAKE_C_COMPILER {folder}/cc)
set(CMAKE_CXX_COMPILER {folder}/c++)
set(CMAKE_AR {folder}/ar)
set(CMAKE_RANLIB {folder}/ranlib)
set(CMAKE_FIND_ROOT_PATH {prefix})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
"""


@dataclass
class Toolchain:
    architecture: str
    glibc: str
    file: Path  # for CMAKE_TOOLCHAIN_FILE
    prefix: Path  # where CMake finds libraries, and where they are installed
    licences: dict[str, Path]  # of what is linked in, by name

    def __str__(self):
        return f"{self.architecture}-glibc{self.glibc}"


def make_toolchain(build, architecture, glibc):
    """Brings Zig if it is missing, and writes compilers and a toolchain file for CMake into the folder `build`."""
    python = environment(sys.executable, build / "wheel-tools-zig", [ZIG])
    place = subprocess.run([python, "-c", "import ziglang; print(ziglang.__path__[0])"], check=True, capture_output=True,
                           text=True).stdout.strip()
    folder = build / f"wheel-toolchain-{architecture}-glibc{glibc}"
    prefix = folder / "prefix"
    prefix.mkdir(parents=True, exist_ok=True)
    target = f"-target {architecture}-linux-gnu.{glibc} "
    for name, arguments in (("cc", target), ("c++", target), ("ar", ""), ("ranlib", "")):
        script = f'#!/bin/sh\nexec {place}/zig {name} {arguments}"$@"\n'
        path = folder / name
        if not path.exists() or path.read_text() != script:  # ccache looks at its time
            path.write_text(script)
            path.chmod(0o755)
    file = folder / "toolchain.cmake"
    file.write_text(CMAKE.format(architecture=architecture, folder=folder, prefix=prefix))
    zig = Path(place)
    licences = {name: path for name, path in (
        ("libc++", zig / "lib/libcxx/LICENSE.TXT"), ("libc++abi", zig / "lib/libcxxabi/LICENSE.TXT"),
        ("libunwind", zig / "lib/libunwind/LICENSE.TXT")) if path.exists()}
    return Toolchain(architecture, glibc, file, prefix, licences)
