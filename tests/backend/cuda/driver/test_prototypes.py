#!/usr/bin/env python3
"""Compares our prototypes and constants of the CUDA driver with a toolkit's cuda.h, where there is one.

    test_prototypes.py SOURCE_ROOT [CUDA_H]
"""

import re
import sys
from pathlib import Path

# Our name of a type -> cuda.h's, where they differ. Enumerations are four bytes in both.
SAME = {
    "std::size_t": "size_t",
    "std::uint32_t": "cuuint32_t",
    "std::uint64_t": "cuuint64_t",
    "CUstream_flags": "unsigned int",
    "CUevent_flags": "unsigned int",
    "CUstreamCaptureMode": "CUstreamCaptureMode",
}
# Our enumerators are the tails of cuda.h's, in small letters.
PREFIX = {
    "CUdevice_attribute": "CU_DEVICE_ATTRIBUTE_",
    "CUfunction_attribute": "CU_FUNC_ATTRIBUTE_",
    "CUpointer_attribute": "CU_POINTER_ATTRIBUTE_",
    "CUmemorytype": "CU_MEMORYTYPE_",
    "CUstreamCaptureStatus": "CU_STREAM_CAPTURE_STATUS_",
    "CUstreamCaptureMode": "CU_STREAM_CAPTURE_MODE_",
    "CUlaunchAttributeID": "CU_LAUNCH_ATTRIBUTE_",
    "CUtensorMapDataType": "CU_TENSOR_MAP_DATA_TYPE_",
    "CUtensorMapInterleave": "CU_TENSOR_MAP_INTERLEAVE_",
    "CUtensorMapSwizzle": "CU_TENSOR_MAP_SWIZZLE_",
    "CUtensorMapL2promotion": "CU_TENSOR_MAP_L2_PROMOTION_",
}
RENAMED = {
    "CU_TENSOR_MAP_SWIZZLE_BYTES32": "CU_TENSOR_MAP_SWIZZLE_32B",
    "CU_TENSOR_MAP_SWIZZLE_BYTES64": "CU_TENSOR_MAP_SWIZZLE_64B",
    "CU_TENSOR_MAP_SWIZZLE_BYTES128": "CU_TENSOR_MAP_SWIZZLE_128B",
    "CU_TENSOR_MAP_L2_PROMOTION_BYTES64": "CU_TENSOR_MAP_L2_PROMOTION_L2_64B",
    "CU_TENSOR_MAP_L2_PROMOTION_BYTES128": "CU_TENSOR_MAP_L2_PROMOTION_L2_128B",
    "CU_TENSOR_MAP_L2_PROMOTION_BYTES256": "CU_TENSOR_MAP_L2_PROMOTION_L2_256B",
    "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL_": "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL",
    "CU_MEMORYTYPE_UNKNOWN": None,  # 0, which cuda.h leaves without a name
}


def without_comments(text):
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.S))


def parameter_types(parameters, same):
    """The types of a parameter list, without names: ["CUdeviceptr*", "size_t"]."""
    types = []
    for parameter in filter(None, (part.strip() for part in parameters.split(","))):
        words = re.findall(r"[\w:]+|\*", parameter)
        if words == ["void"]:
            continue
        if words[-1] != "*" and len(words) > 1:
            words.pop()  # the name
        plain = " ".join(word for word in words if word not in ("*", "const"))
        types.append(("const " if "const" in words else "") + same.get(plain, plain) + "*" * words.count("*"))
    return types


def enumerators(text):
    """NAME -> value of every enumeration of cuda.h that counts or gives numbers."""
    values = {}
    for body in re.findall(r"typedef enum \w+\s*\{(.*?)\}", text, flags=re.S):
        following = 0
        for entry in filter(None, (part.strip() for part in body.split(","))):
            name, _, value = (piece.strip() for piece in entry.partition("="))
            try:
                following = int(value, 0) if value else following
            except ValueError:
                following = values.get(value, following)
            values[name] = following
            following += 1
    return values


def differences(root, header):
    cuda = without_comments(header.read_text(encoding="latin-1"))
    folder = root / "src/backend/cuda/driver"
    table = without_comments((folder / "driver_functions.def").read_text())
    rows = re.findall(r"HEDDLE_DRIVER_FUNCTION\((\w+),\s*(\w+),\s*\((.*?)\)\)", table, flags=re.S)
    assert len(rows) == table.count("HEDDLE_DRIVER_FUNCTION"), "a row of driver_functions.def was not understood"
    for member, symbol, ours in rows:
        # For a function with versions, the header declares the plain name and lets a macro choose the newest symbol.
        # Our cuEventElapsedTime is the oldest, on purpose; both have the same parameters.
        macro = re.search(rf"#define (cu\w+)\s+(?:__CUDA_API_\w+\()?{symbol}\b", cuda)
        declared = macro.group(1) if macro else symbol
        theirs = re.search(rf"CUresult CUDAAPI {declared}\((.*?)\);", cuda, flags=re.S)
        if theirs is None:
            yield f"{symbol}: not in {header}"
            continue
        if not macro and symbol != "cuEventElapsedTime" and re.search(rf"#define {symbol}\s+\w+", cuda):
            yield f"{symbol}: a newer version is meant by {header}"
        if declared != "cu" + member:
            yield f"{symbol}: is called {member} here, {declared} in {header}"
        ours, theirs = parameter_types(ours, SAME), parameter_types(theirs.group(1), {})
        if ours != theirs:
            yield f"{symbol}: ({', '.join(ours)}) here, ({', '.join(theirs)}) in {header}"

    values = enumerators(cuda)
    abi = without_comments((folder / "cuda_abi.h").read_text())
    compared = 0
    for name, body in re.findall(r"enum class (\w+) : [\w ]+\{(.*?)\}", abi, flags=re.S):
        if name not in PREFIX:
            continue
        for entry in filter(None, (part.strip() for part in body.split(","))):
            label, value = (piece.strip() for piece in entry.split("="))
            theirs = PREFIX[name] + label.upper()
            theirs = RENAMED.get(theirs, theirs)
            compared += 1
            if theirs is not None and values.get(theirs) != int(value):
                yield f"{name}::{label} is {value} here; {theirs} is {values.get(theirs)} in {header}"
    for label, value in re.findall(r"constexpr CUresult (\w+) = (\d+);", abi):
        compared += 1
        if values.get(label) != int(value):
            yield f"{label} is {value} here and {values.get(label)} in {header}"
    if compared < 40:
        yield f"only {compared} constants of cuda_abi.h were understood"


def main(arguments):
    root = Path(arguments[0])
    header = Path(arguments[1] if len(arguments) > 1 else "/usr/local/cuda/include/cuda.h")
    if not header.is_file():
        print(f"skipped: there is no {header}")
        return 77
    found = list(differences(root, header))
    for sentence in found:
        print(sentence)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
