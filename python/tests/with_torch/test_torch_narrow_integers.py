"""Arithmetic on 8- and 16-bit integers in a mod wraps as torch's; `//` and sign of reals have torch's values at their edges,
and so have hypot and atan2."""

import pytest
import torch

from heddle.torch import flex_attention

KEYS = 12


def captures():
    generator = torch.Generator().manual_seed(0)
    return {
        "i8": torch.randint(-128, 128, (KEYS,), generator=generator).to(torch.int8),
        "u8": torch.randint(0, 256, (KEYS,), generator=generator).to(torch.uint8),
        "i16": torch.randint(-(2**15), 2**15, (KEYS,), generator=generator).to(torch.int16),
        "i32": torch.arange(KEYS, dtype=torch.int32), "i64": torch.arange(KEYS), "flags": torch.arange(KEYS) % 3 == 0,
        "reals": torch.linspace(-2, 2, KEYS), "zero": torch.tensor(3), "seven": 7,
        "edges": torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, 1.0, -1.0, 0.3, 5.0, -5.0, 7.5, 2.0, 1e30]),
        "zeros": torch.tensor([0.0, -0.0, 1.0, -1.0] * 3),
        "divisors": torch.tensor([0.0, 0.75, -0.75, float("inf"), -float("inf"), 0.1, 0.5, -2.0, 3.0, float("nan"), -0.1, 1.0]),
    }


OF_INTEGERS = [
    "i8[k] * 2", "i8[k] << 3", "u8[k] * 7 // 3", "u8[k] - u8[q]", "-u8[k]", "~u8[k]", "abs(i8[k])", "u8[k] ** 3", "i8[k] + u8[k]",
    "i8[k] * i16[k]", "i16[k] * 3 + 1", "u8[k] + i32[k] * 100", "u8[k] + i64[k] * 100", "u8[k] * flags[k]", "u8[k] * seven",
    "u8[k] * zero", "u8[k] + 200", "u8[2:6][1] * i32[k]", "torch.clamp(i8[k] * 3, -100, 100)",
    "torch.where(flags[k], u8[k], i8[k]) * 5", "torch.square(i8[k])", "(u8[k] + 200) & 127", "torch.rsub(u8[k], 5)",
    "(u8[k] * 2).int() + 1", "(u8[k] * 2 > u8[k]).int()", "torch.maximum(u8[k] * 2, u8[q])", "torch.sign(-u8[k]).int()",
]
OF_REALS = [
    "edges[q] // divisors[k]", "torch.div(edges[q], divisors[k], rounding_mode='floor')", "edges[q] // 0.1", "edges[q] // -0.5",
    "edges[k] // 0.0", "torch.sign(edges[k])", "torch.sgn(edges[q] - divisors[k])", "(reals[k] * 10) // 0.3",
    "torch.hypot(edges[q], divisors[k])", "torch.atan2(zeros[q], zeros[k])",
]


@pytest.mark.parametrize("text", OF_INTEGERS + OF_REALS)
def test_values(text):
    read = eval(f"lambda q, k: {text}", {**captures(), "torch": torch})
    wanted = torch.stack([torch.stack([torch.as_tensor(read(torch.tensor(q), torch.tensor(k))).double() for k in range(KEYS)])
                          for q in range(KEYS)])
    as_read = wanted.float() if text in OF_REALS else wanted.int()

    def mod(score, b, h, q, k):
        found, expected = read(q, k), as_read[q, k]
        close = (found - expected).abs() <= 1e-6 * expected.abs() if text in OF_REALS else found == expected
        return torch.where(close | (found == expected) | ((found != found) & (expected != expected)), score, score - 30)

    zeros = torch.zeros(1, 1, KEYS, 8)
    o = flex_attention(zeros, zeros, torch.eye(KEYS)[None, None], score_mod=mod)
    torch.testing.assert_close(o, torch.full((1, 1, KEYS, KEYS), 1 / KEYS))
