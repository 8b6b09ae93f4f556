#!/usr/bin/env bash
# Installs what is missing, builds, and tests. NVRTC, which the tests compile CUDA kernels with, comes from PyPI where
# this machine has none.
#
#   ./test.sh          what every change must pass; under 15 minutes on two cores from nothing
#   ./test.sh --full   everything, under 75 minutes: debug build, all tests under the sanitizers, the long test grids,
#                      planted faults, clang-tidy
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source tools/setup.sh

# Built and run, with HEDDLE_TEST_REDUCED=1, under ASan and UBSan in every run; --full takes all tests.
asan_tests=(base_tensor_test files_test expr_text_test mask_block_mask_test backend_cpu_forward_test engine_poison_test
  engine_grid_test backend_cuda_jit_parts_test backend_cuda_jit_disk_test capi_attention_test capi_block_mask_test
  capi_errors_test capi_plan_test)

full=false
case "${*}" in
  '') ;;
  --full) full=true ;;
  *)
    sed -n '2,7p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac

summary=() failed=false

# note NAME: runs the rest of the arguments; what it was and whether it went well is printed again at the end.
note() {
  local name=$1 start=$SECONDS verdict=passed ctest_lines=
  shift
  step "$name"
  if ! "$@"; then
    verdict=FAILED
    failed=true
  fi
  summary+=("$(printf '%-30s %s in %d s' "$name" "$verdict" $((SECONDS - start)))" ${ctest_lines:+"$ctest_lines"})
}

# tests PRESET [CTEST-ARGUMENTS...]
tests() {
  local preset=$1 log=build/ctest-$1.log status=0
  shift
  ctest --test-dir "build/$preset" -j "$(nproc)" --output-on-failure --no-tests=error "$@" | tee "$log" || status=$?
  ctest_lines=$(grep -E 'tests passed|Total Test time' "$log")
  return $status
}

reduced_tests() {
  HEDDLE_TEST_REDUCED=1 tests "$@"
}

long_tests() {
  HEDDLE_TEST_FULL=1 tests "$@"
}

tidy() {
  local status=0 log=build/clang-tidy.log
  run-clang-tidy -quiet -p build/debug -j "$(nproc)" "^$PWD/src/.*\.cc\$" >"$log" 2>&1 || status=$?
  sed -i 's/\x1b\[[0-9;]*m//g' "$log"
  if ((status != 0)); then
    grep -E '(warning|error): ' "$log" | sort -u || tail "$log"
  fi
  local read all
  read=$(grep -c '^clang-tidy.*/src/.*\.cc$' "$log") all=$(find src -name '*.cc' | wc -l)
  echo "clang-tidy read $read of $all files of src/"
  ((status == 0 && read == all))
}

plant_faults() {
  if ! git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    echo "not a git checkout: planting faults copies the files that git knows"
    return 1
  fi
  python3 tools/plant_faults.py
}

if $full; then install_missing git clang-tidy; else install_missing; fi
bring_nvrtc

step "release build"
build_preset release
if $full; then
  note "release, long grids" long_tests release
  step "debug build"
  build_preset debug
  note "debug" reduced_tests debug
  note "clang-tidy" tidy
  step "ASan and UBSan build"
  build_preset asan
  note "ASan and UBSan" reduced_tests asan
  step "TSan build"
  build_preset tsan
  note "TSan" reduced_tests tsan
  note "planted faults" plant_faults
else
  if ((${#asan_tests[@]} > 0)); then
    step "ASan and UBSan build of ${asan_tests[*]}"
    build_preset asan "${asan_tests[@]}"
    note "ASan and UBSan, reduced grid" reduced_tests asan -R "^($(IFS='|' && echo "${asan_tests[*]}"))\$"
  fi
  note "release" tests release
fi

step "summary"
printf '%s\n' "${summary[@]}"
! $failed
