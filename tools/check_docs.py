#!/usr/bin/env python3
"""Checks that whatever a document names exists: files, links, tests, programs and HEDDLE_* variables. And that the
comments of the library name files that exist.

    tools/check_docs.py [ROOT]

Reads README.md, CONTRIBUTING.md, CHANGELOG.md, SECURITY.md and docs/**/*.md. docs/notes/history tells of the past and is left out.
Of the comments below include/, src/ and kernels/ it looks at names with a folder, such as fragments/softmax.cuh.
Prints a line for each name that does not exist, and exits with 1 if there is one.

| Name | Where it is looked for |
|---|---|
| `src/plan/plan.h`, `tests/mask/`, `src/shared/mask_*` | the tree; `*` stands for any text, {a,b} for either |
| `plan/plan.h`, `launch/sequences.*`, `consumer.cuh` | the end of a path in the tree |
| [text](../guide/gpu.md) | the tree, from the document's folder |
| `GpuGrid.SinksAndMasks`, `GpuBackwardMma.*` | the TEST macros below tests/ |
| `test_options` `test_a_mod_inside_a_function` | functions and files of Python tests |
| `gpu_grid_test`, `bench_jit_times` | CMakeLists.txt, and sources below tests/ and bench/ |
| HEDDLE_CACHE_DIR | every file that is no document |

A name with an upper-case X or ROOM or NAME as a word stands for any name.
"""

import fnmatch
import itertools
import re
import sys
from pathlib import Path

ROOTS = ("src", "kernels", "tests", "tools", "include", "docs", "bench", "examples", "cmake", "python")
INSIDE = tuple(root + "/" for root in ROOTS)
SOURCE = set(".h .cc .cuh .cu .c .def .inc .py .sh .cmake .txt .json .toml .hip .ipynb".split())
# Files of other projects, and files that a user makes.
ELSEWHERE = set("""
    cuda.h cuda_runtime.h mma.h setup.py backward.md backward_mods.md
    """.split())

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
PLACEHOLDER = re.compile(r"(?<![a-z])(X|ROOM|NAME|FILE|DIR|N)(?![a-z])|\.\.\.|<|>")
PATH = re.compile(r"(?<![\w/.~$-])((?:%s)/[\w./{},*+-]*[\w/*}])" % "|".join(ROOTS))
FILE = re.compile(r"(?<![\w/.~$:*-])((?:[\w-]+/)*\w[\w-]*(?:\{[\w,]+\})?\.(?:h|cc|cuh|def|py|cmake))(?![\w/(])")
STEM = re.compile(r"^((?:[\w-]+/)+[\w-]*\*?\.\*)$|^([a-z]\w+\.\*)$")
CASE = re.compile(r"(?<![\w.:/])([A-Z]\w*[a-z]\w*\*?|\*\w+\*?)\.([A-Z*][\w*]*)(?![\w(])")
PYTHON_TEST = re.compile(r"(?<![\w/.])(test_\w+)(?![\w/*])")
PROGRAM = re.compile(r"(?<![\w/.*])((?:bench_\w+)|(?:[a-z]\w*_test))(?![\w/.*(])")
COMMENT = re.compile(r"(?:^|\s)//(.*)")
VARIABLE = re.compile(r"(?<![\w-])(HEDDLE_[A-Z0-9_]*[A-Z0-9])(?![\w*])")


def braces(name):
    """`a{b,c}` as `ab` and `ac`."""
    match = re.search(r"\{([^{}]*)\}", name)
    if match is None:
        return [name]
    return list(itertools.chain.from_iterable(
        braces(name[:match.start()] + part.strip() + name[match.end():]) for part in match[1].split(",")))


class Tree:
    """The names that exist."""

    def __init__(self, root):
        self.root = root
        self.files, self.folders = set(), set()
        for top in ROOTS:
            for path in (root / top).rglob("*"):
                if "__pycache__" not in path.parts:
                    name = path.relative_to(root).as_posix()
                    (self.folders if path.is_dir() else self.files).add(name)
            self.folders.add(top)
        self.files |= {path.name for path in root.iterdir() if path.is_file()}
        self.cases, self.variables, programs = set(), set(), []
        self.python_tests = set()
        for name in sorted(self.files):
            if Path(name).suffix not in SOURCE:
                continue
            text = (root / name).read_text(encoding="utf-8", errors="replace")
            self.variables |= set(re.findall(r"HEDDLE_[A-Z0-9_]+", text))
            if name.startswith("tests/") and name.endswith((".cc", ".h")):
                self.cases |= {".".join(case) for case in re.findall(r"\bTEST(?:_F|_P)?\((\w+), (\w+)\)", text)}
            if "test" in name and name.endswith(".py"):
                self.python_tests |= set(re.findall(r"def (test_\w+)", text)) | {Path(name).stem}
            if name.startswith(("tests/", "bench/")) and name.endswith("CMakeLists.txt"):
                programs.append(text)
        self.programs = set(re.findall(r"[\w$-]+", " ".join(programs)))
        self.stems = {Path(name).stem for name in self.files}
        # `backend_${part}_test` in a CMakeLists.txt stands for any part.
        variable = re.compile(r"\$\{\w+\}")
        words = re.findall(r"[\w${}]*\$\{\w+\}[\w${}]*", " ".join(programs))
        self.made = [variable.sub("*", word) for word in words if variable.sub("", word).strip("_")]

    def has_path(self, name):
        name = name.rstrip("/")
        if "*" in name:
            return any(fnmatch.fnmatchcase(known, name) for known in self.files | self.folders)
        return name in self.files or name in self.folders

    def has_end(self, name):
        """Some file has this name, or a path that ends with it."""
        if name in ELSEWHERE:
            return True
        return any(fnmatch.fnmatchcase(known, name) or fnmatch.fnmatchcase(known, "*/" + name) for known in self.files)

    def has_case(self, pattern):
        return any(fnmatch.fnmatchcase(case, pattern) for case in self.cases)

    def has_program(self, name):
        return name in self.programs or name in self.stems or any(fnmatch.fnmatchcase(name, made) for made in self.made)


def missing(tree, document, text):
    """The names in `text` that do not exist: (place in the text, sentence)."""
    for match in LINK.finditer(FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)):
        if "://" not in match[1] and not (document.parent / match[1]).exists():
            yield match.start(1), f"links to {match[1]}"
    for match in VARIABLE.finditer(text):
        if match[1] not in tree.variables:
            yield match.start(1), f"names the variable {match[1]}"
    for match in PATH.finditer(text):
        if not PLACEHOLDER.search(match[1]):
            for name in braces(match[1].rstrip(".,")):
                if not tree.has_path(name) and not tree.has_end(name):
                    yield match.start(1), f"names {name}"
    for span in SPAN.finditer(text):
        code, start = span[1], span.start(1)
        for match in FILE.finditer(code):
            if not PLACEHOLDER.search(match[1]) and not match[1].startswith(INSIDE):
                for name in braces(match[1]):
                    if not tree.has_end(name):
                        yield start + match.start(1), f"names {name}"
        if STEM.match(code) and not PLACEHOLDER.search(code) and not code.startswith(INSIDE) and not tree.has_end(code):
            yield start, f"names {code}"
        for match in CASE.finditer(code):
            if not PLACEHOLDER.search(match[0]) and not tree.has_case(match[0]):
                yield start + match.start(), f"names the test {match[0]}"
        for match in PYTHON_TEST.finditer(code):
            if match[1] not in tree.python_tests and match[1] not in tree.stems and not PLACEHOLDER.search(match[1]):
                yield start + match.start(1), f"names the test {match[1]}"
        for match in PROGRAM.finditer(code):
            if not tree.has_program(match[1]) and not PLACEHOLDER.search(match[1]):
                yield start + match.start(1), f"names the program {match[1]}"


def documents(root):
    """The documents, without those of the past."""
    found = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md") if (root / name).exists()]
    found += sorted(path for path in (root / "docs").rglob("*.md") if "history" not in path.relative_to(root).parts)
    return found


def missing_in_comments(tree, text):
    """The files with a folder that comments name and that do not exist: (place in the text, sentence)."""
    for comment in COMMENT.finditer(text):
        for match in FILE.finditer(comment[1]):
            name = match[1]
            if "/" in name and not PLACEHOLDER.search(name) and not all(tree.has_end(each) for each in braces(name)):
                yield comment.start(1) + match.start(1), f"names {name}"


def complaints(root):
    """A line for each name that does not exist."""
    tree = Tree(root)
    for name in sorted(tree.files):
        if name.startswith(("include/", "src/", "kernels/")) and Path(name).suffix in {".h", ".cc", ".cuh", ".def"}:
            text = (root / name).read_text(encoding="utf-8")
            for offset, sentence in missing_in_comments(tree, text):
                yield f"{name}:{text.count(chr(10), 0, offset) + 1}: {sentence}, which does not exist"
    for document in documents(root):
        text = document.read_text(encoding="utf-8")
        for offset, sentence in sorted(set(missing(tree, document, text))):
            line = text.count("\n", 0, offset) + 1
            yield f"{document.relative_to(root)}:{line}: {sentence}, which does not exist"


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]).resolve()
    lines = list(complaints(root))
    print("\n".join(lines) if lines else "documents: every name exists")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
