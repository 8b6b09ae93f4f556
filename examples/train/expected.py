"""Trains the model of train.cc in double precision, with PyTorch's own operations and autograd, and prints its losses.

    python3 examples/train/expected.py examples/data/text.txt 300 > examples/train/expected_losses.txt

Nothing of Heddle takes part. Initial values are train.cc's, rounded to f32 as there.
"""

import math
import sys

import torch
from torch.nn.functional import cross_entropy, layer_norm, relu

BATCH, WINDOW, HEADS, HEAD_DIM, BUCKETS = 4, 64, 2, 16, 16
WIDTH = HEADS * HEAD_DIM
HIDDEN = 2 * WIDTH


def generator():
    """splitmix64 from state 0: uniform in [-1, 1), multiples of 2^-23."""
    state = 0
    while True:
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        yield ((z ^ z >> 31) >> 40) / 2**23 - 1


def buckets():
    """T5's bucket of each pair: one a distance below 8, then eight that grow with the logarithm up to the window."""
    exact = BUCKETS // 2

    def bucket(distance):
        if distance < exact:
            return max(distance, 0)
        return exact + int(math.log(distance / exact) / math.log(WINDOW / exact) * (BUCKETS - exact))

    return torch.tensor([[bucket(q - kv) for kv in range(WINDOW)] for q in range(WINDOW)])


BUCKET_OF = buckets()


def attention(qkv, slopes, table):
    q, k, v = (x.reshape(BATCH, WINDOW, HEADS, HEAD_DIM).transpose(1, 2) for x in qkv.split(WIDTH, dim=-1))
    position = torch.arange(WINDOW)
    score = q @ k.transpose(-1, -2) / math.sqrt(HEAD_DIM)
    score = score + slopes.reshape(HEADS, 1, 1) * (position - position[:, None]) + table[BUCKET_OF].permute(2, 0, 1)
    score = score.masked_fill(position > position[:, None], -math.inf)
    return (score.softmax(-1) @ v).transpose(1, 2).reshape(BATCH * WINDOW, WIDTH)


class Model:
    def __init__(self, characters):
        numbers = generator()

        def drawn(most, *shape):
            values = [next(numbers) * most for _ in range(math.prod(shape))]
            return torch.tensor(values, dtype=torch.float32).double().reshape(shape).requires_grad_()

        def weights(rows, columns):
            return drawn(1 / math.sqrt(rows), rows, columns)

        self.embedding = drawn(1, characters, WIDTH)
        self.blocks = [
            {
                "qkv": weights(WIDTH, 3 * WIDTH),
                "out": weights(WIDTH, WIDTH),
                "up": weights(WIDTH, HIDDEN),
                "down": weights(HIDDEN, WIDTH),
                "slopes": drawn(0.125, HEADS),
                "table": drawn(0.125, BUCKETS, HEADS),
            }
            for _ in range(2)
        ]
        self.prediction = weights(WIDTH, characters)

    def parameters(self):
        return [self.embedding, *(one for block in self.blocks for one in block.values()), self.prediction]

    def loss(self, characters, next_characters):
        x = self.embedding[characters]
        for block in self.blocks:
            qkv = layer_norm(x, (WIDTH,)) @ block["qkv"]
            x = x + attention(qkv, block["slopes"], block["table"]) @ block["out"]
            x = x + relu(layer_norm(x, (WIDTH,)) @ block["up"]).square() @ block["down"]
        return cross_entropy(layer_norm(x, (WIDTH,)) @ self.prediction, next_characters)


def main(path, steps):
    with open(path, "rb") as file:
        text = file.read()
    kinds = sorted(set(text))
    characters = torch.tensor([kinds.index(byte) for byte in text])
    model = Model(len(kinds))
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    print(f"# expected.py with PyTorch {torch.__version__}, in double precision")
    print("# step loss, of each block: slope of head 0, slope of head 1, root mean square of the table")
    for step in range(int(steps)):
        starts = [(step * BATCH + n) * 997 % (len(text) - WINDOW) for n in range(BATCH)]
        loss = model.loss(
            torch.cat([characters[start : start + WINDOW] for start in starts]),
            torch.cat([characters[start + 1 : start + 1 + WINDOW] for start in starts]),
        )
        learned = [x for block in model.blocks for x in (*block["slopes"], block["table"].square().mean().sqrt())]
        print(step, *(f"{x.item():.9f}" for x in (loss, *learned)))
        adam.zero_grad()
        loss.backward()
        adam.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
