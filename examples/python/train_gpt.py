"""A tiny GPT learns the characters of examples/data/text.txt, with ALiBi whose slopes are learned, too. It trains twice
from the same weights on the same batches: attention by heddle, and by torch's own operations on the whole score matrix.

    python examples/python/train_gpt.py [steps, 50 if not given]
"""

import sys
from pathlib import Path

import torch
from torch import nn

from heddle.torch import create_block_mask, flex_attention

LAYERS, HEADS, WIDTH, LENGTH, BATCH = 2, 4, 64, 64, 4
TOLERANCE = 1e-5  # of the losses, relative
TEXT = (Path(__file__).resolve().parents[1] / "data" / "text.txt").read_text(encoding="utf-8")
CHARACTERS = sorted(set(TEXT))
TOKENS = torch.tensor([CHARACTERS.index(c) for c in TEXT])


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


class Attention(nn.Module):
    def __init__(self, by_heddle: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.slopes = nn.Parameter(2.0 ** -torch.arange(1, HEADS + 1))
        self.attend = self.by_heddle if by_heddle else self.by_torch
        self.mask = create_block_mask(causal, None, None, LENGTH, LENGTH, "cpu")

    def alibi(self, score, b, h, q_idx, kv_idx):
        return score + self.slopes[h] * (kv_idx - q_idx)

    def by_heddle(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, self.alibi, self.mask)

    def by_torch(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        position = torch.arange(LENGTH)
        distance = position - position[:, None]
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + self.slopes[:, None, None] * distance
        return scores.masked_fill(distance > 0, -torch.inf).softmax(-1) @ v

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, by_heddle: bool) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(by_heddle)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


def train(by_heddle: bool, steps: int) -> tuple[list[float], nn.Module]:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more do not pay for matrices of this size
    blocks = [Block(by_heddle) for _ in range(LAYERS)]
    model = nn.Sequential(nn.Embedding(len(CHARACTERS), WIDTH), *blocks, nn.LayerNorm(WIDTH),
                          nn.Linear(WIDTH, len(CHARACTERS)))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(TOKENS) - LENGTH, (BATCH, 1))
        rows = TOKENS[starts + torch.arange(LENGTH + 1)]
        loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    (ours, model), (torchs, _) = train(True, steps), train(False, steps)
    for step in range(0, steps, max(1, steps // 5)):
        print(f"step {step:3}  loss {ours[step]:.6f}, by torch's own operations {torchs[step]:.6f}")
    worst = max(abs(x - y) / y for x, y in zip(ours, torchs))
    print(f"step {steps - 1:3}  loss {ours[-1]:.6f}; largest relative difference in all {steps} steps: {worst:.1e}")
    print("slopes of the first layer:", [round(x, 4) for x in model[1].attention.slopes.tolist()])
    if worst > TOLERANCE:
        raise SystemExit(f"the losses differ by {worst}; up to {TOLERANCE} is accepted")


main()
