"""Integers of captures that do not fit i32: refused by name, wherever a capture goes."""

import numpy as np
import pytest

import heddle

X = np.ones((1, 1, 4, 8), np.float32)


def reads(array):
    return lambda score, b, h, q_idx, kv_idx: score + array[kv_idx]


@pytest.mark.parametrize(
    "values, said",
    [
        (np.array([0, 1, 2**31, 3]), r"is i64 and holds 2147483648 at \[2\]"),
        (np.array([0, 1, 2, -(2**31) - 1]), r"is i64 and holds -2147483649 at \[3\]"),
        (np.array([2**63 - 1, 1, 2, 3]), r"is i64 and holds 9223372036854775807 at \[0\]"),
        (np.array([0, 2**64 - 1, 2, 3], np.uint64), r"is u64 and holds 18446744073709551615 at \[1\]"),
        (np.array([0, 1, 2**32 - 1, 3], np.uint32), r"is u32 and holds 4294967295 at \[2\]"),
    ],
)
def test_refused(values, said):
    with pytest.raises(ValueError, match=rf"capture 'values' {said}; .* -2147483648 to 2147483647 are accepted"):
        heddle.attention(X, X, X, score_mod=lambda score, b, h, q_idx, kv_idx: score + values[kv_idx])


def test_the_place_in_a_table():
    table = np.zeros((3, 8), np.int64)[:, ::2]
    table[1, 2] = 2**40
    with pytest.raises(ValueError, match=r"holds 1099511627776 at \[1, 2\]"):
        heddle.attention(X, X, X, score_mod="score + table[q_idx % 3, kv_idx]", captures={"table": table})


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.uint32])
def test_what_fits_is_right(dtype):
    values = np.array([0, 2**31 - 1, 7, 1], dtype)
    if dtype is np.int64:
        values[2] = -(2**31)
    mask = heddle.BlockMask.build(lambda b, h, q_idx, kv_idx: values[kv_idx] > q_idx, 4, 4, block=1)
    shown = np.array([list(line) for line in str(mask).splitlines()]) == "#"
    np.testing.assert_array_equal(shown, values[None, :].astype(object) > np.arange(4)[:, None])


def test_every_way_of_a_capture():
    ids = np.array([0, 0, 2**32, 2**32])
    same = lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx]  # noqa: E731
    fits = np.array([0, 0, 1, 1])
    mask = heddle.BlockMask.build(lambda b, h, q_idx, kv_idx: fits[q_idx] == fits[kv_idx], 4, 4, block=2)
    plan = heddle.AttentionPlan(X, X, X, score_mod=reads(fits))
    o, lse = heddle.attention(X, X, X, return_lse=True)
    name = "array"
    for call in (
        lambda: heddle.BlockMask.build(same, 4, 4),
        lambda: mask.update(captures={"fits": ids}),
        lambda: plan.run(X, X, X, captures={name: ids}),
        lambda: heddle.attention_backward(X, X, X, o, lse, X, score_mod=reads(ids)),
        lambda: heddle.explain(X, X, X, mask_mod=same),
        lambda: heddle.check(X, X, X, o, mask_mod=same),
    ):
        with pytest.raises(ValueError, match=r"holds 4294967296 at \[2\]"):
            call()


def test_a_kept_plan_looks_again():
    ids = np.array([0, 0, 1, 1])
    same = lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx]  # noqa: E731
    heddle.attention(X, X, X, mask_mod=same)
    ids[3] = 2**33
    with pytest.raises(ValueError, match=r"holds 8589934592 at \[3\]"):
        heddle.attention(X, X, X, mask_mod=same)


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**40, 2**63, -(2**63) - 1, 10**30])
def test_numbers_of_a_mods_code(number):
    for mod in (
        lambda score, b, h, q_idx, kv_idx: score * number,
        lambda score, b, h, q_idx, kv_idx: heddle.where(kv_idx < number, score, 0.0),
        lambda score, b, h, q_idx, kv_idx: np.maximum(score, number),
    ):
        with pytest.raises(ValueError, match=f"integers of i32 .*, and {number} is none"):
            heddle.attention(X, X, X, score_mod=mod)
