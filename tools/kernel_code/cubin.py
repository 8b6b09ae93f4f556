"""What a cubin holds of a kernel, and how two of them differ: machine code, the constants that it reads, registers, spills,
shared memory, parameters. Names and what debuggers read are left out."""

import hashlib
import re
import struct
from collections import Counter
from dataclasses import dataclass, field, replace

INSTRUCTION_BYTES = 16  # since sm_70
NO_BITS, NO_DATA = 8, b""

# `.nv.info.NAME` lists attributes: format, number, then a length and as many bytes, or two bytes of value.
SIZED_ATTRIBUTE = 4
LAUNCH_ATTRIBUTES = {0x05, 0x10, 0x17, 0x19}  # most threads, threads, each parameter, bytes of parameters

# The bank in which the compiler keeps the addresses of global variables: those of every constant in a header, too, which
# no code reads. It counts only where an instruction reads it.
ADDRESS_BANK = 4
CONSTANT_FORMS = (3, 5)  # bits 9 to 11 of an instruction that has a constant operand, or loads one
BARRIER = 0xb1d          # has such a form, but its number stands where others have their bank
OFFSET_BITS = (38, 16)   # of an instruction: where the offset of a constant begins, and how long it is
PARAMETER_BANK, FIRST_PARAMETER = 0, 0x210  # bytes, on sm_90


@dataclass(frozen=True)
class Section:
    name: str
    kind: int
    size: int
    data: bytes
    info: int


def sections(cubin):
    """The sections of an ELF file of 64 bits."""
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("this is no cubin")
    at, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3a)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, at + i * size) for i in range(count)]
    names = headers[names_at][4]
    found = []
    for name, kind, _, _, offset, length, _, info, _, _ in headers:
        start = names + name
        text = cubin[start:cubin.index(b"\0", start)].decode()
        found.append(Section(text, kind, length, NO_DATA if kind == NO_BITS else cubin[offset:offset + length], info))
    return found


def instructions(text):
    return [text[at:at + INSTRUCTION_BYTES] for at in range(0, len(text), INSTRUCTION_BYTES)]


def opcode(instruction):
    return int.from_bytes(instruction[:2], "little") & 0xfff


def reads_bank(instruction, bank):
    word = int.from_bytes(instruction[:8], "little")
    return (word >> 9 & 7) in CONSTANT_FORMS and opcode(instruction) != BARRIER and (word >> 54 & 0x1f) == bank


def offset_in_bank(instruction):
    """Of the constant that an instruction reads, as it is encoded there."""
    return int.from_bytes(instruction[:8], "little") >> OFFSET_BITS[0] & (1 << OFFSET_BITS[1]) - 1


def without_offset(instruction):
    word = int.from_bytes(instruction, "little")
    return word & ~((1 << OFFSET_BITS[1]) - 1 << OFFSET_BITS[0])


def is_parameter(instruction):
    """Whether it reads a constant of the bank that holds parameters, where these are. (Loads count in bytes, others in
    words of 4.)"""
    return reads_bank(instruction, PARAMETER_BANK) and offset_in_bank(instruction) >= FIRST_PARAMETER


def attributes(info):
    """(number, bytes) of each attribute of `.nv.info`."""
    at, found = 0, []
    while at + 4 <= len(info):
        form, number, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == SIZED_ATTRIBUTE:
            found.append((number, info[at:at + size]))
            at += size
        else:
            found.append((number, struct.pack("<H", size)))
    return found


@dataclass
class Code:
    """What is compared of one program."""

    text: dict = field(default_factory=dict)       # kernel > machine code
    constants: dict = field(default_factory=dict)  # section > digest of its data
    launch: list = field(default_factory=list)     # attributes
    shared: int = 0                                # bytes, static
    registers: int = 0
    spills: int = 0                                # bytes, stored and loaded
    stack: int = 0
    failure: str = ""                              # of a program that does not compile

    def count(self):
        return sum(len(text) for text in self.text.values()) // INSTRUCTION_BYTES


def address_data(all_sections):
    """What stands in the bank of addresses: for each entry the variable's place and its section's data. Symbols are left
    out: their numbers and order are names."""
    by_name = {section.name: section for section in all_sections}
    bank = by_name.get(f".nv.constant{ADDRESS_BANK}")
    symbols, relocations = by_name.get(".symtab"), by_name.get(f".rela.nv.constant{ADDRESS_BANK}")
    if bank is None or symbols is None or relocations is None:
        return bank.data if bank else NO_DATA
    parts = []
    for at in range(0, len(relocations.data), 24):
        offset, info, addend = struct.unpack_from("<QQq", relocations.data, at)
        _, _, _, section, value, size = struct.unpack_from("<IBBHQQ", symbols.data, 24 * (info >> 32))
        data = all_sections[section].data[value:value + size] if section < len(all_sections) else NO_DATA
        parts.append(struct.pack("<QqQ", offset, addend, size) + data)
    return b"".join(sorted(parts))


def number_before(log, words):
    return [int(match) for match in re.findall(rf"(\d+) {words}", log)]


def code_of(cubin, log):
    """Of a cubin and what the compiler said of it."""
    code = Code(registers=max(number_before(log, "registers"), default=0),
                spills=sum(number_before(log, "bytes spill stores") + number_before(log, "bytes spill loads")),
                stack=max(number_before(log, "bytes stack frame"), default=0))
    if not cubin:
        # Without the place of the error: its line's number is no property of the kernel.
        code.failure = "; ".join(sorted(set(re.findall(r"error\b.*", log)))) or log
        return code
    all_sections = sections(cubin)
    for section in all_sections:
        if section.name.startswith(".text."):
            code.text[section.name[len(".text."):]] = section.data
        elif section.name.startswith(".nv.shared.") and not section.name.startswith(".nv.shared.reserved"):
            code.shared += section.size
        elif section.name.startswith(".nv.constant") and not section.name.startswith(f".nv.constant{ADDRESS_BANK}"):
            code.constants[section.name] = hashlib.sha256(section.data).hexdigest()
        elif section.name.startswith(".nv.info."):
            kept = sorted(entry for entry in attributes(section.data) if entry[0] in LAUNCH_ATTRIBUTES)
            code.launch.append((section.name, kept))
    if any(reads_bank(each, ADDRESS_BANK) for text in code.text.values() for each in instructions(text)):
        code.constants["addresses"] = hashlib.sha256(address_data(all_sections)).hexdigest()
    return code


def moved_parameters(a, b):
    """Whether two programs differ in nothing but where their kernels' parameters are: each place at one has one at the
    other, in every instruction."""
    if list(a.text) != list(b.text) or replace(a, text={}) != replace(b, text={}):
        return False
    for kernel, text in a.text.items():
        moves, back = {}, {}
        if len(text) != len(b.text[kernel]):
            return False
        for one, other in zip(instructions(text), instructions(b.text[kernel])):
            if one != other and not (is_parameter(one) and is_parameter(other)
                                     and without_offset(one) == without_offset(other)):
                return False
            if is_parameter(one):
                here, there = offset_in_bank(one), offset_in_bank(other)
                if moves.setdefault(here, there) != there or back.setdefault(there, here) != here:
                    return False
    return True


def changed_instructions(a, b):
    """How many instructions of each stand in the other not at all or less often: (of a, of b)."""
    count = [Counter(each for text in code.text.values() for each in instructions(text)) for code in (a, b)]
    return (count[0] - count[1]).total(), (count[1] - count[0]).total()


def difference(a, b):
    """What differs, as a line; empty where nothing does."""
    if a.failure or b.failure:
        if bool(a.failure) == bool(b.failure):
            return "" if a.failure == b.failure else f"does not compile: {a.failure}; then: {b.failure}"
        return f"no longer compiles: {b.failure}" if b.failure else "compiles, and did not"
    words = []
    if a.text != b.text:
        if list(a.text) != list(b.text):
            words.append(f"kernels {', '.join(a.text)} -> {', '.join(b.text)}")
        gone, come = changed_instructions(a, b)
        words.append(f"instructions {a.count()} -> {b.count()} ({gone} gone, {come} new)")
    for name in ("registers", "spills", "stack", "shared"):
        one, other = getattr(a, name), getattr(b, name)
        if one != other:
            words.append(f"{name} {one} -> {other}")
    if a.constants != b.constants:
        names = sorted(name for name in {*a.constants, *b.constants} if a.constants.get(name) != b.constants.get(name))
        words.append(f"constants in {', '.join(names)}")
    if a.launch != b.launch:
        words.append("parameters or threads")
    return ", ".join(words)
