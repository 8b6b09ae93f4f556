"""Integers of 64 bits on a GPU that do not fit i32: looked at without a wait, once for each version of a tensor."""

import pytest
import torch
from agreement import DEVICE

from heddle.torch import _wide_integers, create_block_mask, flex_attention


class Counted(_wide_integers.deque):
    def append(self, look):
        self.names.append(look.name)
        super().append(look)


@pytest.fixture(autouse=True)
def looks(monkeypatch):
    made = Counted()
    made.names = []
    monkeypatch.setattr(_wide_integers, "_looks", made)
    return made


def watch(**captures):
    _wide_integers.watch(captures)


def settle():
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    _wide_integers.judge_arrived()


@pytest.mark.parametrize("dtype, values, said", [
    (torch.int64, [0, 2**31], "int64 and held 2147483648 "),
    (torch.int64, [-(2**31) - 1, 0], "int64 and held -2147483649 "),
    (torch.int64, [2**63 - 1], "int64 and held 9223372036854775807 "),
    (torch.uint64, [3, 2**64 - 1], "uint64 and held 18446744073709551615 "),
    (torch.uint64, [2**31, 1], "uint64 and held 2147483648 "),
    (torch.uint32, [7, 2**32 - 1], "uint32 and held 4294967295 "),
])
def test_what_does_not_fit(dtype, values, said):
    x = torch.tensor(values, dtype=dtype, device=DEVICE)
    watch(ids=x)
    with pytest.raises(ValueError, match=f"capture 'ids' was {said}"):
        settle()
    settle()  # said once


def test_what_fits():
    for dtype, values in ((torch.int64, [-(2**31), 2**31 - 1]), (torch.uint64, [0, 2**31 - 1]), (torch.uint32, [0, 2**31 - 1])):
        watch(x=torch.tensor(values, dtype=dtype, device=DEVICE))
    watch(x=torch.tensor([2.0**40], device=DEVICE), y=torch.tensor([], dtype=torch.int64, device=DEVICE))
    settle()


def test_once_for_each_version(looks):
    x, other = torch.arange(6, device=DEVICE).view(2, 3), torch.arange(6, device=DEVICE)
    for _ in range(3):
        watch(x=x, other=other)
    assert looks.names == ["x", "other"]
    x[0, 1] = 2**40
    watch(x=x, other=other)
    assert looks.names == ["x", "other", "x"]
    with pytest.raises(ValueError, match="held 1099511627776 "):
        settle()
    with torch.inference_mode():
        inside = torch.arange(3, device=DEVICE)
    watch(inside=inside)
    watch(inside=inside)
    assert looks.names[3:] == ["inside"]
    settle()


@pytest.mark.skipif(DEVICE != "cuda", reason="on the CPU a call looks itself")
def test_calls_on_a_gpu(looks):
    q = torch.randn(1, 2, 64, 64, device=DEVICE, dtype=torch.bfloat16)
    ids = torch.arange(64, device=DEVICE) // 8
    score = lambda score, b, h, i, j: torch.where(ids[i] == ids[j], score, -torch.inf)  # noqa: E731
    mask = lambda b, h, i, j: ids[i] == ids[j]  # noqa: E731
    want = flex_attention(q, q, q, score)
    torch.testing.assert_close(
        flex_attention(q, q, q, block_mask=create_block_mask(mask, None, None, 64, 64, DEVICE)), want, atol=2e-2, rtol=0)
    assert looks.names == ["ids"]
    settle()
    for call in (lambda: flex_attention(q, q, q, score), lambda: flex_attention(q.clone().requires_grad_(), q, q, score)):
        ids[3] = 2**40
        call()
        torch.cuda.synchronize()
        with pytest.raises(ValueError, match="capture 'ids' was int64 and held 1099511627776 "):
            flex_attention(q, q, q, score)
        ids[3] = 0
        flex_attention(q, q, q, score)
        settle()


@pytest.mark.parametrize("number", ["window", "offset", "sum"])
def test_open_ints_of_torch_compile_do_not_wrap(number):
    """Where torch.compile keeps an int open, one of 2^30 and more compiles again: sums with it stay at the end of i32."""
    q = torch.randn(1, 2, 16, 8, generator=torch.Generator().manual_seed(1))

    def attended(n):
        mods = {"window": lambda b, h, i, j: (i - n < j) & (j < i + n), "offset": lambda b, h, i, j: i + n > j,
                "sum": lambda b, h, i, j: j < n + (2**31 - 2)}
        return mods[number]

    def attend(q, n):
        mask_mod = attended(n)
        return flex_attention(
            q, q, q, score_mod=lambda score, b, h, i, j: torch.where(mask_mod(b, h, i, j), score, 0.5 * score))

    torch._dynamo.reset()
    compiled = torch.compile(attend, backend="aot_eager", dynamic=True)
    i, j = torch.arange(16)[:, None], torch.arange(16)[None]
    for n in (3, 5, 2**30 - 1, 2**30, 2**31 - 1, 7, 2**31, 2**40, -5, -(2**31)):
        scores = q @ q.mT / 8**0.5
        want = torch.where(attended(n)(None, None, i, j), scores, 0.5 * scores).softmax(-1) @ q
        torch.testing.assert_close(compiled(q, n), want, msg=f"n is {n}")
