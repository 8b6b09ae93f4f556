#!/usr/bin/env python3
"""Packs a commit as a source tarball, which builds without git.

    tools/make_source.py [COMMIT] [--into FOLDER]      default: HEAD, into build/source

Writes heddle-VERSION.tar.gz, whose files stand in the folder heddle-VERSION, and heddle-VERSION.tar.gz.sha256 for
`sha256sum --check`. VERSION is that of CMakeLists.txt at the commit. Only committed files are packed. The same commit
gives the same bytes with the same git and zlib. Prints the path of the tarball.
"""

import argparse
import gzip
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def git(*arguments):
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    if result.returncode:
        sys.exit(f"git {' '.join(arguments)}: {result.stderr.decode(errors='replace').strip()}")
    return result.stdout


def version_at(commit):
    text = git("show", f"{commit}:CMakeLists.txt").decode()
    found = re.search(r"^project\(heddle VERSION ([0-9.]+)", text, re.MULTILINE)
    if not found:
        sys.exit(f"CMakeLists.txt of {commit} has no line 'project(heddle VERSION ...)'")
    return found[1]


def replace(path, content):
    """Writes the file under another name, then renames it, so that no half of it is ever seen."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_bytes(content)
    beside.replace(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default="HEAD", metavar="COMMIT")
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "source", metavar="FOLDER")
    given = parser.parse_args()
    commit = git("rev-parse", "--verify", "--end-of-options", f"{given.commit}^{{commit}}").decode().strip()
    name = f"heddle-{version_at(commit)}"
    # Without a time of its own, so that the bytes depend on the commit alone.
    packed = gzip.compress(git("archive", "--format=tar", f"--prefix={name}/", commit), mtime=0)
    given.into.mkdir(parents=True, exist_ok=True)
    tarball = given.into / f"{name}.tar.gz"
    replace(tarball, packed)
    replace(given.into / f"{name}.tar.gz.sha256", f"{hashlib.sha256(packed).hexdigest()}  {tarball.name}\n".encode())
    print(tarball)


if __name__ == "__main__":
    main()
