"""Gradients under torch.compile, the operators by torch's own checks, and gradients of torch's own flex_attention."""

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from torch.utils.checkpoint import checkpoint

from gradient_reference import assert_same
from heddle.torch import (
    AuxRequest, BlockMask, create_block_mask, flex_attention, scaled_dot_product_attention, varlen_attn)
from heddle.torch._call import Call
from heddle.torch._operands import operands

generator = torch.Generator().manual_seed(3)
q, k, v = (torch.randn(2, 4, 33, 16, generator=generator).requires_grad_() for _ in range(3))
slopes = torch.rand(4, generator=generator).requires_grad_()
table = torch.randn(4, 17, generator=generator).requires_grad_()
ids = torch.randint(0, 3, (2, 33), generator=generator).sort(-1).values


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.fixture(params=["eager", "aot_eager", "inductor"])
def compiled(request):
    return lambda function, **options: torch.compile(function, backend=request.param, fullgraph=True, **options)


def alibi(score, b, h, q_idx, kv_idx):
    return score + slopes[h] * (kv_idx - q_idx)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def documents(b, h, q_idx, kv_idx):
    return ids[b, q_idx] == ids[b, kv_idx]


def gradients(function, *given, leaves=None):
    leaves = given if leaves is None else leaves
    return torch.autograd.grad(function(*given).square().sum(), leaves)


def assert_compiles(compiled, function, *given, leaves=None):
    want = gradients(function, *given, leaves=leaves)
    assert any(x.any() for x in want)
    assert_same(gradients(compiled(function), *given, leaves=leaves), want, 1e-5)


def test_a_mod_from_outside(compiled):
    assert_compiles(compiled, lambda q, k, v: flex_attention(q, k, v, alibi), q, k, v, leaves=[q, k, v, slopes])


def test_mods_made_inside(compiled):
    def model(q, k, v, slopes, table):
        doubled = slopes * 2

        def score(score, b, h, q_idx, kv_idx):
            near = (q_idx - kv_idx).clamp(-8, 8) + 8
            return torch.tanh(score / 4) * 4 * doubled[h] + table[h, near]

        def mask(b, h, q_idx, kv_idx):
            return (ids[b, q_idx] == ids[b, kv_idx]) & (q_idx >= kv_idx)

        return flex_attention(q * 1.5, k, v, score, create_block_mask(mask, 2, None, 33, 33, "cpu")) + 1

    assert_compiles(compiled, model, q, k, v, slopes, table)


def test_only_the_capture_is_learned(compiled):
    frozen = q.detach()
    assert_compiles(compiled, lambda slopes: flex_attention(
        frozen, frozen, frozen, lambda score, b, h, q_idx, kv_idx: score * slopes[h]), slopes)


def test_lse(compiled):
    def model(q, k, v):
        out, aux = flex_attention(q, k, v, alibi, return_aux=AuxRequest(lse=True))
        return out * aux.lse[..., None]

    assert_compiles(compiled, model, q, k, v, leaves=[q, k, v, slopes])


@pytest.mark.parametrize("kind", ["lazy", "lists"])
def test_block_masks_from_outside(compiled, kind):
    mask = create_block_mask(documents, 2, None, 33, 33, "cpu", BLOCK_SIZE=16)
    if kind == "lists":
        mask = BlockMask.from_kv_blocks(
            mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices, 16, documents, (33, 33))
    assert_compiles(compiled, lambda q, k, v: flex_attention(q, k, v, alibi, mask), q, k, v, leaves=[q, v, slopes])


def test_sdpa(compiled):
    bias = torch.randn(33, 33, generator=generator).requires_grad_()
    assert_compiles(compiled, lambda q, k, v, bias: scaled_dot_product_attention(q, k, v, bias)
                    + scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v, bias)


def test_varlen(compiled):
    starts = torch.tensor([0, 10, 33], dtype=torch.int32)

    def model(q, k, v):
        rows = [x[0].transpose(0, 1) for x in (q, k, v)]
        return varlen_attn(*rows, starts, starts, 23, 23, window_size=(-1, 0))

    assert_compiles(compiled, model, q, k, v)


def test_groups_and_other_layouts(compiled):
    packed = torch.randn(2, 33, 8, 16, generator=generator).requires_grad_()

    def model(packed):
        q, k, v = packed.transpose(1, 2).split([4, 2, 2], 1)
        return flex_attention(q, k, v, alibi, enable_gqa=True)

    assert_compiles(compiled, model, packed, leaves=[packed, slopes])


def test_checkpoint_inside(compiled):
    def model(q, k, v):
        return checkpoint(lambda q: flex_attention(q.sin(), k, v, alibi), q, use_reentrant=False)

    assert_compiles(compiled, model, q, k, v, leaves=[q, k, slopes])


def test_other_lengths(compiled):
    fast = compiled(lambda q, k, v: flex_attention(q, k, v, alibi))
    for length in (16, 17, 24, 33):
        x = [one[:, :, :length].detach().requires_grad_() for one in (q, k, v)]
        want = gradients(lambda *x: flex_attention(*x, alibi), *x, leaves=[*x, slopes])
        assert_same(gradients(fast, *x, leaves=[*x, slopes]), want, 1e-5)


def dynamo_lifts_no_mods():
    """Whether Dynamo fails where a mod captures a tensor of torch.func.grad: torch 2.15 has an assertion there."""

    def model(slopes):
        def loss(slopes):
            return flex.flex_attention(x, x, x, lambda score, b, h, q_idx, kv_idx: score * slopes[h]).sum()

        return torch.func.grad(loss)(slopes)

    x = torch.randn(1, 2, 16, 16)
    try:
        torch.compile(model, backend="eager", fullgraph=True)(torch.ones(2))
    except AssertionError as error:
        return "FakeTensor" in str(error)
    except Exception:  # noqa: BLE001  torch 2.11 fails later
        return False
    finally:
        torch.compiler.reset()
    return False


def test_torch_func_inside(compiled):
    if dynamo_lifts_no_mods():
        pytest.skip("Dynamo does not lift mods under torch.func.grad, nor those of torch's own flex_attention")
    inputs = [x.detach() for x in (q, k, v, slopes)]

    def model(q, k, v, slopes):
        def loss(slopes):
            return flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score * slopes[h]).square().sum()

        return torch.func.grad(loss)(slopes)

    assert_same([compiled(model)(*inputs)], [model(*inputs)], 1e-5)


def test_a_training_step_of_a_module(compiled):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            self.qkv, self.slopes = torch.nn.Linear(16, 48), torch.nn.Parameter(torch.rand(2))
            self.mask = create_block_mask(causal, None, None, 20, 20, "cpu")

        def score(self, score, b, h, q_idx, kv_idx):
            return score - self.slopes[h] * (q_idx - kv_idx)

        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            return flex_attention(q, k, v, self.score, self.mask)

    x, losses = torch.randn(2, 20, 16, generator=generator), []
    for wrap in (lambda block: block, compiled):
        block = Block()
        step, optimizer = wrap(block), torch.optim.SGD(block.parameters(), 0.1)
        for _ in range(3):
            loss = step(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            assert block.slopes.grad.any()
            optimizer.step()
            losses.append(loss.item())
    assert losses[3:] == pytest.approx(losses[:3], rel=1e-5) and losses[2] < losses[0]


def test_no_grad_leaves_no_trace(compiled):
    with torch.no_grad():
        assert compiled(flex_attention)(q, k, v, alibi).grad_fn is None


def test_torchs_own_check_of_the_operators():
    call = Call(q, k, v, scale=0.5, with_lse=True, score="score * gains[h] + bias[h] * factor",
                mask="kv_idx <= q_idx + shift", params={"factor": 0.5, "shift": 2},
                captures={"gains": slopes, "bias": torch.rand(4), "unread": torch.rand(2)},
                options={"sinks": torch.rand(4).requires_grad_()})
    for inputs in ((q, k, v), [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]):
        inputs = [x.detach().requires_grad_() for x in inputs]
        for words in (1, 2):
            torch.library.opcheck(torch.ops.heddle.forward.default, (*inputs, *operands(call, words)))
        with torch.no_grad():
            given = [x.detach() for x in inputs]
            out, lse, lse_rest = torch.ops.heddle.forward(*given, *operands(call, 2))
            torch.library.opcheck(
                torch.ops.heddle.backward.default,
                (out, None, out, lse, lse_rest, *given, *operands(call, 2), [True, True, True, True], ["gains"]),
                test_utils=("test_schema", "test_faketensor"))


def test_the_operator_without_lse_has_no_backward():
    out, *_ = torch.ops.heddle.forward(q, k, v, *operands(Call(q, k, v), 0))
    with pytest.raises(RuntimeError, match="lse_words=0"):
        out.sum().backward()


@pytest.fixture
def torchs_flex(monkeypatch):
    """Torch's own, which refuses gradients on a CPU though its code has them."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    return torch.compile(flex.flex_attention, backend="eager")


TORCHS = {
    "alibi": (alibi, None, [slopes]),
    "causal": (None, causal, []),
    "softcap of documents": (lambda score, b, h, q_idx, kv_idx: 5 * torch.tanh(score / 5), documents, []),
    "table": (lambda score, b, h, q_idx, kv_idx: score + table[h, (q_idx - kv_idx).clamp(-8, 8) + 8], causal, [table]),
    "gains": (lambda score, b, h, q_idx, kv_idx: score * slopes[h], documents, [slopes])}


@pytest.mark.parametrize("name", TORCHS)
@pytest.mark.parametrize("groups", [1, 2])
def test_torchs_flex_attention(torchs_flex, name, groups, monkeypatch):
    score_mod, mask_mod, leaves = TORCHS[name]
    given = [x.detach().double().requires_grad_() for x in (q, k[:, ::groups], v[:, ::groups])]
    leaves = [*given, *leaves]
    made = []
    for function, create in ((flex_attention, create_block_mask), (torchs_flex, flex.create_block_mask)):
        mask = None if mask_mod is None else create(mask_mod, 2, None, 33, 33, "cpu")
        out, aux = function(
            *given, score_mod=score_mod, block_mask=mask, enable_gqa=groups > 1, return_aux=AuxRequest(lse=True))
        made.append(torch.autograd.grad(out.square().sum() + aux.lse.sum(), leaves))
    assert_same(*made, 1e-5 if len(leaves) > 3 else 1e-12)  # captures are f32
