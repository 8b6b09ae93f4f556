#!/usr/bin/env python3
"""The C interface as a list of lines: what a program that was compiled against heddle/c.h has in its machine code.

    constant NAME VALUE                  an enumerator, or a number that is #defined
    struct NAME SIZE
    field STRUCT.NAME OFFSET SIZE        in the order in which they stand
    function DECLARATION                 without names of arguments, comments and line breaks

interface_0.1.txt holds the list. test_interface.py fails if a line of it no longer holds, or if the interface has a line
that the list lacks:

    tests/capi/interface.py --write      adds what is new to the list; it removes and changes nothing
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADER = HERE.parents[1] / "include" / "heddle" / "c.h"
KEPT = HERE / "interface_0.1.txt"
# Grow as versions are released; all other lines stay for ever. Structs that may grow begin with struct_size.
GROWS = {"HEDDLE_C_VERSION"}
# heddle_block_mask_options.sequence_size says which one a program has.
GROWING_STRUCTS = {"heddle_sequence"}


def without_comments(text):
    return re.sub(r"//[^\n]*", "", text)


def structs_of(text):
    """{name: its fields}."""
    found = {}
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.DOTALL):
        fields = []
        for declaration in filter(None, (part.strip() for part in body.split(";"))):
            pointer = re.match(r"void \(\*(\w+)\)", declaration)
            if pointer:
                fields.append(pointer[1])
                continue
            fields += [re.search(r"(\w+)(?:\[\w+\])?$", one.strip())[1] for one in declaration.split(",")]
        found[name] = fields
    return found


def constants_of(text):
    named = [name for body in re.findall(r"enum \{(.*?)\}", text, re.DOTALL) for name in re.findall(r"(HEDDLE_\w+)", body)]
    return named + re.findall(r"#define (HEDDLE_\w+) \d+$", text, re.MULTILINE)


def functions_of(text):
    """Declarations without the names of their arguments."""
    lines = []
    for kind, declaration in re.findall(r"(?:^(HEDDLE_API)|^typedef(?= \w+ \(\*))([^;{]*);", text, re.MULTILINE):
        result, _, arguments = " ".join(declaration.split()).partition("(" if kind else ")(")
        types = [re.sub(r"\s*\b\w+$", "", one.strip()) if one.strip() != "void" else "void"
                 for one in arguments.rstrip(")").split(",")]
        lines.append(f"function {result.strip()}{'' if kind else ')'}({', '.join(types)})")
    return lines


def program_of(text):
    """A C program that prints the lines but for those of functions."""
    prints = [f'  printf("constant {name} %lld\\n", (long long){name});' for name in constants_of(text)]
    for struct, fields in structs_of(text).items():
        prints.append(f'  printf("struct {struct} %zu\\n", sizeof({struct}));')
        prints += [f'  printf("field {struct}.{field} %zu %zu\\n", offsetof({struct}, {field}), '
                   f"sizeof((({struct}*)0)->{field}));" for field in fields]
    return "\n".join(['#include "heddle/c.h"', "#include <stddef.h>", "#include <stdio.h>", "int main(void) {", *prints,
                      "  return 0;", "}", ""])


def lines_of(header, compiler="cc"):
    """All lines of a header that stands in a folder `heddle`."""
    text = without_comments(header.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "interface.c", Path(folder) / "interface"
        source.write_text(program_of(text), encoding="utf-8")
        subprocess.run([compiler, "-std=c11", f"-I{header.parents[1]}", str(source), "-o", str(program)], check=True)
        printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return printed.splitlines() + functions_of(text)


def key_of(line):
    """What a line is about: the line without its numbers; of a function its name."""
    kind, rest = line.split(" ", 1)
    if kind == "function":
        return kind, re.search(r"(\w+)\)?\(", rest)[1]
    return kind, rest.split()[0]


def may_be(kept, now, growing):
    """Whether a program for which the line `kept` held may run where `now` does."""
    if kept == now:
        return True
    kind, name = key_of(kept)
    if kind == "constant" and name in GROWS or kind == "struct" and name in growing:
        return int(now.split()[-1]) >= int(kept.split()[-1])
    return False


def breaches(kept, now):
    """Sentences about lines of `kept` that `now` breaks."""
    by_key = {key_of(line): line for line in now}
    growing = {name.split(".")[0] for kind, name in map(key_of, kept) if kind == "field" and name.endswith(".struct_size")}
    found = []
    for line in kept:
        other = by_key.get(key_of(line))
        if other is None:
            found.append(f"'{line}' is gone")
        elif not may_be(line, other, growing | GROWING_STRUCTS):
            found.append(f"'{line}' is now '{other}'")
    return found


def added(kept, now):
    known = set(map(key_of, kept))
    return [line for line in now if key_of(line) not in known]


def main(arguments):
    if arguments != ["--write"]:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    now = lines_of(HEADER)
    kept = KEPT.read_text(encoding="utf-8").splitlines() if KEPT.exists() else []
    KEPT.write_text("\n".join([*kept, *added(kept, now)]) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
