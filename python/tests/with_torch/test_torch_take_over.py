"""Unmodified code on heddle."""

import inspect

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.attention import flex_attention as flex
from torch.nn.attention import activate_flash_attention_impl, list_flash_attention_impls, restore_flash_attention_impl
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import AuxRequest, varlen_attn

import heddle.torch
from heddle.torch import _take_over

flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
q = torch.randn(2, 4, 33, 16)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def double(score, b, h, q_idx, kv_idx):
    return score * 2


@pytest.fixture(autouse=True)
def fresh():
    heddle.torch.clear_log()
    yield
    assert torch.nn.functional.scaled_dot_product_attention is heddle.torch._originals.scaled_dot_product_attention


def went(function):
    return {entry.where: entry.count for entry in heddle.torch.log() if entry.function == function}


def test_names_imported_before_are_reached():
    want = flex_attention(q, q, q, double, create_block_mask(causal, None, None, 33, 33, "cpu"))
    with heddle.torch.enabled():
        mask = create_block_mask(causal, None, None, 33, 33, "cpu", _compile=True)
        got = flex_attention(q, q, q, double, mask)
    assert isinstance(mask, heddle.torch.BlockMask)
    torch.testing.assert_close(got, want)
    assert went("flex_attention") == {"heddle": 1} and went("create_block_mask") == {"heddle": 1}
    assert not isinstance(create_block_mask(causal, None, None, 33, 33, "cpu"), heddle.torch.BlockMask)
    torch.testing.assert_close(flex_attention(q, q, q, double, mask), want)
    assert went("flex_attention") == {"heddle": 1}


def test_a_module_of_torchs():
    module = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    x = torch.randn(2, 5, 16)
    want = module(x, x, x, need_weights=False)[0]
    with heddle.torch.enabled():
        with torch.no_grad():
            got = module(x, x, x, need_weights=False)[0]
        module(x, x, x, need_weights=False)[0].sum().backward()
    torch.testing.assert_close(got, want.detach())
    assert went("scaled_dot_product_attention") == {"heddle": 2}


def test_what_heddle_lacks_goes_to_torch():
    def largest(score, b, h, q_idx, kv_idx):
        return score + torch.cummax(torch.stack([q_idx, kv_idx]), 0)[0][1]

    want = flex_attention(q, q, q, largest)
    with heddle.torch.enabled():
        torch.testing.assert_close(flex_attention(q, q, q, largest), want)
    ((reason, count),) = went("flex_attention").items()
    assert reason.startswith("torch: cummax has no expression") and count == 1


def test_an_error_of_the_user_is_no_fallback():
    with heddle.torch.enabled(), pytest.raises(ValueError, match="embedding dimension"):
        flex_attention(q, q[..., :8], q)


def test_compiled():
    with heddle.torch.enabled():
        torch._dynamo.reset()
        fast = torch.compile(flex_attention, backend="aot_eager", fullgraph=True)
        got = fast(q, q, q, double)
    torch._dynamo.reset()
    torch.testing.assert_close(got, heddle.torch.flex_attention(q, q, q, double))


def test_nested():
    heddle.torch.activate()
    with heddle.torch.enabled():
        pass
    torch.nn.functional.scaled_dot_product_attention(q, q, q)
    heddle.torch.deactivate()
    assert went("scaled_dot_product_attention") == {"heddle": 1}
    with pytest.raises(RuntimeError, match="without activate"):
        heddle.torch.deactivate()


def test_flash_attention_implementation():
    assert "heddle" in list_flash_attention_impls()
    starts = torch.tensor([0, 4, 10], dtype=torch.int32)
    x = torch.randn(10, 2, 8)
    activate_flash_attention_impl("heddle")
    try:
        out, lse = varlen_attn(x, x, x, starts, starts, 6, 6, window_size=(2, 0), return_aux=AuxRequest(lse=True))
        sdpa = torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, 0.0, True)
    finally:
        restore_flash_attention_impl()
    torch.testing.assert_close(out, heddle.torch.varlen_attn(x, x, x, starts, starts, 6, 6, window_size=(2, 0)))
    assert lse.shape == (2, 10)
    torch.testing.assert_close(sdpa[0], torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))
    with pytest.raises(NotImplementedError):
        torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, 0.0, True)


class Watched(torch.Tensor):
    """A subclass that sees calls of torch's functions."""


def test_tensor_subclasses_go_to_torch():
    with heddle.torch.enabled():
        got = torch.nn.functional.scaled_dot_product_attention(q.as_subclass(Watched), q, q)
    assert type(got) is Watched and went("scaled_dot_product_attention") == {"torch: a tensor subclass": 1}


ACCEPTED_BY_TORCH = {
    "a scale of infinity": lambda: torch.nn.functional.scaled_dot_product_attention(q * 0, q, q, scale=torch.inf),
    "8-bit capture": lambda t=q[0, 0].to(torch.float8_e4m3fnuz): flex_attention(
        q, q, q, lambda score, b, h, i, j: score + t[i, j % 16].float()
    ),
}


@pytest.mark.parametrize("name", ACCEPTED_BY_TORCH)
def test_what_only_torch_accepts_goes_to_torch(name):
    want = ACCEPTED_BY_TORCH[name]()
    with heddle.torch.enabled():
        torch.testing.assert_close(ACCEPTED_BY_TORCH[name](), want, equal_nan=True)
    assert any(entry.where.startswith("torch: ") for entry in heddle.torch.log())


@pytest.mark.parametrize("lengths", [(33, 33), (5, 33)])
@pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
def test_a_causal_bias_that_goes_to_torch(monkeypatch, make, lengths):
    monkeypatch.setattr(_take_over, "is_left_to_torch", lambda *_: True)
    call = lambda: torch.nn.functional.scaled_dot_product_attention(q[..., :lengths[0], :], q, q, make(*lengths))  # noqa: E731
    want = call()
    with heddle.torch.enabled():
        torch.testing.assert_close(call(), want)
        torch.compiler.reset()
        torch.testing.assert_close(torch.compile(call, backend="aot_eager")(), want)
        with pytest.raises(ValueError, match="CausalBias should not be used with causal=True"):
            torch.nn.functional.scaled_dot_product_attention(q, q, q, make(33, 33), is_causal=True)


def test_torchscript():
    """torch.jit.script takes torch's operator, and torch.jit.trace records it."""
    def attention(q):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    with heddle.torch.enabled():
        for made in (torch.jit.script(attention), torch.jit.trace(attention, (q,))):
            assert "scaled_dot_product_attention" in str(made.graph)
            torch.testing.assert_close(made(2 * q), attention(2 * q))
        layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True, dropout=0.0)
        torch.testing.assert_close(torch.jit.script(layer)(q[0]), layer(q[0]))


STARTS = torch.tensor([0, 4], dtype=torch.int32)
CALLS_OF_OURS = {
    "flex_attention": lambda: heddle.torch.flex_attention(q, q, q, double),
    "scaled_dot_product_attention": lambda: heddle.torch.scaled_dot_product_attention(q, q, q),
    "varlen_attn": lambda: heddle.torch.varlen_attn(q[0], q[0], q[0], STARTS, STARTS, 4, 4),
}


@pytest.mark.parametrize("name", CALLS_OF_OURS)
def test_a_trace_of_our_functions_is_refused(name):
    with pytest.raises(NotImplementedError, match="torch.jit.trace records no call of heddle"):
        torch.jit.trace(lambda x: x + CALLS_OF_OURS[name]().sum(), (q,))


def test_torchs_own_errors():
    with heddle.torch.enabled():
        with pytest.raises(TypeError, match="must be Tensor, not int"):
            torch.nn.functional.scaled_dot_product_attention(1, 2, 3)
        with pytest.raises(RuntimeError):
            torch.nn.functional.scaled_dot_product_attention(q, q[..., :3], q)
        with pytest.raises(TypeError, match="create_block_mask"):
            create_block_mask(causal, None, None, 8, 8, "cpu", surprise=1)


def test_another_librarys_patch_stays(monkeypatch):
    def theirs(*args, **kwargs):
        return before(*args, **kwargs)

    before = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", theirs)
    with heddle.torch.enabled():
        assert torch.nn.functional.scaled_dot_product_attention is not theirs
    assert torch.nn.functional.scaled_dot_product_attention is theirs
    with heddle.torch.enabled():
        before = torch.nn.functional.scaled_dot_product_attention
        torch.nn.functional.scaled_dot_product_attention = theirs
    assert torch.nn.functional.scaled_dot_product_attention is theirs
    heddle.torch.clear_log()
    theirs(q, q, q)
    assert not heddle.torch.log()
    with heddle.torch.enabled():
        theirs(q, q, q)
    assert went("scaled_dot_product_attention") == {"heddle": 1}


def test_signatures_stay():
    functions = flex_attention, create_block_mask
    want = [inspect.signature(function) for function in functions]
    doc = torch.nn.functional.scaled_dot_product_attention.__doc__
    with heddle.torch.enabled():
        assert doc and torch.nn.functional.scaled_dot_product_attention.__doc__ == doc
        assert [inspect.signature(function) for function in functions] == want
    assert not any("__signature__" in vars(function) for function in functions)


def test_forward_mode_goes_to_torch():
    def attend(x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        want = torch.func.jvp(attend, (q,), (q,))
        with heddle.torch.enabled():
            got = torch.func.jvp(attend, (q,), (q,))
            with forward_ad.dual_level():
                dual = attend(forward_ad.make_dual(q, q))
                assert torch.equal(forward_ad.unpack_dual(dual).tangent, want[1])
    torch.testing.assert_close(got, want)
    assert went("scaled_dot_product_attention") == {"torch: an input has a tangent of forward-mode AD": 2}


def test_a_call_without_a_backward_goes_to_torch(monkeypatch):
    """A GPU's missing backward, played by a planner of the test: the error comes before the forward, once for a kind
    of call."""
    from heddle import _core
    from heddle.torch import _backward_plans

    asked = []

    def plan(inputs, targets, arguments, is_kept):
        asked.append(targets)
        raise NotImplementedError("no kernel family computes this backward")

    monkeypatch.setattr(_backward_plans, "ASKED_ON", {"cpu"})
    monkeypatch.setattr(_backward_plans, "_reasons", {})
    monkeypatch.setattr(_core, "BackwardPlan", plan)
    q = torch.randn(1, 2, 5, 8, requires_grad=True)
    bias = torch.ones(5, requires_grad=True)
    for _ in range(3):
        with pytest.raises(NotImplementedError, match="no kernel family computes this backward. An input requires"):
            heddle.torch.scaled_dot_product_attention(q, q, q)
    assert len(asked) == 1
    with pytest.raises(NotImplementedError, match="no kernel family"):
        heddle.torch.flex_attention(q.detach(), *2 * [q.detach()], lambda s, b, h, i, j: s + bias[j])
    assert len(asked) == 2 and set(asked[1].captures) == {"bias"}
    with torch.no_grad():
        heddle.torch.scaled_dot_product_attention(q, q, q)
    mask = heddle.torch.create_block_mask(lambda b, h, i, j: bias[j] > 0, None, None, 5, 5, "cpu")
    heddle.torch.flex_attention(q.detach(), *2 * [q.detach()], block_mask=mask)  # what a mask reads has no gradient
    assert len(asked) == 2
    heddle.torch.clear_log()
    with heddle.torch.enabled():
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    (entry,) = heddle.torch.log()
    assert entry.where.startswith("torch: no kernel family computes this backward") and q.grad is not None


def test_a_backward_that_exists_is_asked_for_once(monkeypatch):
    from heddle import _core
    from heddle.torch import _backward_plans

    made = []

    def plan(*args, real=_core.BackwardPlan):
        made.append(args)
        return real(*args)

    monkeypatch.setattr(_backward_plans, "ASKED_ON", {"cpu"})
    monkeypatch.setattr(_backward_plans, "_reasons", {})
    monkeypatch.setattr(_core, "BackwardPlan", plan)
    q, table = torch.randn(1, 2, 6, 8, requires_grad=True), torch.randn(6, requires_grad=True)

    def score(score, b, h, q_idx, kv_idx):
        return score + table[kv_idx]

    for _ in range(3):
        heddle.torch.flex_attention(q, q, q, score).sum().backward()
    plans = heddle.plan_cache_counts()["misses"]
    heddle.torch.flex_attention(q, q, q, score).sum().backward()
    assert len(made) == 1 and heddle.plan_cache_counts()["misses"] == plans and table.grad.any()


def test_a_call_that_is_not_asked_is_taken_where_every_gpu_computes_its_backward(monkeypatch):
    """Under a transform, a dispatch mode or torch.compile nobody can ask a GPU beforehand."""
    from torch.utils.flop_counter import FlopCounterMode

    from heddle.torch import _backward_plans

    def loss(q):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q).sum()

    monkeypatch.setattr(_backward_plans, "ASKED_ON", {"cpu"})
    q, wide = (torch.randn(1, 2, 5, dim, requires_grad=True) for dim in (8, 513))
    heddle.torch.clear_log()
    with heddle.torch.enabled():
        for x in (q, wide):
            torch.func.grad(loss)(x.detach())
            with FlopCounterMode(display=False):
                loss(x).backward()
        with torch.no_grad(), FlopCounterMode(display=False):
            loss(wide)  # no gradient: heddle's
    reason = "torch: a head dimension is 513, and an input requires a gradient; to 512 every GPU computes it"
    assert went("scaled_dot_product_attention") == {reason: 2, "heddle": 3}


@pytest.mark.parametrize("dim, ours", [(8, True), (513, False)])
def test_compiled_gradients_are_taken_where_every_gpu_computes_them(monkeypatch, dim, ours):
    from heddle.torch import _backward_plans

    def score(score, b, h, q_idx, kv_idx):
        return score + 0.1 * (kv_idx - q_idx)

    def loss(q):
        made = torch.nn.functional.scaled_dot_product_attention(q, q, value=q)
        return (made + flex.flex_attention(q, q, q, score) if ours else made).square().sum()  # torch's has none on a CPU

    seen = []

    def backend(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    monkeypatch.setattr(_backward_plans, "ASKED_ON", {"cpu"})
    torch._dynamo.reset()
    q = torch.randn(1, 2, 16, dim, requires_grad=True)
    with heddle.torch.enabled():
        torch.compile(loss, backend=backend, fullgraph=True)(q)
        got, want = (torch.autograd.grad(call(q), q)[0] for call in (torch.compile(loss, backend="aot_eager"), loss))
    text = " ".join(seen)
    assert ("heddle" in text) == ours and ("scaled_dot_product_attention" in text) != ours, text
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)


def test_functions_that_dynamo_has_traced_are_taken_over_and_given_back():
    def score(score, b, h, q_idx, kv_idx):
        return score + 0.1 * (kv_idx - q_idx)

    q, seen = torch.randn(1, 2, 16, 8), []

    def backend(graph, inputs):
        seen.append(" ".join(str(node.target) for node in graph.graph.nodes))
        return graph

    def compiled():
        torch._dynamo.reset()
        call = torch.compile(lambda q: flex.flex_attention(q, q, q, score, scale=0.5), backend=backend, fullgraph=True)
        return call(q)

    with torch.no_grad():
        torchs = compiled()
        with heddle.torch.enabled():
            ours = compiled()
        again = compiled()
    assert ["heddle" in text for text in seen] == [False, True, False], seen
    for one in (ours, again):
        torch.testing.assert_close(one, torchs)


def test_what_is_kept_of_backwards_knows_the_family_and_few_lists(monkeypatch):
    from heddle import _core
    from heddle.torch import _backward_plans

    made = []
    monkeypatch.setattr(_backward_plans, "ASKED_ON", {"cpu"})
    monkeypatch.setattr(_backward_plans, "_reasons", {})
    monkeypatch.setattr(_backward_plans, "_reasons_with_lists", {})
    monkeypatch.setattr(_core, "BackwardPlan", lambda *args: made.append(args))
    monkeypatch.delenv("HEDDLE_FAMILY", raising=False)
    q = torch.randn(1, 2, 128, 8, requires_grad=True)
    for family in (None, "backward_sm90", "backward_sm90"):
        if family:
            monkeypatch.setenv("HEDDLE_FAMILY", family)
        heddle.torch.scaled_dot_product_attention(q, q, q)
    assert len(made) == 2
    for _ in range(20):
        count, index = torch.ones(1, 1, 1, dtype=torch.int32), torch.zeros(1, 1, 1, 1, dtype=torch.int32)
        heddle.torch.flex_attention(q, q, q, block_mask=flex.BlockMask.from_kv_blocks(count, index, mask_mod=causal))
    assert len(_backward_plans._reasons) == 2
    assert 0 < len(_backward_plans._reasons_with_lists) <= _backward_plans.MOST_WITH_LISTS
