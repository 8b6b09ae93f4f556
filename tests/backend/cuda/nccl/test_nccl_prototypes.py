#!/usr/bin/env python3
"""Compares our prototypes and constants of NCCL with its header, where there is one.

    test_nccl_prototypes.py SOURCE_ROOT [NCCL_H]
"""

import re
import sys
from pathlib import Path

HEADERS = "/usr/local/cuda/include/nccl.h", "/usr/local/include/nccl.h", "/usr/include/nccl.h"
OURS = {"std::size_t": "size_t", "CUstream": "cudaStream_t"}


def without_comments(text):
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.S))


def parameter_types(parameters):
    """The types of a parameter list, without names: ["ncclComm_t*", "size_t"]."""
    types = []
    for parameter in filter(None, (part.strip() for part in parameters.split(","))):
        words = re.findall(r"[\w:]+|\*", parameter)
        if words == ["void"]:
            continue
        if words[-1] != "*" and len(words) > 1:
            words.pop()  # the name
        plain = " ".join(OURS.get(word, word) for word in words if word not in ("*", "const"))
        types.append(("const " if "const" in words else "") + plain + "*" * words.count("*"))
    return types


def differences(root, header):
    theirs = without_comments(header.read_text(encoding="latin-1"))
    folder = root / "src/backend/cuda/nccl"
    table = without_comments((folder / "nccl_functions.def").read_text())
    rows = re.findall(r"HEDDLE_NCCL_FUNCTION\((\w+),\s*\((.*?)\)\)", table)
    assert len(rows) == table.count("HEDDLE_NCCL_FUNCTION"), "a row of nccl_functions.def was not understood"
    for member, ours in rows:
        declared = re.search(rf"ncclResult_t\s+nccl{member}\((.*?)\);", theirs, flags=re.S)
        if declared is None:
            yield f"nccl{member}: not in {header}"
        elif parameter_types(ours) != parameter_types(declared.group(1)):
            yield f"nccl{member}: ({ours}) here, ({declared.group(1)}) in {header}"
    abi = (folder / "nccl.h").read_text()
    for name, value in re.findall(r"constexpr nccl\w+_t (\w+) = (\d+);", abi):
        if not re.search(rf"\b{name}\s*=\s*{value}\b", theirs):
            yield f"{name} is {value} here and not in {header}"
    config = re.search(r"typedef struct ncclConfig_v\d+\s*\{(.*?)\}", theirs, flags=re.S).group(1)
    members = re.findall(r"(\w+);", config)
    if members[:4] != ["size", "magic", "version", "blocking"]:
        yield f"ncclConfig_t begins with {members[:4]} in {header}"
    if not re.search(r"0xcafebeef", theirs):
        yield f"the magic number of ncclConfig_t is another one in {header}"


def main(arguments):
    root = Path(arguments[0])
    header = next((Path(name) for name in arguments[1:] or HEADERS if Path(name).is_file()), None)
    if header is None:
        print("skipped: there is no nccl.h")
        return 77
    found = list(differences(root, header))
    for sentence in found:
        print(sentence)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
