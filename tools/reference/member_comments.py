"""Doxygen's input filter: a comment behind a member, and its lines below, becomes the member's documentation.

    member_comments.py HEADER
"""

import re
import sys

BEHIND = re.compile(r"(\s*[^/\s#][^/]*[;,}]|\s*\w+(?: = [\w-]+)?)(\s+)// (.*)$")


def documented(text):
    lines, column = [], None
    for line in text.split("\n"):
        behind = BEHIND.match(line)
        if behind:
            column = len(behind[1]) + len(behind[2])
            line = f"{behind[1]}{behind[2]}///< {behind[3]}"
        elif column is not None and line[:column].strip() == "" and line[column:].startswith("// "):
            line = line.replace("// ", "///< ", 1)
        else:
            column = None
        lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as header:
        print(documented(header.read()), end="")
