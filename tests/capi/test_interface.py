"""Programs that were compiled against an older heddle/c.h keep running: every line of interface_0.1.txt holds."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from interface import HEADER, HERE, KEPT, added, breaches, key_of, lines_of

KEPT_LINES = KEPT.read_text(encoding="utf-8").splitlines()
RELEASED = HERE / "released" / "0.1" / "heddle" / "c.h"


def changed(*replaced):
    """The lines of the header after replacements, each of a text that stands in it once."""
    text = HEADER.read_text(encoding="utf-8")
    for old, new in replaced:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    with tempfile.TemporaryDirectory() as folder:
        header = Path(folder) / "heddle" / "c.h"
        header.parent.mkdir()
        header.write_text(text, encoding="utf-8")
        return lines_of(header)


class Interface(unittest.TestCase):
    def test_what_was_there_still_is(self):
        self.assertEqual(breaches(KEPT_LINES, lines_of(HEADER)), [])

    def test_what_is_new_is_written_down(self):
        self.assertEqual(added(KEPT_LINES, lines_of(HEADER)), [], "run tests/capi/interface.py --write")

    def test_the_kept_header_is_of_this_interface(self):
        kept = lines_of(RELEASED)
        self.assertGreater(len(kept), 200)
        self.assertEqual(breaches(kept, lines_of(HEADER)), [])

    def test_functions_are_exported(self):
        library = os.environ["HEDDLE_LIBRARY"]
        shown = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
        exported = {line.split()[-1] for line in shown.splitlines()}
        functions = {name for kind, name in (key_of(line) for line in KEPT_LINES if "(*" not in line)  # types of functions
                     if kind == "function"}
        self.assertGreater(len(functions), 20)
        self.assertEqual(functions - exported, set())

    def test_growth_is_no_breach(self):
        now = changed(("  const heddle_tensor* lse_rest;  // as the forward stored it",
                       "  const heddle_tensor* lse_rest;\n  int64_t later;  // as the forward stored it"),
                      ("HEDDLE_TUNING_AGAIN = 4", "HEDDLE_TUNING_AGAIN = 4, HEDDLE_TUNING_LATER = 5"),
                      ("#define HEDDLE_C_VERSION 19", "#define HEDDLE_C_VERSION 20"))
        self.assertEqual(breaches(KEPT_LINES, now), [])
        self.assertEqual([key_of(line)[1] for line in added(KEPT_LINES, now)],
                         ["HEDDLE_TUNING_LATER", "heddle_backward_tensors.later"])

    def test_breaches_are_found(self):
        for replaced, what in (
            (("  const char* weight_mod;  // f32; NULL: 1\n", ""), "field heddle_attention_options.weight_mod"),
            (("  int32_t clamp_reads;\n  int32_t reserved_2;", "  int32_t reserved_2;\n  int32_t clamp_reads;"),
             "field heddle_attention_options.clamp_reads"),
            (("  int32_t rank;   ", "  int64_t rank;   "), "field heddle_tensor.rank"),
            (("} heddle_param;", "  int64_t later;\n} heddle_param;"), "struct heddle_param"),
            (("HEDDLE_DEVICE_CUDA = 1, HEDDLE_DEVICE_ROCM = 2", "HEDDLE_DEVICE_CUDA = 2, HEDDLE_DEVICE_ROCM = 1"),
             "constant HEDDLE_DEVICE_CUDA"),
            (("#define HEDDLE_C_VERSION 19", "#define HEDDLE_C_VERSION 15"), "constant HEDDLE_C_VERSION"),
            (("HEDDLE_API heddle_status heddle_clear_plan_cache(void);", ""), "heddle_clear_plan_cache"),
            (("heddle_plan_workspace_bytes(const heddle_plan* plan, int64_t* bytes)",
              "heddle_plan_workspace_bytes(const heddle_plan* plan, int32_t* bytes)"), "heddle_plan_workspace_bytes"),
            (("(*heddle_event_listener)(const char* event, void* context)", "(*heddle_event_listener)(const char* event)"),
             "heddle_event_listener"),
        ):
            with self.subTest(what=what):
                self.assertTrue(any(what in sentence for sentence in breaches(KEPT_LINES, changed(replaced))))


if __name__ == "__main__":
    unittest.main()
