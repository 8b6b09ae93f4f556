"""Calls of packed sequences that C++ makes: what they give is what Python's way gives, and what they leave to it."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn.attention import varlen

from heddle.torch import _direct, serving, varlen_attn, varlen_attn_out

torch.manual_seed(1)
STARTS_Q, STARTS_K = torch.tensor([0, 2, 5, 6], dtype=torch.int32), torch.tensor([0, 9, 16, 30], dtype=torch.int32)
USED, TABLE = torch.tensor([7, 1, 14], dtype=torch.int32), torch.tensor([[2, 0, -1], [4, -1, -1], [1, 3, 5]], dtype=torch.int32)
Q, K, V = torch.randn(6, 4, 3, 8)[:, :, 1], torch.randn(30, 2, 8), torch.randn(30, 2, 8)
POOL_K, POOL_V = torch.randn(2, 6, 5, 2, 8)


@pytest.fixture
def ways(monkeypatch):
    """Counts the calls that C++ makes and those that it leaves to Python. `ways.python`: all are left."""
    class Ways:
        made, left, python = 0, 0, False

    def attend(*given):
        result = None if Ways.python else direct(*given)
        Ways.made, Ways.left = Ways.made + (result is not None), Ways.left + (result is None)
        return result

    direct = _direct.attend_packed
    monkeypatch.setattr(_direct, "attend_packed", attend)
    return Ways


def both(ways, call):
    """The results of both ways; C++ has to take the call."""
    ways.made, ways.python = 0, False
    got = call()
    assert ways.made == 1
    ways.python = True
    return got, call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (3, -1), (2, 1)])
@pytest.mark.parametrize("keys", ["packed", "used", "pages"])
def test_both_ways(ways, keys, window, dtype):
    q, k, v = (x.to(dtype) for x in ((Q, POOL_K, POOL_V) if keys == "pages" else (Q, K, V)))
    more = {"packed": {}, "used": {"seqused_k": USED}, "pages": {"seqused_k": USED, "block_table": TABLE}}[keys]
    starts = None if keys == "pages" else STARTS_K
    for scale, aux in itertools.product((None, 0.25), (None, varlen.AuxRequest(lse=True))):
        options = {"window_size": window, "scale": scale, "return_aux": aux, "enable_gqa": True, **more}
        results = both(ways, lambda: varlen_attn(q, k, v, STARTS_Q, starts, 4, 15, **options))
        torch.testing.assert_close(*results, atol=0, rtol=0, equal_nan=True)
        if aux is None:
            assert results[0].stride() == results[1].stride()
            out = torch.full((6, 2, 4, 8), 7.0, dtype=dtype)[:, 1]
            made, _ = both(ways, lambda: varlen_attn_out(out, q, k, v, STARTS_Q, starts, 4, 15, **options).clone())
            torch.testing.assert_close(made, results[0], atol=0, rtol=0, equal_nan=True)


def test_of_serving(ways):
    for options in ({"causal": True}, {"window_size": [3, 0], "return_softmax_lse": True, "softmax_scale": 0.5},
                    {"out": torch.empty(6, 4, 8), "seqused_k": USED}):
        results = both(ways, lambda: serving.varlen_func(Q, K, V, STARTS_Q, STARTS_K, 3, 14, **options))
        torch.testing.assert_close(*results, atol=0, rtol=0, equal_nan=True)


class Other(torch.Tensor):
    pass


LEFT = {
    "a subclass": lambda: varlen_attn(Q.as_subclass(Other), K, V, STARTS_Q, STARTS_K, 3, 14, enable_gqa=True),
    "a subclass of starts": lambda: varlen_attn(Q, K, V, STARTS_Q.as_subclass(Other), STARTS_K, 3, 14, enable_gqa=True),
    "other strides": lambda: varlen_attn(Q.mT.contiguous().mT, K, V, STARTS_Q, STARTS_K, 3, 14, enable_gqa=True),
    "expanded heads": lambda: varlen_attn(Q[:, :1].expand(-1, 4, -1), K, V, STARTS_Q, STARTS_K, 3, 14, enable_gqa=True),
    "another width": lambda: varlen_attn(Q, K, V[..., :3], STARTS_Q, STARTS_K, 3, 14, enable_gqa=True),
    "NumPy's ints": lambda: varlen_attn(Q, K, V, STARTS_Q, STARTS_K, np.int64(3), 14, enable_gqa=True),
    "keys of another type": lambda: varlen_attn(Q.double(), K, V, STARTS_Q, STARTS_K, 3, 14, enable_gqa=True),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_to_python(ways, name):
    torch.testing.assert_close(LEFT[name]().detach().as_subclass(torch.Tensor), REFERENCES[name], rtol=1e-5, atol=1e-6)
    assert (ways.made, ways.left) == (0, 1)


def plain(q=Q, v=V, **options):
    return varlen_attn(q.contiguous(), K, v, STARTS_Q, STARTS_K, 3, 14, enable_gqa=True, **options)


REFERENCES = {name: plain() for name in LEFT} | {
    "expanded heads": plain(Q[:, :1].repeat(1, 4, 1)), "another width": plain()[..., :3], "keys of another type": plain().double()}


NO_BOUND = [(2**31 - 1, 2**31 - 1), (2**30, -1), (-1, 2**31 - 1), (2**40, 2**63), (np.int64(2**62), torch.tensor(2**31))]


@pytest.mark.parametrize("window", [*NO_BOUND, (2**30 - 1, 2**30 - 1)])
def test_large_windows_have_no_bound(ways, window):
    """An index and the window are added in i32."""
    for python in (False, True):
        ways.python = python
        for function, queries in ((varlen_attn, Q), (varlen_attn, Q.clone().requires_grad_()), (serving.varlen_func, Q)):
            options = {"enable_gqa": True} if function is varlen_attn else {}
            torch.testing.assert_close(
                function(queries, K, V, STARTS_Q, STARTS_K, 3, 14, window_size=window, **options).detach(), plain())


@pytest.mark.parametrize("window", [(np.int64(2), True), [torch.tensor(2), 1]])
def test_windows_that_count_as_ints(window):
    want = varlen_attn(Q, K, V, STARTS_Q, STARTS_K, 3, 14, enable_gqa=True, window_size=(2, 1))
    assert torch.equal(varlen_attn(Q, K, V, STARTS_Q, STARTS_K, 3, 14, enable_gqa=True, window_size=window), want)
    for wrong in ((2.0, 1), ("2", 1), (None, 1), (torch.ones(2), 1)):
        with pytest.raises(TypeError, match="window_size is .* a pair of ints is accepted"):
            varlen_attn(Q, K, V, STARTS_Q, STARTS_K, 3, 14, enable_gqa=True, window_size=wrong)


def test_modes_and_transforms(ways):
    with torch.autocast("cpu", torch.bfloat16):
        varlen_attn(Q, K, V, STARTS_Q, STARTS_K, 3, 14, enable_gqa=True)
    torch.func.vmap(lambda q: varlen_attn(q, K, V, STARTS_Q, STARTS_K, 3, 14, enable_gqa=True))(Q[None])
    assert ways.made == 0
    with torch.inference_mode():
        varlen_attn(Q, K, V, STARTS_Q, STARTS_K, 3, 14, enable_gqa=True)
    with torch.no_grad():
        varlen_attn(Q.clone().requires_grad_(), K, V, STARTS_Q, STARTS_K, 3, 14, enable_gqa=True)
    assert ways.made == 2


REFUSED = {
    "max_q 2": {"max_q": 2}, "window_size": {"window_size": (-2, 0)}, "enable_gqa": {"enable_gqa": False},
    "num_splits": {"num_splits": 2}, "block_table": {"cu_seq_k": None}, "cu_seq_q": {"cu_seq_q": STARTS_Q.float()},
    "scale": {"scale": "large"}, "axes": {"query": Q[None]}, "seqused_k": {"seqused_k": USED + 40},
}


@pytest.mark.parametrize("named", REFUSED)
def test_refusals_are_pythons(ways, named):
    given = {"query": Q, "key": K, "value": V, "cu_seq_q": STARTS_Q, "cu_seq_k": STARTS_K, "max_q": 3, "max_k": 14,
             "enable_gqa": True, **REFUSED[named]}
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=named):
        varlen_attn(**given)
    with pytest.raises(ValueError, match="out has shape"):
        varlen_attn_out(torch.empty(6, 4, 7), Q, K, V, STARTS_Q, STARTS_K, 3, 14, enable_gqa=True)
