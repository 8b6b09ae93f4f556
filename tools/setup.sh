# Sourced by ./demo.sh and ./test.sh: installs what a build needs and is missing (Debian, through apt), and configures.

packages=(g++ cmake ninja-build ccache python3 libhwy-dev libsleef-dev libtbb-dev libfmt-dev libcli11-dev
  nlohmann-json3-dev libgtest-dev libgmock-dev libbenchmark-dev)

# step TEXT: says what starts, and when, counted from the script's start.
step() {
  printf '\n== %s (after %d s)\n' "$*" "$SECONDS"
}

# install_missing [PACKAGE...]: the packages above and these.
install_missing() {
  local package missing=()
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "No apt here: the build needs what Debian calls ${packages[*]} $*." >&2
    return
  fi
  for package in "${packages[@]}" "$@"; do
    if [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
      missing+=("$package")
    fi
  done
  if ((${#missing[@]} == 0)); then
    return
  fi
  step "install ${missing[*]}"
  local as_root=()
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
      echo "Not root, and no sudo: install these as root, then start again: ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
    >build/apt.log 2>&1 || {
    tail -20 build/apt.log >&2
    exit 1
  }
}

# bring_nvrtc: the compiler of CUDA kernels, for the tests: this machine's, else PyPI's, kept in build/nvrtc. With it no
# test may skip for want of one.
bring_nvrtc() {
  local path
  if ! path=$(python3 tools/bring_nvrtc.py --find build/nvrtc); then
    install_missing python3-pip
    step "NVRTC from PyPI"
    path=$(python3 tools/bring_nvrtc.py build/nvrtc) || exit 1
  fi
  export HEDDLE_NVRTC=$path HEDDLE_REQUIRE_NVRTC=1
}

# bring_python: build/python-tools, a virtual environment with what the Python package is built and tested with, from
# PyPI; the release build then makes the package, in build/release/python.
bring_python() {
  local python=build/python-tools/bin/python
  install_missing python3-dev python3-venv
  if ! $python -c 'import mypy, nanobind, numpy, pytest' 2>/dev/null; then
    step "Python packages from PyPI"
    rm -rf build/python-tools
    python3 -m venv build/python-tools
    $python -m pip install --quiet --disable-pip-version-check numpy 'nanobind>=3.1' pytest mypy || exit 1
  fi
  release_options=(-DHEDDLE_PYTHON=ON "-DPython_EXECUTABLE=$PWD/$python")
}

# build_preset PRESET [TARGET...]: configures build/PRESET and builds the targets (none: everything). A cache that
# another checkout or an interrupted run left behind is made afresh.
build_preset() {
  local preset=$1 log=build/configure-$1.log options=()
  shift
  if [[ $preset == release ]]; then options=("${release_options[@]}"); fi
  if [[ $preset == asan ]]; then options=("${asan_options[@]}"); fi
  if [[ $preset == fuzz ]]; then options=("${fuzz_options[@]}"); fi
  if [[ $preset == tsan ]]; then options=("${tsan_options[@]}"); fi
  if ! cmake --preset "$preset" "${options[@]}" >"$log" 2>&1 &&
    ! cmake --preset "$preset" --fresh "${options[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
  fi
  cmake --build --preset "$preset" -j "$(nproc)" ${1:+--target "$@"}
}

release_options=() asan_options=()
tsan_options=(-DHEDDLE_SIMD=native -DHEDDLE_EXAMPLES=OFF)  # threads share the same things whatever a loop is compiled for
fuzz_options=(-DHEDDLE_SIMD=native -DHEDDLE_EXAMPLES=OFF -DHEDDLE_FRONT=ON)
mkdir -p build
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD}  # so that tools/plant_faults.py finds what the release build left there
