"""The pages of docs/guide as programs.

A page's C++ blocks, in order, are the body of one function. Its shell blocks, in order, are one script. Its Python blocks
are one program, which python/tests/test_pages.py runs. A C block is a whole program. The `text` block that follows a block is what that block prints; a block without one prints nothing.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide"
RUN = {"cpp", "c", "sh", "python"}
SEPARATOR = "\x1e"  # printed after each block, so that each block's output is known

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Example:
    language: str
    code: str
    line: int  # of its first line in the page
    expected: str = ""


def examples(text):
    """The blocks that run, each with what it prints. Raises ValueError for a block that the tests would pass over."""
    found = []
    previous = None  # the language of the block before
    for match in FENCE.finditer(text):
        language, code = match.groups()
        line = text.count("\n", 0, match.start(2)) + 1
        if language in RUN:
            found.append(Example(language, code, line))
        elif language != "text":
            raise ValueError(f"line {line}: a block of '{language}'; {sorted(RUN)} and text are accepted")
        elif previous not in RUN:
            raise ValueError(f"line {line}: a text block that follows no block which prints")
        else:
            found[-1].expected = code
        previous = language
    return found


def pages():
    """The examples of each page, by the page's name."""
    return {path.stem: examples(path.read_text(encoding="utf-8")) for path in sorted(GUIDE.glob("*.md"))}


def cpp_program():
    """One program with a function for each page; its argument is the page's name."""
    includes, functions, names = [], [], []
    for page, blocks in pages().items():
        body = []
        for block in (block for block in blocks if block.language == "cpp"):
            includes += re.findall(r"^#include .*$", block.code, re.MULTILINE)
            code = re.sub(r"^#include .*$", "", block.code, flags=re.MULTILINE)
            body.append(f'#line {block.line} "docs/guide/{page}.md"\n{code}std::cout << "\\x1e";\n')
        if body:
            names.append(page)
            functions.append(f"void page_{page}() {{\n{''.join(body)}}}\n")
    calls = "".join(f'    if (page == "{name}") page_{name}();\n' for name in names)
    return f"""// Made by tests/docs/guide.py from docs/guide.
#include <exception>
#include <iostream>
#include <string>
{chr(10).join(sorted(set(includes)))}

namespace {{
{"".join(functions)}}}

int main(int, char** arguments) {{
  const std::string page = arguments[1];
  try {{
{calls}  }} catch (const std::exception& error) {{
    std::cout << error.what() << "\\n";
    return 1;
  }}
  return 0;
}}
"""


def c_program():
    (program,) = (block for blocks in pages().values() for block in blocks if block.language == "c")
    return f'#line {program.line} "docs/guide/c.md"\n{program.code}'


if __name__ == "__main__":
    Path(sys.argv[2]).write_text({"cpp": cpp_program, "c": c_program}[sys.argv[1]](), encoding="utf-8")
