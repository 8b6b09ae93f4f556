"""The parts of tools/compare_kernels.py that need no compiler of kernels: texts, pairs, machine code, the recorder."""

import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

from kernel_code import cubin as cubins  # noqa: E402
from kernel_code.compiled import Compiled  # noqa: E402
from kernel_code.cubin import (Code, code_of, difference, instructions, moved_parameters, reads_bank,  # noqa: E402
                               sections)
from kernel_code.programs import (Kernel, OneText, Program, compatible, kernel_of, paired, read_program, sampled,  # noqa: E402
                                  unique, without_comments)
from kernel_code.table import RECORDER, load, save  # noqa: E402


def kernel(name, key, rest="mods", **fields):
    return Kernel(name, "", key, (), fields, rest)


class Texts(unittest.TestCase):
    def test_comments_blank_lines_and_indentation_are_no_text(self):
        text = '#pragma once\n// one\nint a;  // two\n\n  int /* three\n four */ b;\n'
        self.assertEqual(without_comments(text), "int a;\nint b;")

    def test_what_looks_like_a_comment_in_a_string_stays(self):
        text = 'asm("// no  comment" :: "r"(\'"\'), "/*");  // one\n'
        self.assertEqual(without_comments(text), 'asm("// no  comment" :: "r"(\'"\'), "/*");')

    def test_a_header_stands_where_it_is_mentioned_first(self):
        program = Program("k", '#include "b.h"\n#include "a.h"\nint c;\n', (),
                          (("a.h", "#pragma once\nint a;\n"), ("b.h", '#include "a.h"\nint b;\n')))
        self.assertEqual(OneText().of(program), "int a;\nint b;\nint c;\n")

    def test_a_header_that_was_not_given_stays_an_include(self):
        self.assertEqual(OneText().of(Program("k", '#include "x.h"\n', ())), '#include "x.h"\n')

    def test_fields_are_those_of_the_config_without_their_namespaces(self):
        text = ('#include "a.h"\nconstexpr Config kConfig = {\n    .dim = 64, .form = heddle::shared::Form::plain,\n'
                '    .lse = true};\nint mods;\n')
        made = kernel_of(Program("k", text, ("-x",), (("a.h", "int a;"),)), OneText())
        self.assertEqual(made.fields, {"dim": "64", "form": "plain", "lse": "true"})

    def test_keys_are_of_what_the_compiler_reads(self):
        def made(text, options=("-x",), header="int a;"):
            return kernel_of(Program("k", text, options, (("a.h", header),)), OneText())

        first = made('#include "a.h"\nint b;\n')
        self.assertEqual(first.key, made('// c\n#include "a.h"\n  int b;\n').key)
        self.assertEqual(first.rest, made('#include "a.h"\nint b;\n', header="int z;").rest)
        for other in (made('#include "a.h"\nint c;\n'), made('#include "a.h"\nint b;\n', ("-y",)),
                      made('#include "a.h"\nint b;\n', header="int z;")):
            self.assertNotEqual(first.key, other.key)

    def test_programs_asked_for_twice_are_one(self):
        self.assertEqual([each.name for each in unique([kernel("a", "1"), kernel("b", "2"), kernel("a", "1")])], ["a", "b"])

    def test_a_larger_sample_holds_a_smaller_one(self):
        kernels = [kernel("k", key) for key in ("5", "1", "4", "2", "3")]
        small, large = ({each.key for each in sampled(kernels[::order], count)} for order, count in ((1, 2), (-1, 4)))
        self.assertEqual((len(small), len(large)), (2, 4))
        self.assertLess(small, large)
        self.assertEqual(len(sampled(kernels)), 5)


    def test_a_field_that_is_not_stated_has_its_headers_default(self):
        old = "struct ForwardSm90Config {\n  int stages;\n  bool lse = false;\n  Fp8 q = Fp8::none, k = Fp8::e4m3;\n  constexpr int f();\n};\n"
        new = ("struct ForwardSm90Config {\n#define HEDDLE_FIELD(type, name, value) type name = value;\n"
               "HEDDLE_FIELD(int, stages, 0)\nHEDDLE_FIELD(bool, lse, false)\nHEDDLE_FIELD(Fp8, q, Fp8::none)\n"
               "HEDDLE_FIELD(Fp8, k, Fp8::e4m3)\n  constexpr int f();\n};\n")
        config = "constexpr ForwardSm90Config kConfig = {.stages = 2};\n"
        fields = [kernel_of(Program("k", struct_text + config, ()), OneText()).fields for struct_text in (old, new)]
        self.assertEqual(fields[0], {"stages": "2", "lse": "false", "q": "none", "k": "e4m3"})
        self.assertEqual(fields[1], fields[0])


class Pairs(unittest.TestCase):
    def names(self, a, b):
        pairs, only_a, only_b = paired(a, b)
        return ([(one.key, other.key) for one, other in pairs], [one.key for one in only_a], [one.key for one in only_b])

    def test_equal_text_comes_first_whatever_the_order(self):
        a = [kernel("k", "1", dim="64"), kernel("k", "2", dim="128")]
        self.assertEqual(self.names(a, a[::-1]), ([("1", "1"), ("2", "2")], [], []))

    def test_other_text_is_paired_by_its_config_and_mods(self):
        a = [kernel("k", "1", dim="64"), kernel("k", "2", dim="128"), kernel("k", "3", "other", dim="64")]
        b = [kernel("k", "6", "other", dim="64"), kernel("k", "5", dim="128"), kernel("k", "4", dim="64")]
        self.assertEqual(self.names(a, b), ([("1", "4"), ("2", "5"), ("3", "6")], [], []))

    def test_a_field_may_be_new(self):
        a, b = [kernel("k", "1", dim="64")], [kernel("k", "2", dim="64", columns="0")]
        self.assertTrue(compatible(a[0], b[0]))
        self.assertEqual(self.names(a, b), ([("1", "2")], [], []))

    def test_another_value_is_another_kernel(self):
        a, b = [kernel("k", "1", dim="64")], [kernel("k", "2", dim="128")]
        self.assertEqual(self.names(a, b), ([], ["1"], ["2"]))

    def test_mods_may_move_together(self):
        a, b = [kernel("k", "1", "old", dim="64")], [kernel("k", "2", "new", dim="64")]
        self.assertEqual(self.names(a, b), ([("1", "2")], [], []))

    def test_what_one_side_lacks_is_named(self):
        a, b = [kernel("k", "1"), kernel("l", "2")], [kernel("k", "1"), kernel("m", "3")]
        self.assertEqual(self.names(a, b), ([("1", "1")], ["2"], ["3"]))


def instruction(opcode, bank=0, rest=0):
    return struct.pack("<QQ", opcode | bank << 54, rest)


MOVE, LOAD_CONSTANT, BARRIER = 0x202, 0xb82, 0xb1d


def elf(**parts):
    """An ELF file of these sections: {name: data}, or {name: a size} for those without bytes."""
    names, headers, data = b"\0", [bytes(64)], b""
    for name, content in [*parts.items(), (".shstrtab", None)]:
        at, start = len(names), 64 + len(data)
        names += name.encode() + b"\0"
        if content is None:
            content = names
        empty = isinstance(content, int)
        size = content if empty else len(content)
        headers.append(struct.pack("<IIQQQQIIQQ", at, 8 if empty else 1, 0, 0, start, size, 0, 0, 1, 0))
        data += b"" if empty else content
    header = b"\x7fELF\x02\x01" + bytes(10) + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(data), 0, 64, 0, 0, 64,
                                                          len(headers), len(headers) - 1)
    return header + data + b"".join(headers)


LOG = """ptxas info    : Compiling entry function 'k' for 'sm_90a'
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 168 registers, used 9 barriers
"""


class MachineCode(unittest.TestCase):
    def made(self, text, log=LOG, **parts):
        return code_of(elf(**{".text.k": text, ".nv.constant0.k": bytes(8), **parts}), log)

    def test_sections_are_read(self):
        found = {section.name: section for section in sections(elf(**{".text.k": b"0123", ".nv.shared.k": 1024}))}
        self.assertEqual(found[".text.k"].data, b"0123")
        self.assertEqual((found[".nv.shared.k"].size, found[".nv.shared.k"].data), (1024, b""))
        with self.assertRaises(ValueError):
            sections(b"text")

    def test_equal_code_is_the_same_under_other_names_of_variables(self):
        one = self.made(instruction(MOVE), **{".symtab": b"one", ".nv.constant4": b"1", ".nv.shared.k": 8})
        other = self.made(instruction(MOVE), **{".symtab": b"two", ".nv.constant4": b"23", ".nv.shared.k": 8})
        self.assertEqual(difference(one, other), "")

    def test_addresses_count_where_an_instruction_reads_them(self):
        self.assertTrue(reads_bank(instruction(LOAD_CONSTANT, 4), 4))
        self.assertFalse(reads_bank(instruction(LOAD_CONSTANT, 3), 4))
        self.assertFalse(reads_bank(instruction(MOVE, 4), 4))
        self.assertFalse(reads_bank(instruction(BARRIER, 4), 4))
        text = instruction(LOAD_CONSTANT, 4)
        one, other = (self.made(text, **{".nv.constant4": data}) for data in (b"1", b"2"))
        self.assertEqual(difference(one, other), "constants in addresses")

    def test_a_changed_instruction_is_counted(self):
        one = self.made(instruction(MOVE) + instruction(MOVE, rest=1) + instruction(MOVE, rest=2))
        other = self.made(instruction(MOVE) + instruction(MOVE, rest=3))
        self.assertEqual(difference(one, other), "instructions 3 -> 2 (2 gone, 1 new)")

    def test_an_order_is_a_difference(self):
        first, second = instruction(MOVE), instruction(MOVE, rest=1)
        self.assertEqual(difference(self.made(first + second), self.made(second + first)),
                         "instructions 2 -> 2 (0 gone, 0 new)")

    def test_what_the_compiler_says_is_compared(self):
        text = instruction(MOVE)
        one, other = self.made(text), self.made(text, LOG.replace("168", "160").replace(" 4 bytes spill", " 0 bytes spill"))
        self.assertEqual((one.registers, one.spills, one.stack), (168, 16, 8))
        self.assertEqual(difference(one, other), "registers 168 -> 160, spills 16 -> 12")

    def test_shared_memory_constants_and_parameters_are_compared(self):
        text = instruction(MOVE)
        base = self.made(text)
        self.assertEqual(difference(base, self.made(text, **{".nv.shared.k": 16})), "shared 0 -> 16")
        self.assertEqual(difference(base, self.made(text, **{".nv.shared.reserved.0": 16})), "")
        self.assertEqual(difference(base, self.made(text, **{".nv.constant0.k": bytes(12)})), "constants in .nv.constant0.k")
        info = struct.pack("<BBHQ", 4, 0x17, 8, 5) + struct.pack("<BBH", 3, 0x19, 16)
        self.assertEqual(difference(self.made(text, **{".nv.info.k": info}),
                                    self.made(text, **{".nv.info.k": info[:-2] + b"\0\1"})), "parameters or threads")
        self.assertEqual(cubins.attributes(info), [(0x17, struct.pack("<Q", 5)), (0x19, b"\x10\0")])

    def test_failures_are_compared_without_their_lines(self):
        one, other = (code_of(b"", f"NVRTC_ERROR\nk.cu({line}): error: no x\n") for line in (1, 2))
        self.assertEqual(difference(one, other), "")
        self.assertEqual(difference(one, code_of(b"", "k.cu(1): error: no y")),
                         "does not compile: error: no x; then: error: no y")
        self.assertEqual(difference(Code(), one), "no longer compiles: error: no x")
        self.assertEqual(difference(one, Code()), "compiles, and did not")

    def test_instructions_are_of_16_bytes(self):
        self.assertEqual(len(instructions(bytes(48))), 3)


def reading(*offsets):
    """Machine code that reads parameters, and then one constant."""
    def read(offset):
        return (0x5 << 9 | 0x010 | offset << 38).to_bytes(16, "little")
    return Code(text={"k": b"".join(read(offset) for offset in (*offsets, 0x28))})


class MovedParameters(unittest.TestCase):
    def test_each_place_has_one_at_the_other(self):
        self.assertTrue(moved_parameters(reading(0x220, 0x230, 0x220), reading(0x240, 0x220, 0x240)))
        self.assertFalse(moved_parameters(reading(0x220, 0x220), reading(0x240, 0x250)))
        self.assertFalse(moved_parameters(reading(0x220, 0x230), reading(0x240, 0x240)))
        self.assertFalse(moved_parameters(reading(0x220, 0x230), reading(0x220, 0x220)))

    def test_nothing_else_may_differ(self):
        one, other = reading(0x220), reading(0x230)
        self.assertFalse(moved_parameters(one, reading(0x230, 0x230)))
        other.registers = 8
        self.assertFalse(moved_parameters(one, other))
        self.assertFalse(moved_parameters(reading(0x220), reading(0x20)), "that is no parameter")


class Recorder(unittest.TestCase):
    """Compiled, loaded in a process of its own, and asked for a program."""

    ASK = """
import ctypes, sys
sys.path.insert(0, sys.argv[2])
from kernel_code.nvrtc import Nvrtc
nvrtc = Nvrtc(sys.argv[1])
print(nvrtc.version)
print(nvrtc.compile("first", "int a;\\n", ["-one", "-two"]))
library = ctypes.CDLL(sys.argv[1])
program, strings = ctypes.c_void_p(), ctypes.c_char_p * 1
library.nvrtcCreateProgram(ctypes.byref(program), b"text", b"second.cu", 1, strings(b"int h;"), strings(b"a.h"))
library.nvrtcCompileProgram(program, 0, strings(b""))
"""

    def test_writes_what_it_is_asked_for_and_compiles_nothing(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            subprocess.run([os.environ.get("CXX", "c++"), "-std=c++20", "-shared", "-fPIC", RECORDER, "-o", folder / "r.so"],
                           check=True)
            (folder / "records").mkdir()
            environment = {**os.environ, "RECORDED_PROGRAMS": str(folder / "records"), "RECORDED_VERSION": "13.0"}
            result = subprocess.run([sys.executable, "-c", self.ASK, folder / "r.so", TOOLS], env=environment, text=True,
                                    capture_output=True, check=True)
            self.assertEqual(result.stdout.splitlines()[0], "13.0")
            self.assertIn("wgmma.mma_async instructions are serialized", result.stdout)
            programs = [read_program(path.read_bytes()) for path in sorted((folder / "records").iterdir())]
        self.assertEqual(programs, [Program("first", "int a;\n", ("-one", "-two")),
                                    Program("second", "text", (), (("a.h", "int h;"),))])

    def test_a_file_that_is_cut_short_is_an_error(self):
        with self.assertRaises(ValueError):
            read_program(b"4\nk.cu6\nint")


class Kept(unittest.TestCase):
    def test_programs_come_back_as_they_were(self):
        programs = [Program("a", "one\n", ("-x",), (("h", "int h;"),)), Program("b", "two\n", (), (("h", "int h;"),))]
        with tempfile.TemporaryDirectory() as name:
            save(Path(name) / "p.json.xz", programs)
            self.assertEqual(load(Path(name) / "p.json.xz"), programs)

    def test_machine_code_comes_back_and_is_compiled_once(self):
        made = kernel("k", "ab12")
        with tempfile.TemporaryDirectory() as name:
            compiled = Compiled.__new__(Compiled)
            compiled.folder = Path(name)
            self.assertFalse(compiled.has(made))
            compiled.keep(made.key, elf(**{".text.k": instruction(MOVE)}), LOG)
            self.assertTrue(compiled.has(made))
            self.assertEqual(compiled.code(made), code_of(elf(**{".text.k": instruction(MOVE)}), LOG))
            self.assertEqual(compiled.compile([made]), 0)


if __name__ == "__main__":
    unittest.main()
