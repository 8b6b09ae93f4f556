"""Traces: of which mods, how often, and which mods are refused."""

import functools

import pytest
import torch

import heddle
import heddle.torch
from heddle.torch import create_block_mask, flex_attention, trace_counts


def inputs(batch=1, heads=2, length=16, head_dim=8, dtype=torch.float32):
    generator = torch.Generator().manual_seed(batch * 100 + length)
    return [torch.randn(batch, heads, length, head_dim, dtype=dtype, generator=generator) for _ in range(3)]


def traces_of(function):
    before = trace_counts()["traces"]
    function()
    return trace_counts()["traces"] - before


def test_another_number_length_or_batch_traces_nothing():
    def call(window, slope, batch, length):
        table = torch.randn(length, 2)

        def score(score, b, h, q_idx, kv_idx):
            return score + table[q_idx, h] * slope

        def mask(b, h, q_idx, kv_idx):
            return (q_idx - kv_idx).abs() <= window

        q, k, v = inputs(batch, length=length)
        out = flex_attention(q, k, v, score, create_block_mask(mask, None, None, length, length, "cpu"))
        s = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + table.T[:, :, None] * slope
        i = torch.arange(length)
        want = s.masked_fill((i[:, None] - i).abs() > window, -torch.inf).softmax(-1) @ v
        torch.testing.assert_close(out, want)

    assert traces_of(lambda: call(3, 0.5, 1, 16)) == 2
    for arguments in ((4, 0.5, 1, 16), (5, 2.0, 1, 16), (5, -0.0, 3, 16), (6, 1e-3, 2, 24), (0, 1.0, 1, 1)):
        assert traces_of(lambda: call(*arguments)) == 0, arguments


def test_the_same_expression_of_a_new_value():
    """Numbers are params, so that a kernel of another number is the same kernel."""
    texts = set()
    for cap in (5.0, 7.0):
        mods = heddle.torch._flex.Mods(torch.device("cpu"))
        texts.add(str(mods.score(lambda score, b, h, q_idx, kv_idx: cap * torch.tanh(score / cap))))
        assert mods.params == {"cap": cap}
    assert len(texts) == 1


def test_a_number_that_python_needs_makes_another_expression():
    def call(steps):
        def score(score, b, h, q_idx, kv_idx):
            for _ in range(steps):
                score = score * 2
            return score

        q, k, v = inputs()
        torch.testing.assert_close(flex_attention(q, k, v, score), flex_attention(q, k, v, scale=8**-0.5 * 2**steps))

    assert traces_of(lambda: call(1)) >= 1
    assert traces_of(lambda: call(3)) >= 1
    assert traces_of(lambda: call(1)) == traces_of(lambda: call(3)) == 0


def test_a_branch_on_a_number_holds_for_one_side():
    def call(window):
        def score(score, b, h, q_idx, kv_idx):
            return torch.where(q_idx - kv_idx < window, score, 0.0) if window > 0 else score

        q, k, v = inputs()
        return flex_attention(q, k, v, score)

    q, k, v = inputs()
    plain = flex_attention(q, k, v)
    assert traces_of(lambda: call(4)) == 1
    assert traces_of(lambda: call(9)) == 0
    assert not torch.equal(call(4), call(9))
    assert torch.equal(call(-1), plain) and torch.equal(call(0), plain)
    assert traces_of(lambda: call(5)) == 0


def test_an_attribute_of_an_object_counts():
    class Mod:
        def __init__(self, factor):
            self.factor, self.table = factor, torch.arange(16.0)

        def __call__(self, score, b, h, q_idx, kv_idx):
            return score + self.table[kv_idx] * self.factor

    q, k, v = inputs()
    mod = Mod(1.0)
    first = flex_attention(q, k, v, mod)
    mod.factor = 2.0
    second = flex_attention(q, k, v, mod)
    mod.table = torch.zeros(16)
    assert not torch.equal(first, second)
    torch.testing.assert_close(flex_attention(q, k, v, mod), flex_attention(q, k, v))


def test_a_property_is_read_each_time():
    class Mod:
        @property
        def factor(self):
            return next(factors)

        def __call__(self, score, b, h, q_idx, kv_idx):
            return score * self.factor

    factors = iter([1.0, 3.0])
    mod = Mod()
    q, k, v = inputs()
    torch.testing.assert_close(flex_attention(q, k, v, mod), flex_attention(q, k, v))
    torch.testing.assert_close(flex_attention(q, k, v, mod), flex_attention(q, k, v, scale=3 * 8**-0.5))


def test_a_tensor_changed_in_place_is_read_again():
    table = torch.zeros(16)
    q, k, v = inputs()

    def score(score, b, h, q_idx, kv_idx):
        return score + table[kv_idx]

    before = flex_attention(q, k, v, score)
    table[3] = 5
    after = flex_attention(q, k, v, score)
    assert not torch.equal(before, after)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, table.expand(16, 16))
    torch.testing.assert_close(after, want)


def test_a_shape_that_the_mod_reads():
    def call(length):
        table = torch.arange(float(length))

        def score(score, b, h, q_idx, kv_idx):
            return score + table[kv_idx] / table.shape[0] + table.flip(0)[kv_idx]

        q, k, v = inputs(length=length)
        bias = table / length + table.flip(0)
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias.expand(length, length))
        torch.testing.assert_close(flex_attention(q, k, v, score), want)

    call(16)
    call(12)


def test_reads_outside_get_the_nearest_element():
    table = torch.arange(4.0)
    q, k, v = inputs()
    got = flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + table[kv_idx - 2])
    index = torch.arange(16) - 2  # what is negative counts from the end
    bias = table[torch.where(index < 0, index + 4, index).clamp(0, 3)]
    torch.testing.assert_close(got, torch.nn.functional.scaled_dot_product_attention(q, k, v, bias.expand(16, 16)))
    pages = torch.tensor([1, 0, -1, -1])
    seen = torch.tensor([True, False])
    mask = create_block_mask(
        lambda b, h, q_idx, kv_idx: torch.where(pages[kv_idx // 4] >= 0, seen[pages[kv_idx // 4]], False),
        None,
        None,
        16,
        16,
        "cpu",
        BLOCK_SIZE=4,
    )
    assert mask.to_dense()[0, 0, 0].tolist() == [0, 1, 0, 0]


def refused(error, sentence, call):
    with pytest.raises(error, match=sentence):
        call()


def test_a_branch_names_the_line():
    q, k, v = inputs()

    def branches(score, b, h, q_idx, kv_idx):
        if q_idx > kv_idx:
            return score
        return -score

    refused(
        TypeError,
        r"test_torch_tracing.py:\d+: if q_idx > kv_idx.*torch.where",
        lambda: flex_attention(q, k, v, branches),
    )
    refused(TypeError, "q_idx", lambda: flex_attention(q, k, v, lambda s, b, h, q_idx, kv_idx: s * int(q_idx)))


def test_an_operation_without_an_expression_is_named():
    q, k, v = inputs()

    def largest(score, b, h, q_idx, kv_idx):
        return torch.cummax(q[0, 0, q_idx], 0)[0][kv_idx % 8] + score

    refused(
        NotImplementedError,
        r"cummax has no expression.*test_torch_tracing.py:\d+: return torch.cummax",
        lambda: flex_attention(q, k, v, largest),
    )
    wide = torch.randn(16, 1000)
    refused(
        NotImplementedError,
        "1000 elements",
        lambda: flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + wide[q_idx].sum()),
    )


def test_wrong_results():
    q, k, v = inputs()
    refused(ValueError, "returned NoneType", lambda: flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: None))
    refused(
        TypeError, r"shape \[2, 8\]", lambda: flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: q[0, :, q_idx])
    )
    refused(TypeError, "integers; bool", lambda: create_block_mask(lambda b, h, q, k: q - k, None, None, 4, 4, "cpu"))
    refused(AssertionError, "positional", lambda: create_block_mask(lambda b, h: b, None, None, 4, 4, "cpu"))


def test_an_error_of_the_mod_passes():
    q, k, v = inputs()

    def raises(score, b, h, q_idx, kv_idx):
        raise KeyError("mine")

    refused(KeyError, "mine", lambda: flex_attention(q, k, v, raises))


def test_a_traced_value_outlives_nothing():
    kept = []
    q, k, v = inputs()

    def leaks(score, b, h, q_idx, kv_idx):
        kept.append(score)
        return score

    flex_attention(q, k, v, leaks)
    refused(RuntimeError, "outside of its trace", lambda: kept[0] + 1)


def test_gradients_are_recorded_but_under_no_grad():
    q, k, v = inputs()
    learned = torch.nn.Parameter(torch.ones(2))

    def score(score, b, h, q_idx, kv_idx):
        return score * learned[h]

    assert flex_attention(k, k, v, score).requires_grad
    assert flex_attention(q.requires_grad_(), k, v).requires_grad
    with torch.no_grad():
        assert not flex_attention(q, k, v, score).requires_grad
    assert not flex_attention(q.detach(), k, v).requires_grad


def test_one_function_of_several_shapes_and_types():
    @functools.lru_cache(None)
    def table(dtype, rank):
        return torch.ones((16,) * rank, dtype=dtype)

    for dtype in (torch.float32, torch.float16, torch.int64, torch.bool):
        for rank in (1, 2):
            values = table(dtype, rank)

            def score(score, b, h, q_idx, kv_idx):
                return score + values[(q_idx, kv_idx)[:rank]]

            q, k, v = inputs()
            torch.testing.assert_close(flex_attention(q, k, v, score), flex_attention(q, k, v))


def test_memory_and_kept_expressions_stay_bounded():
    q, k, v = inputs(length=4)
    for _ in range(50):
        table = torch.zeros(4)
        flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + table[kv_idx])
    kept = trace_counts()["kept"]
    for _ in range(200):
        table = torch.zeros(4)
        flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + table[kv_idx])
    assert trace_counts()["kept"] - kept <= 1


def test_a_dense_bias_where_it_is_allowed():
    q, k, v = inputs(batch=2)
    values = torch.randn(2, 16, 3)

    def score(score, b, h, q_idx, kv_idx):
        return score + torch.cummax(values[b, q_idx], 0)[0][1] * kv_idx

    refused(NotImplementedError, "cummax has no expression", lambda: flex_attention(q, k, v, score))
    bias = values.cummax(-1)[0][:, None, :, 1, None] * torch.arange(16)
    with heddle.torch.allow_dense():
        torch.testing.assert_close(
            flex_attention(q, k, v, score), torch.nn.functional.scaled_dot_product_attention(q, k, v, bias)
        )
        refused(
            ValueError,
            "more to a score than adding",
            lambda: flex_attention(
                q, k, v, lambda score, b, h, q_idx, kv_idx: torch.cummax(torch.stack([score, score * 2]), 0)[0][1]
            ),
        )
        mask = create_block_mask(
            lambda b, h, q_idx, kv_idx: torch.cummax(values[b, q_idx], 0)[0][1] * kv_idx > -3, 2, None, 16, 16, "cpu"
        )
    want = values.cummax(-1)[0][:, None, :, 1, None] * torch.arange(16) > -3
    torch.testing.assert_close(
        flex_attention(q, k, v, block_mask=mask),
        torch.nn.functional.scaled_dot_product_attention(q, k, v, want).nan_to_num(0),
    )
    refused(NotImplementedError, "cummax has no expression", lambda: flex_attention(q, k, v, score))


def test_a_negative_number_indexes_from_the_end():
    table = torch.randn(5, 16)
    q, k, v = inputs()
    for row in (1, -1, 3, -2, 1):

        def score(score, b, h, q_idx, kv_idx):
            return score + table[row, kv_idx]

        want = flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + table.select(0, row % 5)[kv_idx])
        assert torch.equal(flex_attention(q, k, v, score), want), row


def test_a_list_of_indices_counts_from_the_end():
    table = torch.randn(5)
    q, k, v = inputs()
    got = flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score * table[[-1, 0]].sum())
    want = flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score * (table[4] + table[0]))
    assert torch.equal(got, want)
    with pytest.raises(NotImplementedError, match="index 5 on an axis of extent 5"):
        flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score * table[[5, 0]].sum())


def test_numbers_of_different_types_are_different_params():
    steps = 3
    q, k, v = inputs()
    got = flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score * (steps + 1.0) + kv_idx // (steps + 1))
    torch.testing.assert_close(
        got, flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score * 4.0 + kv_idx // 4)
    )


def test_the_type_of_a_number():
    """A mod may ask what a number is."""
    q, k, v = inputs()
    for factor, scale in ((2, 2.0), (0.5, 1.0)):

        def score(score, b, h, q_idx, kv_idx):
            return score * factor if isinstance(factor, int) else score

        torch.testing.assert_close(flex_attention(q, k, v, score), flex_attention(q, k, v, scale=8**-0.5 * scale))


def test_captures_of_score_and_mask_keep_apart():
    """The mask's capture `ids` is mask_ids in its expression; the score has one that is called so."""
    mask_ids, ids = torch.randn(16), torch.randint(0, 2, (16,)).float()
    mask, _ = torch.randn(16), torch.randint(0, 2, (16,)).float()
    q, k, v = inputs()
    for bias, kinds, score, mask_mod in (
        (
            mask_ids,
            ids,
            lambda score, b, h, q_idx, kv_idx: score + mask_ids[kv_idx],
            lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx],
        ),
        (
            mask,
            _,
            lambda score, b, h, q_idx, kv_idx: score + mask[kv_idx],
            lambda b, h, q_idx, kv_idx: _[q_idx] == _[kv_idx],
        ),
    ):
        got = flex_attention(q, k, v, score, create_block_mask(mask_mod, None, None, 16, 16, "cpu"))
        dense = torch.where(kinds[:, None] == kinds, bias, -torch.inf)
        torch.testing.assert_close(got, heddle.torch.scaled_dot_product_attention(q, k, v, dense))


@pytest.mark.parametrize("read", [torch.numel, torch.Tensor.numel, len, lambda x: x.stride(0), lambda x: x.nbytes])
def test_what_a_mod_asks_of_a_tensors_size_is_asked_again(read):
    q, k, v = inputs()
    for table in (torch.zeros(3, 4), torch.zeros(6, 2), torch.zeros(4, 3).t(), torch.zeros(9, 4)):
        got = flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score * (read(table) / 4))
        torch.testing.assert_close(got, flex_attention(q, k, v, scale=8**-0.5 * read(table) / 4))


def test_expressions_of_many_numbers_are_forgotten():
    """A number that each call changes, and that Python needs, does not fill the memory."""
    q, k, v = inputs(length=4)
    before = trace_counts()["kept"]
    for steps in range(100):
        flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + sum(range(steps)))
    assert trace_counts()["kept"] <= before + 16


def test_writes_reach_other_views_or_raise():
    """A value that another view has changed is an error, never its old content."""
    rows = torch.randn(16, 4)
    q, k, v = inputs()

    def doubled(score, b, h, q_idx, kv_idx):
        row = rows[q_idx].clone()
        row.view(-1).mul_(2)
        return score + row.sum()

    def detached(score, b, h, q_idx, kv_idx):
        score.detach().add_(1)
        return score

    def halves(score, b, h, q_idx, kv_idx):
        row = rows[q_idx].clone()
        left = row[:2]
        row *= 2
        return score + left.sum()

    for mod in (doubled, detached, halves):
        with pytest.raises(NotImplementedError, match="shares its memory"):
            flex_attention(q, k, v, mod)

    def users(score, b, h, q_idx, kv_idx):
        row = rows[0]
        row *= 2
        return score + row.sum()

    with pytest.raises(NotImplementedError, match="writes into a tensor"):
        flex_attention(q, k, v, users)

    def fine(score, b, h, q_idx, kv_idx):
        row = rows[q_idx]
        row *= 2
        flat = row.view(-1)
        flat += 1
        return score + flat.sum()

    got = flex_attention(q, k, v, fine)
    want = flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + (rows[q_idx] * 2 + 1).sum())
    torch.testing.assert_close(got, want)


def test_too_many_indices():
    table = torch.randn(5)
    q, k, v = inputs()
    for index in (lambda h, kv_idx: table[h, kv_idx], lambda h, kv_idx: table[..., 0, kv_idx]):
        with pytest.raises(IndexError, match="too many indices"):
            flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + index(h, kv_idx))
