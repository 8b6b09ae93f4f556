"""tools/check_layers.py finds planted breaches, names their place, and passes what is allowed."""

import subprocess
import sys
import unittest
from pathlib import Path

from tree_case import TreeCase

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "check_layers.py"


class CheckLayers(TreeCase):
    def setUp(self):
        super().setUp()
        self.write("include/heddle/tensor.h", "#include <vector>\n")
        self.write("src/base/shape.h", '#include "heddle/tensor.h"\n')
        self.write("src/expr/node.h", '#include "base/shape.h"\n#include <fmt/format.h>\n')
        self.write("src/mask/build.h", '#include "expr/node.h"\n')
        self.write("src/backend/backend.h", '#include "mask/build.h"\n')
        self.write("src/reference/attend.h", "")
        self.write("src/shared/rows.h", "#include <cstdint>\n")

    def run_tool(self, root=None):
        return subprocess.run([sys.executable, TOOL, root or self.root], capture_output=True, text=True, check=False)

    def assert_breach(self, path, text, at, sentence):
        self.write(path, text)
        result = self.run_tool()
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), 1, result.stdout)
        self.assertTrue(lines[0].startswith(at + ": "), lines[0])
        self.assertIn(sentence, lines[0])

    def test_clean_tree(self):
        self.write(
            "src/families/cpu/cpu_forward_launch.cc",
            '#include "hwy/highway.h"\n#include "backend/backend.h"\n#include "pack-inl.h"\n',
        )
        self.write("src/families/cpu/pack-inl.h", "")
        self.write("src/tile_evaluator/tile_math-inl.h", '#include "hwy/highway.h"\n')
        self.write("src/families/table.cc", '#include "families/cpu/pack-inl.h"\n')
        self.write("src/families/table.h", '#include "backend/backend.h"\n')
        self.write("src/engine/engine.cc", '#include "families/table.h"\n')
        self.write("src/cli/main.cc", '#include <CLI/CLI.hpp>\n#include "heddle/tensor.h"\n#include "options.h"\n')
        self.write("src/cli/options.h", "")
        self.write("examples/map.cc", '#include "heddle/tensor.h"\n')
        result = self.run_tool()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_circle_of_includes(self):
        self.write("src/mask/classify.h", '#include "mask/row_store.h"\n')
        self.write("src/mask/row_store.h", "")
        self.write("src/mask/row_store.cc", '#include "mask/row_store.h"\n#include "expr/node.h"\n')
        result = self.run_tool()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        path = "src/mask/row_store.cc"
        self.assert_breach(
            path,
            '#include "mask/row_store.h"\n#include "mask/classify.h"\n',
            f"{path}:2",
            "src/mask/classify -> src/mask/row_store -> src/mask/classify",
        )

    def test_upward_include(self):
        self.assert_breach(
            "src/expr/range.cc",
            '#include "expr/node.h"\n\n#include "mask/build.h"\n',
            "src/expr/range.cc:3",
            "src/expr may not include src/mask ('mask/build.h')",
        )

    def test_upward_include_by_relative_path(self):
        self.assert_breach("src/expr/range.cc", '#include "../mask/build.h"\n', "src/expr/range.cc:1", "src/mask")

    def test_family_that_includes_another(self):
        self.write("src/families/reference/reference_kernel.h", "")
        self.assert_breach(
            "src/families/cpu/cpu_forward_launch.cc",
            '#include "families/reference/reference_kernel.h"\n',
            "src/families/cpu/cpu_forward_launch.cc:1",
            "src/families/cpu may not include src/families/reference",
        )

    def test_plan_that_includes_a_family(self):
        self.write("src/families/cpu/pack-inl.h", "")
        self.assert_breach(
            "src/plan/plan.h",
            '#include "families/cpu/pack-inl.h"\n',
            "src/plan/plan.h:1",
            "src/plan may not include src/families/cpu",
        )

    def test_room_of_plan_that_includes_the_plan(self):
        self.write("src/plan/plan.h", "")
        self.assert_breach(
            "src/plan/mods/drops.h",
            '#include "plan/plan.h"\n',
            "src/plan/mods/drops.h:1",
            "src/plan/mods may not include src/plan ('plan/plan.h')",
        )

    def test_engine_that_includes_a_family(self):
        self.write("src/families/cpu/pack-inl.h", "")
        self.assert_breach(
            "src/engine/engine.cc",
            '#include "families/cpu/pack-inl.h"\n',
            "src/engine/engine.cc:1",
            "src/engine may not include src/families/cpu",
        )

    def test_family_of_an_unknown_kind(self):
        self.assert_breach("src/families/mine/mine.cc", "", "src/families/mine/mine.cc:1", "has no row")

    def test_new_family_needs_no_row(self):
        self.write("src/families/decode_sm90/shared/decode_sm90_config.h", '#include "shared/rows.h"\n')
        self.write("src/backend/gpu/gpu.h", "")
        self.write(
            "src/families/decode_sm90/decode_sm90_launch.cc",
            '#include "backend/gpu/gpu.h"\n#include "families/decode_sm90/shared/decode_sm90_config.h"\n',
        )
        self.write("kernels/nvidia/fragments/softmax.cuh", "")
        self.write("kernels/nvidia/decode_sm90/decode_sm90.cuh", '#include "fragments/softmax.cuh"\n')
        result = self.run_tool()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        path = "src/families/decode_sm90/decode_sm90_text.cc"
        self.write("src/backend/portable/portable_text.h", "")
        self.assert_breach(path, '#include "backend/portable/portable_text.h"\n', f"{path}:1", "may not include")

    def test_spaces_in_the_directive(self):
        self.assert_breach(
            "src/base/a.cc", '  #  include   "expr/node.h"\n', "src/base/a.cc:1", "src/base may not include"
        )

    def test_public_header_with_a_library(self):
        self.assert_breach(
            "include/heddle/expr.h",
            "#include <string>\n#include <fmt/format.h>\n",
            "include/heddle/expr.h:2",
            "the standard library and public headers only, not 'fmt/format.h'",
        )

    def test_public_header_with_an_internal_one(self):
        self.assert_breach("include/heddle/expr.h", '#include "expr/node.h"\n', "include/heddle/expr.h:1", "public")

    def test_header_for_c_with_a_header_of_cpp(self):
        self.assert_breach(
            "include/heddle/c.h",
            "#include <stdint.h>\n#include <cstdint>\n",
            "include/heddle/c.h:2",
            "heddle/c.h may include stdbool.h, stddef.h, stdint.h only, not 'cstdint'",
        )

    def test_command_line_with_an_internal_header(self):
        self.assert_breach(
            "src/cli/main.cc", '#include "expr/node.h"\n', "src/cli/main.cc:1", "src/cli may not include src/expr"
        )

    def test_shared_folder_of_a_family(self):
        path = "src/families/forward_sm90/shared/forward_sm90_params.h"
        self.write(path, '#include "shared/rows.h"\n')
        self.write("kernels/nvidia/forward_sm90/producer.cuh", f'#include "{path.removeprefix("src/")}"\n')
        self.assertEqual(self.run_tool().returncode, 0)
        self.assert_breach(path, '#include "base/shape.h"\n', f"{path}:1", "may not include src/base")
        self.assert_breach(path, "#include <fmt/format.h>\n", f"{path}:1", "nothing but itself and the standard library")

    def test_shared_folder_of_another_family(self):
        self.write("src/families/forward_sm90/shared/forward_sm90_params.h", "")
        self.write("src/families/backward_sm90/backward_sm90.h", "")
        self.write("src/backend/portable/shared/forward_mma_config.h", "")
        include = '#include "families/forward_sm90/shared/forward_sm90_params.h"\n'
        for folder in ("backward_sm90", "fragments"):
            path = f"kernels/nvidia/{folder}/{folder}_tile.cuh"
            self.assert_breach(path, include, f"{path}:1", "serves the device code of forward_sm90 alone")
            self.write(path, "")
        portable = '#include "backend/portable/shared/forward_mma_config.h"\n'
        self.write("kernels/portable/fragments/fma.cuh", portable)
        self.assertEqual(self.run_tool().returncode, 0)
        path = "kernels/nvidia/fragments/fragments_tile.cuh"
        self.assert_breach(path, portable, f"{path}:1", "serves the device code of backend/portable alone")

    def test_portable_families_apart(self):
        for name in ("forward_mma", "backward_mma"):
            self.write(f"src/families/{name}/{name}.h", "")
        self.write("kernels/portable/forward_mma/output.cuh", "")
        path = "kernels/portable/backward_mma/backward_pass.cuh"
        self.assert_breach(path, '#include "portable/forward_mma/output.cuh"\n', f"{path}:1", "may not include")

    def test_shared_with_a_public_header(self):
        self.assert_breach(
            "src/shared/rows.h", '#include "heddle/tensor.h"\n', "src/shared/rows.h:1", "nothing but itself"
        )

    def test_highway_outside_the_cpu_backend(self):
        self.assert_breach(
            "src/plan/plan.cc", "#include <hwy/highway.h>\n", "src/plan/plan.cc:1", "only src/backend/cpu, src/families/cpu"
        )

    def test_missing_header(self):
        self.assert_breach("src/base/a.cc", '#include "base/nowhere.h"\n', "src/base/a.cc:1", "is no file of src")

    def test_missing_public_header(self):
        self.assert_breach("src/base/a.cc", '#include "heddle/nowhere.h"\n', "src/base/a.cc:1", "no public header")

    def test_unlisted_folder(self):
        self.assert_breach("src/helpers/a.cc", "", "src/helpers/a.cc:1", "has no row")

    def test_unlisted_backend(self):
        self.assert_breach("src/backend/cuda/a.cc", "", "src/backend/cuda/a.cc:1", "has no row")

    def test_folder_below_a_listed_one_keeps_its_rules(self):
        self.write("src/problem/checks/lists.h", '#include "mask/build.h"\n')
        self.write("src/families/choose.cc", '#include "problem/checks/lists.h"\n')
        self.assert_breach(
            "src/problem/checks/lists.cc",
            '#include "backend/backend.h"\n',
            "src/problem/checks/lists.cc:1",
            "src/problem may not",
        )

    def test_kernels(self):
        self.write("kernels/nvidia/ptx/barrier.cuh", '#include "shared/rows.h"\n')
        self.write("kernels/common/mods/operations.cuh", "")
        self.write("kernels/nvidia/fragments/softmax.cuh", '#include "ptx/barrier.cuh"\n#include "mods/operations.cuh"\n')
        self.write("kernels/nvidia/forward_sm90/forward_sm90_kernel.cuh", '#include "fragments/softmax.cuh"\n')
        for name in ("forward_sm90", "backward_sm90"):
            self.write(f"src/families/{name}/{name}.h", "")
        result = self.run_tool()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        mods = "kernels/common/mods/a.cuh"
        self.assert_breach(
            mods, '#include "fragments/softmax.cuh"\n', f"{mods}:1", "kernels/common/mods may not include 'fragments/softmax.cuh'"
        )
        self.assert_breach(mods, "#include <cuda_bf16.h>\n", f"{mods}:1", "without headers of the system")
        self.assert_breach(mods, '#include "base/shape.h"\n', f"{mods}:1", "is no file of kernels")
        self.assert_breach(mods, '#include "../ptx/barrier.cuh"\n', f"{mods}:1", "is no file of kernels")
        self.assert_breach(mods, '#include "shared/nowhere.h"\n', f"{mods}:1", "there is no header src/shared/nowhere.h")
        self.write(mods, "")
        backward = "kernels/nvidia/backward_sm90/backward_sm90_kernel.cuh"
        self.assert_breach(backward, '#include "forward_sm90/forward_sm90_kernel.cuh"\n', f"{backward}:1", "may not include")

    def test_kernels_of_amd(self):
        self.write("kernels/amd/language/language.cuh", "")
        self.write("kernels/nvidia/fragments/softmax.cuh", "")
        self.write("kernels/amd/ptx/math.cuh", '#include "language/language.cuh"\n#include "shared/rows.h"\n')
        self.write("kernels/common/mods/pow.cuh", "")
        self.assertEqual(self.run_tool().returncode, 0)
        path = "kernels/amd/ptx/mma_sync.cuh"
        self.assert_breach(path, '#include "mods/pow.cuh"\n', f"{path}:1", "kernels/amd/ptx may not include")
        self.assert_breach(path, '#include "fragments/softmax.cuh"\n', f"{path}:1", "is no file of kernels")
        self.assert_breach(path, "#include <hip/hip_runtime.h>\n", f"{path}:1", "without headers of the system")
        self.write(path, "")
        self.assert_breach("kernels/amd/misc/a.cuh", '#include "language/language.cuh"\n', "kernels/amd/misc/a.cuh:1", "has no row")

    def test_kernels_in_an_unlisted_folder(self):
        self.write("kernels/nvidia/ptx/barrier.cuh", "")
        self.assert_breach(
            "kernels/nvidia/misc/a.cuh", '#include "ptx/barrier.cuh"\n', "kernels/nvidia/misc/a.cuh:1", "has no row"
        )

    def test_example_with_an_internal_header(self):
        self.assert_breach(
            "examples/map.cc", '#include "expr/node.h"\n', "examples/map.cc:1", "an example may include public headers"
        )

    def test_long_file(self):
        self.assert_breach("src/base/long.cc", "\n" * 601, "src/base/long.cc:1", "601 lines; up to 600 are accepted")

    def test_stems_are_unique(self):
        for path in (
            "src/base/shape.cc",
            "src/expr/node.cc",
            "kernels/nvidia/ptx/math.cuh",
            "kernels/amd/ptx/math.cuh",
        ):
            self.write(path, "")
        source = "src/base/tensor.cc"
        self.write(source, '#include "heddle/tensor.h"\n')
        self.assertEqual(self.run_tool().returncode, 0, self.run_tool().stdout)
        for path, other in (
            ("src/mask/shape.h", "src/base/shape.cc"),
            ("kernels/nvidia/fragments/rows.cuh", "src/shared/rows.h"),
            ("kernels/nvidia/mods/math.cuh", "kernels/amd/ptx/math.cuh"),
            ("kernels/portable/rows/attend.cuh", "src/reference/attend.h"),
        ):
            written = self.root / path
            self.write(path, "")
            lines = self.run_tool().stdout.splitlines()
            self.assertEqual(len(lines), 1, lines)
            self.assertIn("a stem is unique", lines[0])
            self.assertIn(path, lines[0])
            self.assertIn(other, lines[0])
            written.unlink()
        self.assert_breach(source, "", "src/base/tensor.cc:1", "its stem names include/heddle/tensor.h, too")

    def test_vendors_in_the_engine(self):
        for line in ("// on cuda:0", "look_in(kAmdGpus, machine.cuda)", "DeviceKind::rocm", 'refuse("CUDA devices")', "amd_missing"):
            self.assert_breach("src/engine/plan.cc", f"\n{line}\n", "src/engine/plan.cc:2", "what a vendor needs")
        self.write("src/engine/plan.cc", "// a chip, ships and barracudas\n")
        self.write("src/device/caps.h", "struct CudaCaps {};  // NVIDIA\n")
        self.assertEqual(self.run_tool().returncode, 0)

    def test_wrong_usage(self):
        self.assertEqual(self.run_tool(self.root / "include").returncode, 2)


if __name__ == "__main__":
    unittest.main()
