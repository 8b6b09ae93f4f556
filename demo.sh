#!/usr/bin/env bash
# Installs what is missing, builds, and runs attention on real input: one layer of a trained transformer on the opening
# of Moby-Dick (examples/data). Pictures go to demo-out/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source tools/setup.sh

install_missing
targets=(heddle-cli attention_map) python=
if [[ -f build/release/python/heddle/_core.pyi ]]; then  # ./test.sh built everything
  build=build/release
  bring_python
  targets+=(heddle_python) python=build/python-tools/bin/python
  step "build"
  build_preset release "${targets[@]}"
else  # what the CPU needs: the rest would take twice as long
  build=build/demo
  step "build for the CPU"
  cmake --preset release -B $build -DHEDDLE_FAMILIES='cpu;reference' -DHEDDLE_TESTS=OFF -DHEDDLE_BENCH=OFF \
    -DHEDDLE_C=OFF -DHEDDLE_SHARED=OFF -DHEDDLE_SIMD=native \
    >build/configure-demo.log 2>&1 || { cat build/configure-demo.log >&2; exit 1; }
  cmake --build $build -j "$(nproc)" --target "${targets[@]}"
fi

heddle=$build/bin/heddle
input=examples/data/minilm.safetensors
out=demo-out
mkdir -p $out

step "the machine"
$heddle devices

step "the model's own attention: keys before the padding; against what NumPy computed in float64"
$heddle run $input -o $out/model.safetensors --dtype f32 --mask "kv_idx < lengths[b]"
python3 examples/data/compare.py $out/model.safetensors

# other NAME TITLE ARGUMENTS...: an attention that the model was not trained with, checked against the reference.
other() {
  local name=$1 title=$2
  shift 2
  step "$title; against Heddle's own float64 reference"
  $heddle run $input -o "$out/$name.safetensors" "$@"
  $heddle check $input "$@"
}

other causal "causal" --mask "q_idx >= kv_idx and kv_idx < lengths[b]"
other window "a window of 64 tokens to either side" --mask "abs(q_idx - kv_idx) <= window and kv_idx < lengths[b]" \
  --param window=64
other alibi "ALiBi: a score that falls with the distance, within the sentence" \
  --score "score - slopes[h] * abs(q_idx - kv_idx)" \
  --mask "sentence[b, q_idx] == sentence[b, kv_idx]"

step "pictures"
$heddle mask --q-len 512 --kv-len 512 --block 16x16 --batch 2 --svg $out/mask_sentences.svg \
  --mask "sentence[b, q_idx] == sentence[b, kv_idx]" --capture sentence=$input:sentence
$heddle mask --q-len 512 --kv-len 512 --block 16x16 --svg $out/mask_window.svg \
  --mask "abs(q_idx - kv_idx) <= window" --param window=64
$build/bin/attention_map $input 2 0 508 $out/attention.svg
$build/bin/attention_map $input 0 0 64 $out/attention_words.svg

if [[ -n $python ]]; then
  step "from Python: the guide's first example, which needs no PyTorch"
  sed -n '/^```python$/,/^```$/p;/^```$/q' docs/guide/python.md | sed '1d;$d' |
    PYTHONPATH=build/release/python $python -
fi

step "done"
cat <<END
$out/model.safetensors          o and lse of the model's own attention
$out/mask_sentences.svg         the block mask of attention within sentences
$out/mask_window.svg            the block mask of a window
$out/attention.svg              whom the 508 tokens attend to, head 2
$out/attention_words.svg        the first 64 tokens with their words, head 0
END
