"""Programs that NVRTC was asked for: reading what recording_nvrtc.cc wrote, one text a program without comments, and which
programs of two commits are the same kernel."""

import hashlib
import re
from dataclasses import dataclass, field

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]\s*$')
# Strings and character constants are matched so that what looks like a comment inside of them stays.
COMMENT_OR_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
CONFIG = re.compile(r"\bkConfig\s*(?:=\s*)?\{(.*?)\};", re.DOTALL)
FIELD = re.compile(r"\.(\w+)\s*=\s*([^,{}]+)")
STRUCT = re.compile(r"\bstruct ForwardSm90Config \{(.*?)\bconstexpr\b", re.DOTALL)
DEFAULT = re.compile(r"\b(\w+) = ([\w:]+)[,;]")
LISTED = re.compile(r"^HEDDLE_FIELD\([\w:]+, (\w+), ([\w:]+)\)", re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """What one call of NVRTC compiles."""

    name: str
    text: str
    options: tuple
    headers: tuple = ()  # (name, text)


def read_program(data):
    """The program that a file of the recorder's holds: lengths, each in a line, and as many bytes."""
    parts, at = [], 0
    while at < len(data):
        end = data.index(b"\n", at)
        at = end + 1 + int(data[at:end])
        if at > len(data):
            raise ValueError("the file is cut short")
        parts.append(data[end + 1:at].decode())
    name, text, count = parts[0], parts[1], int(parts[2])
    headers = parts[3:3 + 2 * count]
    return Program(name.removesuffix(".cu"), text, tuple(parts[3 + 2 * count:]), tuple(zip(headers[::2], headers[1::2])))


def without_comments(text):
    """The text's lines without comments, blank lines, indentation and `#pragma once`."""
    text = COMMENT_OR_STRING.sub(lambda match: match[0] if match[0][0] in "\"'" else " ", text)
    lines = (" ".join(line.split()) if '"' not in line else line.strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line and line != "#pragma once")


class OneText:
    """Programs as one text each: every header in the place of its first mention, lists of rows (.def) in the
    place of each, nothing that no compiler reads. Headers are the same in many programs, so each is read once."""

    def __init__(self):
        self._clean = {}

    def of(self, program):
        headers, seen, lines = dict(program.headers), set(), []

        def visit(text):
            if text not in self._clean:
                self._clean[text] = without_comments(text).split("\n")
            for line in self._clean[text]:
                match = INCLUDE.match(line)
                if match is None or match[1] not in headers:
                    lines.append(line)
                elif match[1] not in seen or match[1].endswith(".def"):
                    seen.add(match[1])
                    visit(headers[match[1]])

        visit(program.text)
        return "\n".join(lines) + "\n"


def digest(*parts):
    """32 hexadecimal digits of texts in this order."""
    sum_of = hashlib.sha256()
    for part in parts:
        data = part.encode()
        sum_of.update(b"%d:" % len(data))
        sum_of.update(data)
    return sum_of.hexdigest()[:32]


@dataclass
class Kernel:
    """A program of a commit."""

    name: str
    text: str     # in one, without comments
    key: str      # of what the compiler reads: equal keys, equal machine code
    options: tuple
    fields: dict = field(default_factory=dict)  # of kConfig, stated or at their default
    rest: str = ""  # digest of what else was generated: the mods


def defaults_of(text):
    """The fields of ForwardSm90Config that have a default: members of the struct, or rows of the list that it is made of."""
    found = STRUCT.search(text)
    own = re.sub(r"^#.*$", "", found[1], flags=re.MULTILINE) if found else ""
    members = DEFAULT.findall(own) + LISTED.findall(own)
    return {name: value.rpartition("::")[2] for name, value in members}


def kernel_of(program, texts):
    """`texts`: a OneText."""
    text, own = texts.of(program), without_comments(program.text)
    config = CONFIG.search(own)
    stated = {name: value.strip().rpartition("::")[2] for name, value in FIELD.findall(config[1])} if config else {}
    fields = {**defaults_of(text), **stated} if config else {}
    rest = CONFIG.sub("", own, count=1)
    generated = "\n".join(line for line in rest.split("\n") if not INCLUDE.match(line))
    return Kernel(program.name, text, digest(text, *program.options), program.options, fields, digest(generated))


def unique(kernels):
    """Without those that are asked for again."""
    first = {}
    for kernel in kernels:
        first.setdefault(kernel.key, kernel)
    return list(first.values())


def sampled(kernels, count=None):
    """As many of them (None: all), in an order by chance which is the same each time: a larger sample holds a smaller one,
    and takes no machine code anew."""
    return sorted(kernels, key=lambda kernel: kernel.key)[:count]


def compatible(a, b):
    """No field that both state has two values."""
    return all(b.fields.get(name, value) == value for name, value in a.fields.items())


def paired(a, b):
    """Which kernels of two lists are the same one: ([(a's, b's)] in a's order, those of a alone, those of b alone).

    First those with equal text, then with an equal name, equal mods and fields that do not differ (a field may be new, or
    not stated where it has its default), then the same without the mods, whose text may have moved. Of several that fit,
    the first is taken: both lists are in the order in which the tests ask for kernels."""
    pairs, left = {}, list(range(len(a)))
    free = dict(enumerate(b))

    def take(identity, fits):
        nonlocal left
        by_identity, remaining = {}, []
        for j, kernel in free.items():
            by_identity.setdefault(identity(kernel), []).append(j)
        for i in left:
            candidates = by_identity.get(identity(a[i]), [])
            j = next((j for j in candidates if fits(a[i], b[j])), None)
            if j is None:
                remaining.append(i)
                continue
            candidates.remove(j)
            del free[j]
            pairs[i] = j
        left = remaining

    take(lambda kernel: (kernel.name, kernel.key), lambda *_: True)
    take(lambda kernel: (kernel.name, kernel.rest), lambda one, other: one.fields == other.fields)
    take(lambda kernel: (kernel.name, kernel.rest), compatible)
    take(lambda kernel: kernel.name, compatible)
    return [(a[i], b[pairs[i]]) for i in sorted(pairs)], [a[i] for i in left], list(free.values())

