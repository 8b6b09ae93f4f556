"""Functions that change the shape of rows which a mod gathers, or that torch takes apart: values and gradients."""

import pytest
import torch
import torch.nn.functional as F

from gradient_reference import assert_same, dense, gradients, random
from heddle.torch import flex_attention

Q, K, V = (random(1, 2, 5, 8, seed=seed) for seed in range(3))
ROWS, SQUARE, WIDE = random(5, 8, seed=3), random(8, 8, seed=4), random(8, 5, seed=5)


def of(function, *given):
    """What a function leaves of a tensor that it changes in place."""
    def change(x):
        x = x * 2
        getattr(x, function)(*given)
        return x

    return change


def unsquare(x, y):
    """A view that is turned, and what it was a view of."""
    turned = x.view(2, 4)
    turned.t_()
    return turned[3, 1] * x[3] + y[0]


FUNCTIONS = {
    # A vector times a matrix: torch's code calls squeeze_().
    "vector times matrix": lambda x, y: (x @ WIDE)[3],
    "gate": lambda x, y: torch.dot((x @ SQUARE).softmax(0), y),
    "linear": lambda x, y: F.linear(x, WIDE.T)[4] + F.linear(x, SQUARE, y)[2],
    "squeeze_": lambda x, y: of("squeeze_")(x[None])[3],
    "unsqueeze_": lambda x, y: of("unsqueeze_", 0)(x)[0, 3],
    "unsqueeze_ of a gather": lambda x, y: x.unsqueeze_(1)[3, 0],
    "t_": lambda x, y: of("t_")(x.view(2, 4))[3, 1],
    "transpose_": lambda x, y: of("transpose_", 0, 1)(x.view(2, 4))[3, 1] * of("swapaxes_", 0, 1)(x.view(2, 4))[2, 1],
    "a view turned": unsquare,
    "written when turned": lambda x, y: of("t_")(x.view(2, 4)).add_(1)[3, 1],
    # Taken apart inside of another function that is taken apart.
    "roll": lambda x, y: x.roll(3)[2] * x.view(2, 4).roll((1, 1), (0, 1))[1, 2],
    "cross": lambda x, y: torch.linalg.cross(x[:3], y[:3])[0],
    "glu": lambda x, y: F.glu(x)[1],
    "diag": lambda x, y: torch.diag(x)[1, 1] + torch.diag(x)[1, 2],
    "layer_norm": lambda x, y: F.layer_norm(x, (8,), y)[1] + F.layer_norm(x.view(2, 4), (4,))[1, 2],
    "group_norm": lambda x, y: F.group_norm(x[None], 2)[0, 3],
    "var": lambda x, y: x.var(0, False) + x.var(0, True, True)[0] + x.var(False) + torch.var_mean(x)[0] * x.std(0),
    "diagonal": lambda x, y: x.view(2, 4).diagonal(1)[1] + x.view(2, 2, 2).diagonal(-1, 0, 2)[1, 0],
    "trace": lambda x, y: torch.trace(x[:4].view(2, 2)),
    "pad": lambda x, y: F.pad(x, (2, -3), value=1.5)[6] + F.pad(x, (3, 0))[1],
    "pad of two axes": lambda x, y: F.pad(x.view(2, 4), (1, 0, 0, 1)).square().sum(),
    "one_hot": lambda x, y: F.one_hot(torch.arange(8), 9)[2, 2] * x[2] + F.one_hot(x.argmax(), 8)[2],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name):
    def mod(score, b, h, q_idx, kv_idx):
        return score * FUNCTIONS[name](ROWS[q_idx], ROWS[kv_idx])

    leaves = [Q, K, V, ROWS]
    ours, torchs = flex_attention(Q, K, V, mod), dense(Q, K, V, mod)[0]
    incoming = [random(*ours.shape, seed=6, requires_grad=False)]
    assert_same([ours], [torchs], 1e-12)
    assert_same(gradients([ours], leaves, incoming), gradients([torchs], leaves, incoming), 1e-10)
    assert ROWS.shape == (5, 8)


def test_a_view_as_another_type_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="a view as torch.int64: mods do not see the bits of numbers"):
        flex_attention(Q, K, V, lambda score, b, h, q_idx, kv_idx: score + ROWS[q_idx].view(torch.int64)[0])
