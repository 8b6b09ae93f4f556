#!/usr/bin/env python3
"""Checks who includes whom.

Folders stand in the order in which a call passes through them (docs/layout.md); each may include what its row of the
table lists and nothing else. The engine names no vendor. A file has at most 600 lines: longer ones usually hold two
ideas. Prints each breach as file:line: sentence, and exits with 1 when there is one.

    tools/check_layers.py [ROOT]
"""

import re
import sys
from pathlib import Path

# Folder of src -> the other folders of src whose headers it may include. Its own are always in reach. A folder that
# is not listed is a breach: new rooms get a row.
BELOW_BACKEND = ("base", "shared", "expr", "mask", "problem", "device", "plan")
MAY_INCLUDE = {
    "base": (),
    "files": ("base",),
    "shared": (),
    "expr": ("base", "shared"),
    "mask": ("base", "shared", "expr"),
    "problem": ("base", "expr", "mask"),
    "device": ("base",),
    "plan": ("base", "shared", "expr", "mask", "problem", "device"),
    "backend": BELOW_BACKEND,
    "backend/device_text": BELOW_BACKEND,
    "backend/gpu": (*BELOW_BACKEND, "backend", "backend/device_text", "backend/jit"),
    "backend/backward_mma": (*BELOW_BACKEND, "backend", "backend/device_text", "backend/forward_mma", "backend/jit", "backend/gpu"),
    "backend/forward_mma": (*BELOW_BACKEND, "backend", "backend/device_text", "backend/jit", "backend/gpu"),
    "backend/reference": (*BELOW_BACKEND, "backend"),
    "backend/cpu": (*BELOW_BACKEND, "backend"),
    "backend/libraries": ("base",),
    "backend/jit": ("base",),
    "backend/device_code": ("backend/jit",),
    "backend/cuda/driver": ("base", "device", "backend/libraries"),
    "backend/cuda/jit": ("base", "backend/libraries", "backend/jit", "backend/cuda/driver"),
    "backend/cuda/emit": (*BELOW_BACKEND, "backend/device_text", "backend/device_code", "backend/forward_mma", "backend/backward_mma", "backend/jit", "backend/cuda/jit"),
    "backend/cuda/launch": (*BELOW_BACKEND, "backend", "backend/device_text", "backend/device_code", "backend/jit", "backend/gpu", "backend/forward_mma", "backend/backward_mma",
                            "backend/cuda/driver", "backend/cuda/jit", "backend/cuda/emit"),
    "backend/amd/driver": ("base", "device", "backend/libraries"),
    "backend/amd/jit": ("base", "backend/libraries", "backend/jit", "backend/amd/driver"),
    "backend/amd/emit": (*BELOW_BACKEND, "backend/device_text", "backend/device_code", "backend/forward_mma", "backend/backward_mma", "backend/jit"),
    "backend/amd/launch": (*BELOW_BACKEND, "backend", "backend/device_text", "backend/jit", "backend/gpu", "backend/forward_mma", "backend/backward_mma",
                           "backend/amd/driver", "backend/amd/jit", "backend/amd/emit"),
    "tune": (*BELOW_BACKEND, "backend"),
    "check": (*BELOW_BACKEND, "backend", "backend/reference"),
    "engine": ("files", *BELOW_BACKEND, "backend", "backend/reference", "backend/cpu", "check", "tune"),
    "capi": (),
    "cli": (),
}

# Headers that the device code will read too: not even the public headers.
WITHOUT_PUBLIC_HEADERS = {"shared"}

# kernels/cuda is device code that a compiler without headers compiles: its files include nothing but each other, by the
# path from kernels/cuda, and src/shared. "" is kernels/cuda itself.
KERNELS_MAY_INCLUDE = {
    "ptx": (),
    "mods": ("ptx",),
    "fragments": ("ptx", "mods"),
    "sm90": ("ptx", "mods", "fragments"),
    "families": ("ptx", "mods", "fragments", "sm90"),
    "": ("ptx", "mods", "fragments", "sm90", "families"),
}

# Every device's compiler compiles kernels/portable, by the path from kernels. Fragments of NVIDIA's GPUs may use
# kernels/cuda/ptx; those of the host, headers of the system and the tests' lanes.h.
PORTABLE_MAY_INCLUDE = {
    "forward": ("portable/forward/",),
    "backward": ("portable/backward/", "portable/forward/", "mods/", "ptx/"),
    "fragments": ("portable/fragments/", "portable/amd/", "ptx/"),
    "amd": (),
}
HOST_FRAGMENTS, HOST_LANES = "host.cuh", "lanes.h"

# Prefix of a library's headers -> the folders that may use it. Libraries that are not listed are free to use.
LIBRARY_USERS = {
    "hwy/": {"backend/cpu"},
    "sleef": {"backend/cpu"},
    "CLI/": {"cli"},
}

STANDARD_HEADERS = set("""
    algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes climits
    clocale cmath codecvt compare complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef cstdint
    cstdio cstdlib cstring ctime cuchar cwchar cwctype deque exception execution filesystem format forward_list fstream
    functional future initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory
    memory_resource mutex new numbers numeric optional ostream queue random ranges ratio regex scoped_allocator
    semaphore set shared_mutex source_location span sstream stack stdexcept stop_token streambuf string string_view
    syncstream system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility valarray
    variant vector version
    """.split())

# Headers that the one public header for C may include.
C_HEADER = "heddle/c.h"
C_STANDARD_HEADERS = {"stdbool.h", "stddef.h", "stdint.h"}

SUFFIXES = {".h", ".cc", ".cuh", ".def", ".inc"}
MOST_LINES = 600
# Longer files: how many lines each may have, and why it is not divided.
LONG_FILES = {
    "kernels/cuda/sm90/consumer.cuh": (700, "its machine code depends on its shape: functions that were moved out of the class "
                                            "gave slower kernels"),
}

# Folders of src whose files name no vendor, in comments neither.
WITHOUT_VENDORS = {"engine"}
VENDOR = re.compile(r"\b(cuda|nvidia|amd|rocm|hip)(?![a-z])|(?<![a-z])(cuda|nvidia|amd|rocm|hip)_", re.IGNORECASE)
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def folder_of(path, root):
    """The row of the table that a file of src belongs to: its folder, or a folder above that has a row. Only the rooms of
    src/backend each need a row of their own."""
    folder = path.parent.relative_to(root / "src")
    for candidate in (folder, *folder.parents):
        name = candidate.as_posix()
        if name in MAY_INCLUDE and (candidate == folder or name != "backend"):
            return name
    return folder.as_posix()


def includes_of(path):
    """(line number, the text between the quotes or brackets, whether quoted) of each include of a file."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) or match.group(2), match.group(1) is not None


def resolve(path, text, root):
    """The file of src that a quoted include means, as the compiler finds it: beside the file, then from src."""
    for base in (path.parent, root / "src"):
        candidate = (base / text).resolve()
        if candidate.is_file() and candidate.is_relative_to(root / "src"):
            return candidate
    return None


def breach_in_src(path, text, quoted, root):
    """What is wrong with one include of a file of src; None when nothing is."""
    folder = folder_of(path, root)
    if text.startswith("heddle/"):
        if folder in WITHOUT_PUBLIC_HEADERS:
            return f"src/{folder} may include nothing but itself and the standard library, not '{text}'"
        if not (root / "include" / text).is_file():
            return f"there is no public header '{text}'"
        return None
    for prefix, users in LIBRARY_USERS.items():
        if text.startswith(prefix):
            if folder in users:
                return None
            return f"src/{folder} may not use '{text}': only {', '.join(f'src/{user}' for user in sorted(users))} may"
    if not quoted:
        if folder in WITHOUT_PUBLIC_HEADERS and text not in STANDARD_HEADERS:
            return f"src/{folder} may include nothing but itself and the standard library, not '{text}'"
        return None
    target = resolve(path, text, root)
    if target is None:
        return f"'{text}' is no file of src; write the headers of libraries in <>"
    target_folder = folder_of(target, root)
    if target_folder == folder:
        return None
    allowed = MAY_INCLUDE[folder]
    if target_folder not in allowed:
        listed = ", ".join(f"src/{name}" for name in allowed) or "no other folder of src"
        return f"src/{folder} may not include src/{target_folder} ('{text}'); it may include {listed}"
    return None


def breach_in_kernels(path, text, quoted, root):
    kernels = root / "kernels" / "cuda"
    parent = path.parent.relative_to(kernels)
    folder = parent.parts[0] if parent.parts else ""
    room = f"kernels/cuda/{folder}".rstrip("/")
    if folder not in KERNELS_MAY_INCLUDE:
        return f"{room} has no row in KERNELS_MAY_INCLUDE of tools/check_layers.py"
    if not quoted:
        return f"device code is compiled without headers of the system: '{text}'"
    if text.startswith("shared/"):
        return None if (root / "src" / text).is_file() else f"there is no header src/{text}"
    if not (kernels / text).is_file():
        return f"'{text}' is no file of kernels/cuda; write the path from there"
    target = text.split("/")[0] if "/" in text else ""
    if target == folder or target in KERNELS_MAY_INCLUDE[folder]:
        return None
    listed = ", ".join(f"kernels/cuda/{name}" for name in KERNELS_MAY_INCLUDE[folder]) or "no other folder of kernels/cuda"
    return f"{room} may not include '{text}'; it may include {listed}"


def breach_in_portable(path, text, quoted, root):
    folder = path.parent.name
    if folder not in PORTABLE_MAY_INCLUDE or path.parent.parent != root / "kernels" / "portable":
        return f"{path.parent.relative_to(root)} has no row in PORTABLE_MAY_INCLUDE of tools/check_layers.py"
    if path.name == HOST_FRAGMENTS and (text == HOST_LANES or not quoted):
        return None
    if not quoted:
        return f"device code is compiled without headers of the system: '{text}'"
    if text.startswith("shared/"):
        return None if (root / "src" / text).is_file() else f"there is no header src/{text}"
    if not text.startswith(PORTABLE_MAY_INCLUDE[folder]):
        return f"kernels/portable/{folder} may not include '{text}'"
    home = root / "kernels" if text.startswith("portable/") else root / "kernels" / "cuda"
    return None if (home / text).is_file() else f"'{text}' is no file of kernels"


def breach_in_public(path, text, root):
    if path == root / "include" / C_HEADER:
        if text in C_STANDARD_HEADERS:
            return None
        return f"{C_HEADER} may include {', '.join(sorted(C_STANDARD_HEADERS))} only, not '{text}': C programs read it"
    if text.startswith("heddle/"):
        return None if (root / "include" / text).is_file() else f"there is no public header '{text}'"
    if text not in STANDARD_HEADERS:
        return f"a public header may include the standard library and public headers only, not '{text}'"
    return None


def breach_in_examples(path, text, quoted):
    if quoted and not text.startswith("heddle/") and not (path.parent / text).is_file():
        return f"an example may include public headers and its own folder's only, not '{text}'"
    return None


def breach_of_length(name, lines):
    most, why = LONG_FILES.get(name, (MOST_LINES, None))
    if lines > most:
        return f"{lines} lines; up to {most} are accepted" + (f" ({why})" if why else "")
    if why and lines <= MOST_LINES:
        return f"{lines} lines need no row in LONG_FILES of tools/check_layers.py"
    return None


def vendors_in(path):
    """(line number, sentence) of each line of a file that names a vendor."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if match := VENDOR.search(line):
            yield number, f"names '{match.group(0).strip('_')}'; what a vendor needs belongs to src/device or src/backend"


def sources(folder):
    return sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())


def check(root):
    """All (file, line, sentence) breaches of the tree at `root`."""
    root = root.resolve()
    breaches = []

    def note(path, line, sentence):
        if sentence:
            breaches.append((path.relative_to(root).as_posix(), line, sentence))

    for path in sources(root / "include"):
        for line, text, _ in includes_of(path):
            note(path, line, breach_in_public(path, text, root))
    for path in sources(root / "src"):
        if folder_of(path, root) not in MAY_INCLUDE:
            note(path, 1, f"src/{folder_of(path, root)} has no row in MAY_INCLUDE of tools/check_layers.py")
            continue
        for line, text, quoted in includes_of(path):
            note(path, line, breach_in_src(path, text, quoted, root))
        if folder_of(path, root) in WITHOUT_VENDORS:
            for line, sentence in vendors_in(path):
                note(path, line, sentence)
    for path in sources(root / "kernels" / "cuda"):
        for line, text, quoted in includes_of(path):
            note(path, line, breach_in_kernels(path, text, quoted, root))
    for path in sources(root / "kernels" / "portable"):
        for line, text, quoted in includes_of(path):
            note(path, line, breach_in_portable(path, text, quoted, root))
    for path in sources(root / "examples"):
        for line, text, quoted in includes_of(path):
            note(path, line, breach_in_examples(path, text, quoted))
    for top in ("include", "src", "kernels", "tests", "examples", "bench"):
        for path in sources(root / top):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            note(path, 1, breach_of_length(path.relative_to(root).as_posix(), lines))
    return breaches


def main(arguments):
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    if not (root / "src").is_dir():
        print(f"{root} holds no folder 'src'", file=sys.stderr)
        return 2
    breaches = check(root)
    for file, line, sentence in breaches:
        print(f"{file}:{line}: {sentence}")
    if not breaches:
        print("layers: every include keeps the rules")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
