"""Every mod and mask that users of torch write, beside torch's own flex_attention."""

import functools
import math

import pytest
import torch

from agreement import DEVICE, DTYPE, assert_agrees

B, H, S, D = 2, 4, 37, 16


@pytest.fixture
def qkv():
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # a learned capture asks for a gradient
        yield [torch.randn(B, H, S, D, generator=generator).to(DEVICE, DTYPE) for _ in range(3)]


def tensors():
    generator = torch.Generator().manual_seed(2)
    random = functools.partial(torch.randn, generator=generator)
    integers = functools.partial(torch.randint, generator=generator)
    return {
        "slopes": random(H),
        "bias": random(H, S, S),
        "batch_bias": random(B, H, S, S),
        "table": random(2 * S, H),
        "padding": random(B, S),
        "gates": random(H, S),
        "temperature": random(S),
        "learned": torch.nn.Parameter(random(H)),
        "offset": torch.tensor(3),
        "factor": torch.tensor(0.25),
        "rows": random(S, 8),
        "columns": random(S, 8),
        "ids": integers(0, 4, (B, S)).sort(-1).values,
        "docs": integers(0, 3, (S,)).sort().values.to(torch.int32),
        "starts": torch.tensor([0, 11, 20, 30]),
        "lengths": torch.tensor([S, 20], dtype=torch.int32),
        "tree": integers(0, 2, (S, S)).bool(),
        "page_of": torch.arange(H).flip(0),
        "groups": integers(0, 3, (S,)).to(torch.int16),
        "bytes": integers(0, 2, (B, S)).to(torch.uint8),
        "half": random(S).half(),
        "brain": random(H, S).bfloat16(),
        "wide": random(2, 3 * S)[:, ::3],
        "top": integers(0, 5, (S, 4)),
    }


T = {
    name: x.to(DEVICE) if type(x) is torch.Tensor else torch.nn.Parameter(x.data.to(DEVICE))
    for name, x in tensors().items()
}
(
    slopes,
    bias,
    batch_bias,
    table,
    padding,
    gates,
    temperature,
    learned,
    offset,
    factor,
    rows,
    columns,
    ids,
    docs,
    starts,
    lengths,
    tree,
    page_of,
    groups,
    bytes_,
    half,
    brain,
    wide,
    top,
) = T.values()
WINDOW = 9


class Alibi(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.slopes = torch.nn.Parameter(slopes.clone())
        self.power = 2

    def forward(self, score, b, h, q_idx, kv_idx):
        return score + self.bias(h, q_idx - kv_idx)

    def bias(self, h, distance):
        return self.slopes[h] * distance / self.power


class Windowed:
    def __init__(self, size):
        self.size = size

    def __call__(self, score, b, h, q_idx, kv_idx):
        return torch.where((q_idx - kv_idx).abs() < self.size, score, -float("inf"))


class Scaled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return torch.tanh(x) * 2

    @staticmethod
    def setup_context(context, inputs, output):
        pass


def helper(x, factor=0.5):
    return x * factor + WINDOW / 100


def scaled_by(factor, bias, score, b, h, q_idx, kv_idx):
    return score * factor + bias[h]


def in_place(score, b, h, q_idx, kv_idx):
    made = score.clone()
    made += slopes[h]
    made.mul_(2.0)
    return made


def looped(score, b, h, q_idx, kv_idx):
    for step in range(3):
        score = score + gates[h, (q_idx + step) % S] if step else score
    return score


def buckets(score, b, h, q_idx, kv_idx):
    distance = kv_idx - q_idx
    bucket = (distance > 0).to(torch.long) * 16
    distance = distance.abs()
    large = 8 + (torch.log(distance.float() / 8) / math.log(128 / 8) * 8).to(torch.long)
    large = torch.min(large, torch.full_like(large, 15))
    return score + table[bucket + torch.where(distance < 8, distance, large), h]


SCORES = {
    "identity": lambda score, b, h, q_idx, kv_idx: score,
    "alibi": lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx),
    "relative": lambda score, b, h, q_idx, kv_idx: score + (q_idx - kv_idx),
    "distance in f32": lambda score, b, h, q_idx, kv_idx: score - (q_idx - kv_idx).abs() * 0.5,
    "true division": lambda score, b, h, q_idx, kv_idx: score + q_idx / (kv_idx + 1),
    "floor division": lambda score, b, h, q_idx, kv_idx: score + (q_idx - kv_idx) // 4 + (q_idx - kv_idx) % 5,
    "division modes": lambda score, b, h, q_idx, kv_idx: (
        score
        + torch.div(q_idx - kv_idx, 3, rounding_mode="trunc")
        + torch.div(q_idx - kv_idx, 3, rounding_mode="floor")
    ),
    "fmod": lambda score, b, h, q_idx, kv_idx: score + torch.fmod(q_idx - kv_idx, 5) + torch.fmod(score, 0.25),
    "softcap": lambda score, b, h, q_idx, kv_idx: 20.0 * torch.tanh(score / 20.0),
    "full bias": lambda score, b, h, q_idx, kv_idx: score + bias[h, q_idx, kv_idx],
    "chained bias": lambda score, b, h, q_idx, kv_idx: score + bias[h][q_idx][kv_idx],
    "batch bias": lambda score, b, h, q_idx, kv_idx: score + batch_bias[b, h, q_idx, kv_idx],
    "bias of one batch": lambda score, b, h, q_idx, kv_idx: score + batch_bias[b][0][q_idx, kv_idx],
    "transposed bias": lambda score, b, h, q_idx, kv_idx: score + bias.transpose(1, 2)[h, q_idx, kv_idx],
    "expanded bias": lambda score, b, h, q_idx, kv_idx: score + bias[:1].expand(H, -1, -1)[h, q_idx, kv_idx],
    "flat bias": lambda score, b, h, q_idx, kv_idx: score + bias.view(H, S * S)[h, q_idx * S + kv_idx],
    "sliced bias": lambda score, b, h, q_idx, kv_idx: score + bias[..., 1:][h, q_idx, kv_idx.clamp(max=S - 2)],
    "last row": lambda score, b, h, q_idx, kv_idx: score + bias[-1, q_idx, kv_idx],
    "strided capture": lambda score, b, h, q_idx, kv_idx: score + wide[1, kv_idx],
    "key bias": lambda score, b, h, q_idx, kv_idx: score + padding[b, kv_idx],
    "temperature and gate": lambda score, b, h, q_idx, kv_idx: score * temperature[kv_idx] + gates[h, q_idx],
    "half captures": lambda score, b, h, q_idx, kv_idx: score + half[kv_idx] + brain[h, q_idx],
    "clamped table": lambda score, b, h, q_idx, kv_idx: score + table[(q_idx - kv_idx).clamp(-16, 15) + 16, h],
    "t5 buckets": buckets,
    "learned": lambda score, b, h, q_idx, kv_idx: score * learned[h] + learned.sum(),
    "0-d captures": lambda score, b, h, q_idx, kv_idx: score * factor + (q_idx - offset),
    "nested gathers": lambda score, b, h, q_idx, kv_idx: score + slopes[page_of[docs[q_idx]]],
    "small integers": lambda score, b, h, q_idx, kv_idx: score + groups[q_idx] * 0.5 - bytes_[b, kv_idx],
    "bool capture": lambda score, b, h, q_idx, kv_idx: torch.where(tree[q_idx, kv_idx], score, score - 1),
    "bool arithmetic": lambda score, b, h, q_idx, kv_idx: score + (q_idx >= kv_idx) * 2.0 + (q_idx == kv_idx),
    "masked_fill": lambda score, b, h, q_idx, kv_idx: score.masked_fill(q_idx < kv_idx, -float("inf")),
    "where of a scalar": lambda score, b, h, q_idx, kv_idx: torch.where(q_idx - kv_idx < WINDOW, score, -1e4),
    "powers": lambda score, b, h, q_idx, kv_idx: (
        score**2 + score.pow(3) * 0.1 + 2 ** ((kv_idx - q_idx) / 8) + (q_idx - kv_idx) ** 2 * 0.01
    ),
    "square root": lambda score, b, h, q_idx, kv_idx: (
        score - (q_idx - kv_idx).abs().float().sqrt() + torch.rsqrt(kv_idx + 1.0)
    ),
    "exponentials": lambda score, b, h, q_idx, kv_idx: (
        torch.exp(score * 0.1) + torch.exp2(score) * 0.1 + torch.expm1(score * 0.1)
    ),
    "logarithms": lambda score, b, h, q_idx, kv_idx: (
        torch.log(score.abs() + 1) + torch.log2(score.abs() + 1) + torch.log1p(score.abs())
    ),
    "trigonometry": lambda score, b, h, q_idx, kv_idx: (
        score + torch.sin(q_idx * 0.1) * torch.cos(kv_idx * 0.1) + torch.atan(score) + torch.tan(score * 0.1)
    ),
    "activations": lambda score, b, h, q_idx, kv_idx: (
        torch.nn.functional.gelu(score) + torch.nn.functional.silu(score) + torch.relu(score) + torch.sigmoid(score)
    ),
    "more activations": lambda score, b, h, q_idx, kv_idx: (
        torch.nn.functional.softplus(score)
        + torch.nn.functional.gelu(score, approximate="tanh")
        + torch.nn.functional.leaky_relu(score)
        + torch.nn.functional.elu(score)
        + torch.nn.functional.logsigmoid(score)
    ),
    "decomposed": lambda score, b, h, q_idx, kv_idx: (
        torch.nn.functional.hardswish(score) + torch.nn.functional.mish(score)
    ),
    "rounding": lambda score, b, h, q_idx, kv_idx: (
        score
        + torch.floor(score)
        + torch.ceil(q_idx / 7)
        + torch.round(kv_idx / 4)
        + torch.trunc(score)
        + torch.sign(score)
    ),
    "erf": lambda score, b, h, q_idx, kv_idx: torch.erf(score) + score.reciprocal().clamp(-1, 1),
    "erfc": lambda score, b, h, q_idx, kv_idx: torch.erfc(score) + torch.special.erfc(score - q_idx),
    "extrema": lambda score, b, h, q_idx, kv_idx: (
        torch.maximum(score, slopes[h]) + torch.minimum(score, temperature[kv_idx])
    ),
    "extrema beside NaN": lambda score, b, h, q_idx, kv_idx: (
        torch.fmax(torch.where(q_idx > kv_idx, math.nan, score), score * 0.5)
        + torch.fmin(score * 0.5, torch.where(q_idx > kv_idx, score, math.nan))
    ),
    "nan and inf": lambda score, b, h, q_idx, kv_idx: torch.where(torch.isnan(score) | torch.isinf(score), 0.0, score),
    "casts": lambda score, b, h, q_idx, kv_idx: (
        score + q_idx.float() * 0.1 + kv_idx.to(score.dtype) * 0.1 + score.int().type_as(score)
    ),
    "constants": lambda score, b, h, q_idx, kv_idx: (
        score + torch.ones_like(score) + score.new_zeros(()) + torch.full((), 0.5) + torch.tensor(0.25)
    ),
    "table in the mod": lambda score, b, h, q_idx, kv_idx: score * torch.tensor([1.0, 0.5, 0.25, 2.0])[h],
    "autograd function": lambda score, b, h, q_idx, kv_idx: Scaled.apply(score),
    "in place": in_place,
    "loop": looped,
    "helper": lambda score, b, h, q_idx, kv_idx: helper(score) + helper(score, factor=0.1),
    "dot of rows": lambda score, b, h, q_idx, kv_idx: score + torch.dot(rows[q_idx], columns[kv_idx]),
    "sum of a row": lambda score, b, h, q_idx, kv_idx: (
        score + (rows[q_idx] * columns[kv_idx]).sum() + rows[q_idx].amax()
    ),
    "stacked": lambda score, b, h, q_idx, kv_idx: score + torch.stack([rows[q_idx, 0], columns[kv_idx, 1]]).sum(),
    "mean": lambda score, b, h, q_idx, kv_idx: score + rows[q_idx].mean(),
    "module": Alibi(),
    "bound method": Alibi().forward,
    "object": Windowed(WINDOW),
    "partial": functools.partial(scaled_by, 0.5, slopes),
    "partial with names": functools.partial(
        lambda score, b, h, q_idx, kv_idx, cap: cap * torch.tanh(score / cap), cap=5.0
    ),
    "reflected": lambda score, b, h, q_idx, kv_idx: 1.0 - score + 2 * (S - q_idx) - 3 // (kv_idx + 1),
    "bytes that wrap": lambda score, b, h, q_idx, kv_idx: score + ((q_idx + kv_idx) * 50).to(torch.uint8) * 0.5,
    "bits": lambda score, b, h, q_idx, kv_idx: (
        score + ((q_idx ^ kv_idx) & 7) * 0.1 + (q_idx >> 2) - (kv_idx << 1) * 0.01
    ),
}


# Mods at which torch's own flex_attention fails on a GPU, so that there is nothing to compare with.
TORCH_FAILS_ON_CUDA = {"more activations": "logsigmoid under vmap", "table in the mod": "a table on the CPU"}


@pytest.mark.parametrize("name", SCORES)
def test_score_mods(qkv, name):
    if DEVICE == "cuda" and name in TORCH_FAILS_ON_CUDA:
        pytest.skip(f"torch fails at {TORCH_FAILS_ON_CUDA[name]}")
    assert_agrees(*qkv, score_mod=SCORES[name])


def chunked(size):
    return lambda b, h, q_idx, kv_idx: (kv_idx // size == q_idx // size) & (kv_idx <= q_idx)


def prefix_or(mask):
    return lambda b, h, q_idx, kv_idx: (kv_idx < lengths[b] // 2) | mask(b, h, q_idx, kv_idx)


def morton(index):
    x, y = index % 6, index // 6
    code = torch.zeros_like(index)
    for bit in range(3):
        code = code | ((x >> bit) & 1) << (2 * bit) | ((y >> bit) & 1) << (2 * bit + 1)
    return code


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


MASKS = {
    "causal": (causal, (None, None)),
    "everything": (lambda b, h, q_idx, kv_idx: q_idx >= 0, (None, None)),
    "nothing": (lambda b, h, q_idx, kv_idx: q_idx < 0, (None, None)),
    "empty rows": (lambda b, h, q_idx, kv_idx: (q_idx % 3 != 0) & (kv_idx <= q_idx), (None, None)),
    "window": (lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx <= WINDOW), (None, None)),
    "dilated": (lambda b, h, q_idx, kv_idx: (q_idx - kv_idx) % 3 == 0, (None, None)),
    "global and window": (
        lambda b, h, q_idx, kv_idx: ((q_idx - kv_idx).abs() <= 4) | (kv_idx < 3) | (q_idx < 3),
        (None, None),
    ),
    "chunked": (chunked(8), (None, None)),
    "lengths": (lambda b, h, q_idx, kv_idx: (kv_idx < lengths[b]) & (q_idx < lengths[b]), (B, None)),
    "documents": (lambda b, h, q_idx, kv_idx: ids[b, q_idx] == ids[b, kv_idx], (B, None)),
    "causal documents": (
        lambda b, h, q_idx, kv_idx: (docs[q_idx] == docs[kv_idx]) & causal(b, h, q_idx, kv_idx),
        (None, None),
    ),
    "nested documents": (
        lambda b, h, q_idx, kv_idx: q_idx - starts[docs[q_idx]] >= kv_idx - starts[docs[kv_idx]],
        (None, None),
    ),
    "prefix": (prefix_or(causal), (B, None)),
    "tree": (lambda b, h, q_idx, kv_idx: tree[q_idx, kv_idx], (None, None)),
    "heads": (lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() <= 2 * (h + 1), (None, H)),
    "2-d neighbourhood": (
        lambda b, h, q_idx, kv_idx: ((q_idx // 6 - kv_idx // 6).abs() <= 1) & ((q_idx % 6 - kv_idx % 6).abs() <= 2),
        (None, None),
    ),
    "morton": (lambda b, h, q_idx, kv_idx: morton(q_idx) // 8 == morton(kv_idx) // 8, (None, None)),
    "block diffusion": (
        lambda b, h, q_idx, kv_idx: torch.where(kv_idx < 16, kv_idx // 8 <= q_idx // 8, q_idx // 8 == kv_idx // 8),
        (None, None),
    ),
    "top keys": (lambda b, h, q_idx, kv_idx: (top[q_idx] == kv_idx // 8).any(), (None, None)),
    "bytes": (lambda b, h, q_idx, kv_idx: bytes_[b, kv_idx] == 1, (B, None)),
    "logical": (
        lambda b, h, q_idx, kv_idx: torch.logical_or(
            torch.logical_and(q_idx > 3, ~(kv_idx > 5)), torch.logical_not(q_idx > kv_idx)
        ),
        (None, None),
    ),
    "and_masks": (torch.nn.attention.flex_attention.and_masks(causal, chunked(16)), (None, None)),
    "or_masks": (torch.nn.attention.flex_attention.or_masks(causal, chunked(16)), (None, None)),
    "0-d offset": (lambda b, h, q_idx, kv_idx: q_idx + offset >= kv_idx, (None, None)),
}


@pytest.mark.parametrize("name", MASKS)
def test_mask_mods(qkv, name):
    mask, shape = MASKS[name]
    assert_agrees(*qkv, mask_mod=mask, shape=shape)


def test_both(qkv):
    assert_agrees(*qkv, score_mod=SCORES["alibi"], mask_mod=MASKS["documents"][0], shape=(B, None))


F64 = {
    "softcap": lambda score, b, h, q_idx, kv_idx: 5.0 * torch.tanh(score / 5.0),
    "bias": lambda score, b, h, q_idx, kv_idx: score + bias64[h, q_idx, kv_idx],
    "dot": lambda score, b, h, q_idx, kv_idx: score + torch.dot(rows64[q_idx], rows64[kv_idx]),
    "far logsigmoid": lambda score, b, h, q_idx, kv_idx: torch.nn.functional.logsigmoid(score - 25) * 1e6,
    "far softplus": lambda score, b, h, q_idx, kv_idx: torch.nn.functional.softplus(score + 20) * 1e6,
}
bias64, rows64 = bias.double(), rows.double()


@pytest.mark.skipif(DEVICE != "cpu", reason="f64 on the CPU only")
@pytest.mark.parametrize("name", F64)
def test_f64(qkv, name):
    assert_agrees(*(x.double() for x in qkv), score_mod=F64[name], mask_mod=causal)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["alibi", "softcap", "full bias", "key bias"])
def test_half_types(qkv, name, dtype):
    assert_agrees(*(x.to(dtype) for x in qkv), score_mod=SCORES[name], mask_mod=causal)
