"""The libraries that wheels carry: Debian's sources of fmt, Highway and oneTBB, compiled statically by a toolchain, and
Debian's libsleef.so, which needs no more than glibc 2.17. Their sources and packages are apt's, with lists of its own: the
machine's stay as they are."""

import os
import shutil
import subprocess
from pathlib import Path

from .steps import run

# Source package, and what CMake is told.
SOURCES = {
    "fmtlib": ["-DFMT_TEST=OFF", "-DFMT_DOC=OFF"],
    "nlohmann-json3": ["-DJSON_BuildTests=OFF"],
    "cli11": ["-DCLI11_BUILD_TESTS=OFF", "-DCLI11_BUILD_EXAMPLES=OFF", "-DCLI11_BUILD_DOCS=OFF"],
    "highway": ["-DHWY_ENABLE_TESTS=OFF", "-DHWY_ENABLE_EXAMPLES=OFF", "-DHWY_ENABLE_CONTRIB=OFF", "-DBUILD_TESTING=OFF"],
    "onetbb": ["-DTBB_TEST=OFF", "-DTBB_STRICT=OFF", "-DTBBMALLOC_BUILD=OFF"],
}
SUITE = "bookworm"
DEBIANS_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


class Apt:
    """apt-get with lists and settings of its own, for one architecture."""

    def __init__(self, folder, architecture):
        self.folder = folder
        (folder / "lists/partial").mkdir(parents=True, exist_ok=True)
        (folder / "cache/archives/partial").mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        (folder / "sources.list").write_text("".join(
            f"{kind} [signed-by={KEYS}] http://deb.debian.org/debian {SUITE} main\n" for kind in ("deb", "deb-src")))
        settings = {"Dir::Etc::SourceList": folder / "sources.list", "Dir::Etc::SourceParts": "/dev/null",
                    "Dir::State::Lists": folder / "lists", "Dir::State::status": folder / "status",
                    "Dir::Cache": folder / "cache", "APT::Architecture": DEBIANS_NAMES[architecture],
                    "APT::Architectures": DEBIANS_NAMES[architecture], "APT::Sandbox::User": "root"}
        self.command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
        run(*self.command, "update")

    def source(self, package):
        """The folder of an unpacked source package."""
        target = self.folder / package
        if not target.exists():
            run(*self.command, "source", "--download-only", "--only-source", package, cwd=self.folder)
            (description,) = self.folder.glob(f"{package}_*.dsc")
            unpacked = self.folder / f"{package}.{os.getpid()}"
            run("dpkg-source", "--no-check", "-x", description, unpacked, stdout=subprocess.DEVNULL)
            unpacked.rename(target)
        return target

    def binary(self, package):
        """The folder into which a package is unpacked."""
        target = self.folder / f"{package}-unpacked"
        if not target.exists():
            run(*self.command, "download", package, cwd=self.folder)
            (archive,) = self.folder.glob(f"{package}_*.deb")
            run("dpkg-deb", "-x", archive, target)
        return target


    def machine(self, packages):
        """A folder with these packages and all that they depend on, unpacked: what a program of theirs needs to run."""
        target = self.folder / "machine"
        done = target / "made"  # has the packages' names
        if not done.exists() or done.read_text() != " ".join(packages):
            archives = self.folder / "cache/archives"
            for old in archives.glob("*.deb"):
                old.unlink()
            run(*self.command, "install", "--yes", "--download-only", "--no-install-recommends", *packages)
            target.mkdir(exist_ok=True)
            for archive in sorted(archives.glob("*.deb")):
                run("dpkg-deb", "-x", archive, target)
            done.write_text(" ".join(packages))
        return target


def build_libraries(toolchain, folder):
    """Builds them into the toolchain's prefix, once; their licences, by name."""
    apt = Apt(folder, toolchain.architecture)
    licences = {}
    for package, options in SOURCES.items():
        source = apt.source(package)
        licences[package] = source / "debian/copyright"
        made = toolchain.prefix / f"{package}.made"
        if made.exists():
            continue
        build = folder / f"build-{package}-{toolchain}"
        run("cmake", "-G", "Ninja", "-S", source, "-B", build, f"-DCMAKE_TOOLCHAIN_FILE={toolchain.file}",
            "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_INSTALL_PREFIX={toolchain.prefix}", "-DCMAKE_INSTALL_LIBDIR=lib",
            "-DBUILD_SHARED_LIBS=OFF", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON", "-DCMAKE_CXX_VISIBILITY_PRESET=hidden",
            *options, stdout=subprocess.DEVNULL)
        run("cmake", "--build", build)
        run("cmake", "--install", build, stdout=subprocess.DEVNULL)
        made.touch()

    sleef = apt.binary("libsleef3")
    licences["sleef"] = sleef / "usr/share/doc/libsleef3/copyright"
    (library,) = sleef.glob("usr/lib/*/libsleef.so.3")
    for name in ("libsleef.so", "libsleef.so.3"):  # one to link with, one that auditwheel finds
        shutil.copyfile(library, toolchain.prefix / "lib" / name)
    return licences


def copy_headers(python, toolchain):
    """A folder with this Python's headers; Debian keeps pyconfig.h apart, in the folder of the machine's architecture."""
    asked = ("import sysconfig; print(sysconfig.get_path('include')); "
             "print(sysconfig.get_config_var('MULTIARCH') or '')")
    include, machine = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.split("\n")[:2]
    include = Path(include)
    target = toolchain.prefix / "include" / include.name
    shutil.copytree(include, target, dirs_exist_ok=True)
    apart = include.parent / machine / include.name / "pyconfig.h"
    if machine and apart.exists():
        shutil.copyfile(apart, target / "pyconfig.h")
    return target
