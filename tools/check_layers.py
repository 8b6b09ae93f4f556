#!/usr/bin/env python3
"""Checks who includes whom.

Folders stand in the order in which a call passes through them (docs/layout.md); each may include what its row of the
table lists and nothing else. No includes close a circle, a header and the source of its name counting as one file. The
engine names no vendor. A file has at most 600 lines: longer ones usually hold two ideas. A stem of include, src and kernels
names one idea: a header and its source. Prints each breach as file:line: sentence, and exits with 1 when there is one.

    tools/check_layers.py [ROOT]
"""

import re
import sys
from pathlib import Path

# Folder of src -> the other folders of src whose headers it may include. Its own are always in reach. A folder that
# is not listed is a breach: new rooms get a row.
BELOW_PLAN = ("base", "shared", "expr", "mask", "problem", "device")
PLAN_ROOMS = ("plan/access", "plan/mods", "plan/tiles", "plan/hopper")
BELOW_BACKEND = (*BELOW_PLAN, "plan", *PLAN_ROOMS)
MAY_INCLUDE = {
    "base": (),
    "files": ("base",),
    "shared": (),
    "expr": ("base", "shared"),
    "mask": ("base", "shared", "expr"),
    "problem": ("base", "expr", "mask"),
    "device": ("base",),
    "tile_evaluator": ("base", "shared", "expr", "mask", "problem"),
    "plan": (*BELOW_PLAN, *PLAN_ROOMS),
    "plan/access": BELOW_PLAN,
    "plan/mods": (*BELOW_PLAN, "plan/access"),
    "plan/tiles": BELOW_PLAN,
    "plan/hopper": (*BELOW_PLAN, "plan/mods", "plan/tiles"),
    "backend": BELOW_BACKEND,
    "backend/device_text": BELOW_BACKEND,
    "backend/gpu": (*BELOW_BACKEND, "backend", "backend/device_text", "backend/device_code", "backend/jit"),
    "backend/portable": (*BELOW_BACKEND, "backend", "backend/device_text", "backend/gpu", "backend/portable/shared"),
    "backend/portable/shared": ("shared",),
    "backend/cpu": (*BELOW_BACKEND, "backend"),
    "backend/libraries": ("base",),
    "backend/jit": ("base", "backend/libraries"),
    "backend/device_code": ("backend/jit",),
    "backend/cuda/driver": ("base", "device", "backend/libraries"),
    "backend/cuda/jit": ("base", "backend/libraries", "backend/jit", "backend/cuda/driver"),
    "backend/cuda/nccl": ("base", "backend/libraries", "backend/cuda/driver"),
    "backend/cuda/hopper": ("base", "shared", "backend/cuda/driver"),
    "backend/cuda/launch": (*BELOW_BACKEND, "backend", "backend/device_text", "backend/jit", "backend/gpu",
                            "backend/cuda/driver", "backend/cuda/jit", "backend/cuda/hopper"),
    "backend/amd/driver": ("base", "device", "backend/libraries"),
    "backend/amd/jit": ("base", "backend/libraries", "backend/jit", "backend/amd/driver"),
    "backend/amd/launch": (*BELOW_BACKEND, "backend", "backend/jit", "backend/gpu", "backend/amd/driver",
                           "backend/amd/jit"),
    "reference": (*BELOW_BACKEND, "backend"),
    "tune": (*BELOW_BACKEND, "backend", "families"),
    "check": (*BELOW_BACKEND, "backend", "reference"),
    "engine": ("files", *BELOW_BACKEND, "backend", "backend/jit", "tile_evaluator", "families", "check", "tune"),
    "context": ("base", "expr", "backend"),
    "peaks": ("base", "device", "backend/cpu"),
    "capi": (),
    "cli": ("peaks",),
}

# Each family is a folder of src/families, which includes no other family; its device code stands in a folder of kernels
# of the same name. Its folder `shared` has what its device code reads too. How its name ends, or its whole name, says which
# rooms of src/backend it may use. The table in src/families itself includes all families.
GPU_ROOMS = ("backend/gpu", "backend/device_text", "backend/jit")
ROOMS_OF_FAMILIES = {
    "_mma": (*GPU_ROOMS, "backend/portable", "backend/portable/shared"),
    "_sm90": (*GPU_ROOMS, "backend/device_code", "backend/cuda/driver", "backend/cuda/jit", "backend/cuda/hopper",
              "backend/cuda/launch"),
    "cpu": ("backend/cpu", "tile_evaluator"),
    "reference": ("reference",),
}
# Folders of src whose headers device code reads too, beside the folders `shared` of the families: no public headers.
WITHOUT_PUBLIC_HEADERS = {"shared", "backend/portable/shared"}

# Device code, which compilers without headers compile: a folder of kernels -> the folders that its files may include, by
# the path from kernels, beside their own and the headers that the host shares. A file is included by its path from
# kernels/VENDOR or kernels/common, one of kernels/portable by its path from kernels. kernels/common and kernels/portable
# know no vendor: what they include of ptx, mods or portable/fragments each vendor has under the same name.
COMMON_MODS = ("common/mods", "nvidia/mods", "nvidia/ptx")
PORTABLE = ("nvidia/portable/fragments", "portable/fragments")
KERNELS_MAY_INCLUDE = {
    "common/mods": ("nvidia/mods",),
    "common/fragments": ("nvidia/ptx",),
    "common/sequences": (),
    "common/around": ("common/mods", "common/sequences", "nvidia/mods", "nvidia/ptx", "nvidia/fragments"),
    "portable/fragments": ("common/fragments", "nvidia/ptx", *PORTABLE),
    "portable/rows": ("portable/fragments",),
    "nvidia/ptx": (),
    "nvidia/mods": ("nvidia/ptx",),
    "nvidia/portable/fragments": ("common/fragments", "nvidia/ptx", "portable/fragments"),
    "nvidia/fragments": ("common/fragments", *COMMON_MODS),
    "nvidia/around": ("nvidia/fragments", *COMMON_MODS),
    "amd/language": ("amd/portable",),
    "amd/ptx": ("amd/language",),
    "amd/mods": ("amd/language",),
    "amd/fragments": ("common/fragments", "amd/ptx"),
    "amd/portable": (),
    "amd/portable/fragments": ("amd/language", "amd/portable", "portable/fragments"),
}

# Rooms that the device code of a family may include, by the folder of kernels that its folder stands in.
FAMILY_KERNELS_MAY_INCLUDE = {
    "portable": ("portable/rows", "common/sequences", *COMMON_MODS, *PORTABLE),
    "nvidia": ("common/fragments", "nvidia/fragments", *COMMON_MODS),
}

# Prefix of a library's headers -> the folders that may use it. Libraries that are not listed are free to use.
LIBRARY_USERS = {
    "hwy/": {"backend/cpu", "tile_evaluator", "families/cpu", "peaks"},
    "sleef": {"tile_evaluator"},
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

# Folders of src whose files name no vendor, in comments neither.
WITHOUT_VENDORS = {"engine"}
VENDOR = re.compile(r"\b(cuda|nvidia|amd|rocm|hip)(?![a-z])|(?<![a-z])(cuda|nvidia|amd|rocm|hip)_", re.IGNORECASE)
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def families_of(root):
    """The names of the folders of src/families."""
    folder = root / "src" / "families"
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def rooms_of_family(name):
    """The rooms of src/backend that a family may use; None: no ending of a name that is known."""
    return next((rooms for ending, rooms in ROOMS_OF_FAMILIES.items() if name == ending or
                 (ending.startswith("_") and name.endswith(ending))), None)


def add_families(root):
    """Adds the rows of the families of the tree at `root`. A family whose rooms are not known gets none."""
    families = [name for name in families_of(root) if rooms_of_family(name) is not None]
    for name in families:
        MAY_INCLUDE[f"families/{name}"] = (*BELOW_BACKEND, "backend", *rooms_of_family(name), f"families/{name}/shared")
        MAY_INCLUDE[f"families/{name}/shared"] = ("shared", "backend/portable/shared")
        WITHOUT_PUBLIC_HEADERS.add(f"families/{name}/shared")
        for vendor, allowed in FAMILY_KERNELS_MAY_INCLUDE.items():
            KERNELS_MAY_INCLUDE[f"{vendor}/{name}"] = allowed
    MAY_INCLUDE["families"] = (*BELOW_BACKEND, "backend", "backend/portable", "backend/cuda/launch",
                               "backend/amd/launch", *(f"families/{name}" for name in families),
                               *(f"families/{name}/shared" for name in families))


def folder_of(path, root):
    """The row of the table that a file of src belongs to: its folder, or a folder above that has a row. Only the rooms of
    src/backend and the families each need a row of their own."""
    folder = path.parent.relative_to(root / "src")
    for candidate in (folder, *folder.parents):
        name = candidate.as_posix()
        if name in MAY_INCLUDE and (candidate == folder or name not in ("backend", "families")):
            return name
    return folder.as_posix()


def breach_in_shared(folder, text, root):
    """What is wrong with an include of a header that host and device share, by the path from src, in a folder of
    kernels. A family's shared headers are its own; those of the portable rooms serve portable device code alone."""
    if not (root / "src" / text).is_file():
        return f"there is no header src/{text}"
    owner = text.split("/shared/")[0].removeprefix("families/")
    if text.startswith("shared/") or owner == folder.split("/")[-1]:
        return None
    if owner == "backend/portable" and "portable" in folder.split("/"):
        return None
    return f"kernels/{folder} may not include '{text}': it serves the device code of {owner} alone"


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


def home_of(text, vendor, root):
    """The folder of kernels, by the path from there, of the file that device code of a vendor means; None: no file."""
    kernels = root / "kernels"
    for home in (kernels / vendor, kernels / "common", kernels):
        if (home / text).is_file():
            return (home / text).parent.relative_to(kernels).as_posix()
    return None


def breach_in_kernels(path, text, quoted, root):
    folder = path.parent.relative_to(root / "kernels").as_posix()
    if folder not in KERNELS_MAY_INCLUDE:
        return f"kernels/{folder} has no row in KERNELS_MAY_INCLUDE of tools/check_layers.py"
    if not quoted:
        return f"device code is compiled without headers of the system: '{text}'"
    if text.startswith("shared/") or "/shared/" in text:
        return breach_in_shared(folder, text, root)
    of_amd = folder.split("/")[0] == "amd"
    target = home_of(text, "amd" if of_amd else "nvidia", root)
    if target is None:
        return f"'{text}' is no file of kernels; write the path from kernels/VENDOR, kernels/common or kernels"
    allowed = KERNELS_MAY_INCLUDE[folder]
    if target == folder or target in allowed:
        return None
    listed = ", ".join(f"kernels/{name}" for name in allowed) or "no other folder of kernels"
    return f"kernels/{folder} may not include '{text}'; it may include {listed}"


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


def breach_of_length(lines):
    return f"{lines} lines; up to {MOST_LINES} are accepted" if lines > MOST_LINES else None


def vendors_in(path):
    """(line number, sentence) of each line of a file that names a vendor."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if match := VENDOR.search(line):
            yield number, f"names '{match.group(0).strip('_')}'; what a vendor needs belongs to src/device or src/backend"


def target_of(path, text, root):
    """The file that a quoted include of any file means; None: none of the tree."""
    kernels = root / "kernels"
    vendor = "amd" if path.is_relative_to(kernels / "amd") else "nvidia"
    homes = (path.parent, root / "src", root / "include", root / "tests", root / "bench", kernels / vendor,
             kernels / "common", kernels)
    return next((home / text for home in homes if (home / text).is_file()), None)


def circles(paths, root):
    """(file, line, sentence) of each circle of includes among these files. A header and the source of its name are one:
    what the source includes, the header may not lean on."""
    includes = {}  # unit -> unit that it includes -> (file, line)
    for path in paths:
        unit = path.with_suffix("").relative_to(root).as_posix()
        for line, text, quoted in includes_of(path):
            target = target_of(path, text, root) if quoted else None
            if target is None:
                continue
            other = target.resolve().with_suffix("").relative_to(root).as_posix()
            if other != unit:
                includes.setdefault(unit, {}).setdefault(other, (path, line))
    found, done = [], set()
    for start in sorted(includes):
        way, branches = [start], [iter(sorted(includes[start]))] if start not in done else []
        while branches:
            step = next(branches[-1], None)
            if step is None:
                done.add(way.pop())
                branches.pop()
            elif step in way:
                circle = [*way[way.index(step):], step]
                path, line = includes[way[-1]][step]
                found.append((path, line, f"closes a circle of includes: {' -> '.join(circle)}"))
            elif step not in done:
                way.append(step)
                branches.append(iter(sorted(includes.get(step, ()))))
    return found


def idea_of(path, root):
    """What a file's stem may name once in the whole tree: the file's path without its ending, and in kernels without the
    vendor, since each vendor has files of the same path for one purpose."""
    relative = path.relative_to(root)
    parts = relative.parent.parts
    if parts[0] == "kernels" and len(parts) > 1 and parts[1] in ("nvidia", "amd"):
        parts = ("kernels", *parts[2:])
    return "/".join((*parts, stem_of(path)))


def stem_of(path):
    return path.stem.removesuffix("-inl")


def implements(path, header, root):
    """Whether a file is a source that includes the public header of its name."""
    return path.suffix == ".cc" and any(text == f"heddle/{header.name}" for _, text, _ in includes_of(path))


def twins(root):
    """(file, sentence) of each file of include, src and kernels whose stem another idea has. A public header and the one
    source that implements it are one."""
    of_stem = {}  # stem -> idea -> its files
    for top in ("include", "src", "kernels"):
        for path in sources(root / top):
            of_stem.setdefault(stem_of(path), {}).setdefault(idea_of(path, root), []).append(path)
    for ideas in of_stem.values():
        first, *others = ideas.values()
        if len(others) == 1 and first[0].is_relative_to(root / "include"):
            others = [] if all(implements(path, first[0], root) for path in others[0]) else others
        for files in others:
            yield files[0], f"its stem names {first[0].relative_to(root).as_posix()}, too; a stem is unique"


def sources(folder):
    return sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())


def check(root):
    """All (file, line, sentence) breaches of the tree at `root`."""
    root = root.resolve()
    add_families(root)
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
    for path in sources(root / "kernels"):
        for line, text, quoted in includes_of(path):
            note(path, line, breach_in_kernels(path, text, quoted, root))
    for path in sources(root / "examples"):
        for line, text, quoted in includes_of(path):
            note(path, line, breach_in_examples(path, text, quoted))
    tops = ("include", "src", "kernels", "tests", "bench", "python/core")
    for path, line, sentence in circles([path for top in tops for path in sources(root / top)], root):
        note(path, line, sentence)
    for path, sentence in twins(root):
        note(path, 1, sentence)
    for top in ("include", "src", "kernels", "tests", "examples", "bench"):
        for path in sources(root / top):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            note(path, 1, breach_of_length(lines))
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
