#!/usr/bin/env python3
"""Builds the reference: a searchable site with a page for each public name of the Python package and of the C++ and C
headers, the guide and the changelog.

    tools/build_reference.py [--package FOLDER] [OUT]

OUT: where the site goes, build/reference by default; open OUT/html/index.html. FOLDER has the built Python package,
build/release/python by default; only its texts are read. It needs Doxygen (Debian: doxygen), and brings Sphinx from
PyPI into build/reference-tools. Exits with 1 for a public name without a docstring, a warning of Sphinx, or a dead link.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ["sphinx>=8", "furo", "myst-parser", "griffe"]
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


def bring_tools(folder):
    """An environment that has Sphinx; the interpreter in it."""
    python = folder / "bin" / "python"
    asked = [str(python), "-c", "import furo, griffe, myst_parser, sphinx"]
    if not python.exists() or subprocess.run(asked, capture_output=True, check=False).returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES], check=True)
    return python


def copied_document(text, folder):
    """A document of `folder` for the site: what links to files that the site does not have is text alone."""
    def link(match):
        target = match[2].partition("#")[0]
        inside = "://" in target or not target or (folder / target).resolve() in SHOWN
        return match[0] if inside else f"{match[1]} (`{(folder / target).resolve().relative_to(ROOT)}`)"

    return LINK.sub(link, text)


GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
PICTURES = sorted((ROOT / "docs" / "pictures").rglob("*.svg"))
SHOWN = {*GUIDE, *PICTURES}


def write_sources(package, headers, out):
    sys.path.insert(0, str(ROOT / "tools" / "reference"))
    import cpp_pages
    import python_pages

    source = out / "source"
    shutil.rmtree(out, ignore_errors=True)
    (source / "guide").mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "reference" / "conf.py", source)
    version = re.search(r"project\(heddle VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1]
    (source / "version.txt").write_text(version, encoding="utf-8")
    python, _ = python_pages.write_pages(package, source)
    cpp = cpp_pages.write_pages(headers, cpp_pages.run_doxygen(headers, out / "doxygen"), source)
    for path in GUIDE:
        (source / "guide" / path.name).write_text(
            copied_document(path.read_text(encoding="utf-8"), path.parent), encoding="utf-8")
    (source / "changelog.md").write_text(
        copied_document((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), ROOT), encoding="utf-8")
    for path in PICTURES:
        copy = source / path.relative_to(ROOT / "docs")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    lines = [f"heddle {version}", "=" * 40, ""]
    for title, rows in (("Python", python), ("C++ and C", cpp)):
        lines += [title, "-" * 40, "", ".. list-table::", "   :widths: 30 70", ""]
        lines += [f"   * - :doc:`{name} <{page}>`\n     - {what}" for name, page, what in rows]
        lines += ["", ".. toctree::", "   :hidden:", f"   :caption: {title}", "",
                  *(f"   {name} <{page}>" for name, page, _ in rows), ""]
    order = re.findall(r"\]\((\w+\.md)\)", (ROOT / "docs" / "guide" / "README.md").read_text(encoding="utf-8"))
    lines += ["Guide", "-" * 40, "", ".. toctree::", "   :maxdepth: 1", "   :caption: Guide", "", "   guide/README",
              *dict.fromkeys(f"   guide/{name.removesuffix('.md')}" for name in order), "   changelog", ""]
    (source / "index.rst").write_text("\n".join(lines), encoding="utf-8")
    return source


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "build" / "reference")
    parser.add_argument("--package", type=Path, default=ROOT / "build" / "release" / "python")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if shutil.which("doxygen") is None:
        raise SystemExit("doxygen is not installed (Debian: apt-get install doxygen)")
    if not (given.package / "heddle" / "_core.pyi").exists():
        raise SystemExit(f"{given.package} has no heddle/_core.pyi; a build with -DHEDDLE_PYTHON=ON makes it")
    if not given.inside:
        python = bring_tools(ROOT / "build" / "reference-tools")
        again = [str(python), __file__, str(given.out), "--package", str(given.package), "--inside"]
        return subprocess.run(again, check=False).returncode
    source, html = write_sources(given.package, ROOT / "include" / "heddle", given.out.resolve()), given.out / "html"
    built = subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "2", "-b", "html",
                            "-d", str(given.out / "doctrees"), str(source), str(html)], check=False)
    from dead_links import dead_links

    dead = list(dead_links(html))
    print("\n".join(f"{page}: links to {link}, which does not exist" for page, link in dead) or
          f"{html}: {len(list(html.rglob('*.html')))} pages, no dead link")
    return 1 if dead or built.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
