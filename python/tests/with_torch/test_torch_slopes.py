"""Slopes where a function has a kink, or ties: heddle.torch's are torch's, which differ from function to function.

The queries and keys are chosen so that many scores lie exactly on the kinks.
"""

import importlib
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from gradient_reference import assert_same, dense, gradients, random
from heddle.torch import flex_attention

QUERIES = [0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 6.0, -6.0, 0.5, -0.5, 20.0, -20.0]
KEYS = [1.0, -1.0, 0.5, 2.0]


def of(value, score):
    return torch.full((), value, dtype=score.dtype)


def stacked(*factors):
    return lambda s: torch.stack([s * factor for factor in factors])


three, four, tied = stacked(1, 2, 3), stacked(1, 2, 3, 7), stacked(1, 2, 1, -1, 1)

ACTIVATIONS = {name: getattr(F, name) for name in (
    "relu", "relu6", "hardtanh", "hardswish", "hardsigmoid", "silu", "gelu", "mish", "softplus", "softsign",
    "tanhshrink", "softshrink", "hardshrink", "elu", "selu", "celu", "leaky_relu", "logsigmoid")}
FUNCTIONS = {
    "gelu by tanh": lambda s: F.gelu(s, approximate="tanh"),
    "threshold": lambda s: F.threshold(s, 1.0, 20.0),
    "hardtanh of 0 and 1": lambda s: F.hardtanh(s, 0.0, 1.0),
    "abs": torch.abs, "sign": torch.sign, "sinh": torch.sinh, "cosh": torch.cosh, "sinc": torch.sinc,
    "minimum": lambda s: torch.minimum(s, of(1.0, s)), "maximum": lambda s: torch.maximum(of(1.0, s), s),
    "fmin": lambda s: torch.fmin(s, of(1.0, s)), "fmin's other": lambda s: torch.fmin(of(1.0, s), s),
    "fmax": lambda s: torch.fmax(s, of(1.0, s)), "fmax's other": lambda s: torch.fmax(of(1.0, s), s),
    "fmax of NaN": lambda s: torch.fmax(of(float("nan"), s), s),
    "fmod": lambda s: torch.fmod(s, 2.0), "fmod of negative": lambda s: torch.fmod(s, -3.0),
    "remainder": lambda s: torch.remainder(s, 2.0), "remainder's divisor": lambda s: torch.remainder(of(1.0, s), s + 0.3),
    "logaddexp": lambda s: torch.logaddexp(s, of(1.0, s)), "logaddexp's other": lambda s: torch.logaddexp(of(0.0, s), s),
    "clamp from below": lambda s: s.clamp(min=0), "clamp from above": lambda s: s.clamp(max=1),
    "clamp": lambda s: s.clamp(-1, 1), "clamp to nothing": lambda s: s.clamp(1, -1),
    "clamp by tensors": lambda s: s.clamp(of(-1.0, s), of(1.0, s)),
    "clamp's lower end": lambda s: torch.clamp(of(1.0, s), min=s),
    "clamp's upper end": lambda s: torch.clamp(of(1.0, s), max=s),
    "clamp_min": lambda s: torch.clamp_min(s, 1.0), "clamp_max": lambda s: torch.clamp_max(s, 1.0),
    "where": lambda s: torch.where(s > 0, s, -2 * s),
    "amax of two": lambda s: stacked(1, -1)(s).amax(0), "amax of three": lambda s: three(s).amax(0),
    "amin of three": lambda s: three(s).amin(0), "amax of four": lambda s: four(s).amax(0),
    "amax of ties": lambda s: tied(s).amax(0), "amin of ties": lambda s: tied(s).amin(0),
    "max of all": lambda s: tied(s).max(), "min of all": lambda s: three(s).min(),
    "amax with masked": lambda s: torch.stack([s, s * 0 - torch.inf, 2 * s, s * 0 - torch.inf, s]).amax(0),
    "maximum of a maximum": lambda s: torch.maximum(torch.maximum(s, 2 * s), 3 * s),
    "norm": lambda s: three(s).norm(), "norm of one": lambda s: s.norm(),
    "norm 1": lambda s: three(s).norm(p=1), "norm 3": lambda s: three(s).norm(p=3),
    "norm 1.5": lambda s: three(s).norm(p=1.5), "norm 0.5": lambda s: three(s).norm(p=0.5),
    "norm 0": lambda s: three(s).norm(p=0), "largest norm": lambda s: tied(s).norm(p=torch.inf),
    "smallest norm": lambda s: tied(s).norm(p=-torch.inf),
    "vector_norm": lambda s: torch.linalg.vector_norm(three(s)),
    "norms of rows": lambda s: four(s).reshape(2, 2).norm(dim=1, keepdim=True).sum(),
    "matrix norm": lambda s: torch.linalg.norm(four(s).reshape(2, 2)),
    "dist": lambda s: torch.dist(three(s), four(s)[:3] - 1),
    "normalize": lambda s: F.normalize(three(s) + s, dim=0)[0],
    "asin": lambda s: torch.asin(s / 41), "acos": lambda s: torch.acos(s / 41), "atanh": lambda s: torch.atanh(s / 41),
    "asinh": torch.asinh, "asinh of large ones": lambda s: torch.asinh(s * 1e12), "acosh": lambda s: torch.acosh(s.abs() + 1.5),
    "hypot": lambda s: torch.hypot(s, of(1.0, s)), "hypot's ties": lambda s: torch.hypot(s, 0 * s + of(2.0, s)),
    "atan2": lambda s: torch.atan2(s, of(1.0, s)), "atan2 behind": lambda s: torch.atan2(s, of(-1.0, s)),
    "atan2 of its cosine": lambda s: torch.atan2(of(-2.0, s), s), "atan2 of both": lambda s: torch.atan2(s + 0.25, 2 * s),
    "bucketize": lambda s: s * torch.bucketize(s, torch.tensor([-1.0, 0.5, 2.0], dtype=s.dtype)),
    "bucketize from the right": lambda s: s * torch.bucketize(s, torch.tensor([-1.0, 0.5, 2.0], dtype=s.dtype), right=True),
    "searchsorted": lambda s: s * torch.searchsorted(torch.tensor([-1.0, 0.5, 2.0], dtype=s.dtype), s, side="right"),
    "huber": lambda s: F.huber_loss(s, torch.zeros_like(s)), "l1": lambda s: F.l1_loss(s, torch.zeros_like(s)),
}
# Under vmap, which the reference uses, max and min give the slope of a tie to one element; by themselves they share it.
REFERENCES = {"max of all": lambda s: tied(s).amax(), "min of all": lambda s: three(s).amin()}
# torch has 1/6 there as an f32.
ROUNDED = {"hardsigmoid", "hardswish"}


@pytest.mark.parametrize("name", [*ACTIVATIONS, *FUNCTIONS])
def test_slopes_at_kinks(name):
    function = {**ACTIVATIONS, **FUNCTIONS}[name]

    def mod(score, b, h, q_idx, kv_idx):
        return function(score)

    def reference(score, b, h, q_idx, kv_idx):
        return REFERENCES.get(name, function)(score)

    q = torch.tensor(QUERIES, dtype=torch.float64).reshape(1, 1, -1, 1).requires_grad_()
    k = torch.tensor(KEYS, dtype=torch.float64).reshape(1, 1, -1, 1).requires_grad_()
    v = random(1, 1, len(KEYS), 3)
    incoming = [random(1, 1, len(QUERIES), 3, seed=1, requires_grad=False)]
    got = gradients([flex_attention(q, k, v, mod, scale=1.0)], [q, k, v], incoming)
    want = gradients(dense(q, k, v, reference, scale=1.0)[:1], [q, k, v], incoming)
    assert all(x.isfinite().all() for x in want), "the reference has no gradient, so this test proves nothing"
    assert_same(got, want, 1e-6 if name in ROUNDED else 1e-11, "qkv")


def test_angles_and_inverses_far_out():
    """Values, in f32: zero, infinities, and numbers whose squares overflow."""
    far = torch.tensor([-1e30, -1e20, -3.0, -1.0, -1e-20, 0.0, 1e-20, 1.0, 2.0, 1e15, 1e30, torch.inf, -torch.inf])
    for mod in (
        lambda s, b, h, q_idx, kv_idx: torch.atan2(far[q_idx], far[kv_idx]),
        lambda s, b, h, q_idx, kv_idx: torch.hypot(far[q_idx], far[kv_idx]).clamp(max=9) * h,
        lambda s, b, h, q_idx, kv_idx: torch.hypot(far[q_idx] * 1e-3, far[kv_idx] * 1e-3).clamp(max=1e30) * 1e-30,
        lambda s, b, h, q_idx, kv_idx: torch.asinh(far[kv_idx].clamp(-1e30, 1e30)),
        lambda s, b, h, q_idx, kv_idx: torch.acosh(far[kv_idx].abs().clamp(1, 1e30)),
        lambda s, b, h, q_idx, kv_idx: torch.asin(far[kv_idx].clamp(-1, 1)) + torch.acos(far[q_idx].clamp(-1, 1)) * h,
        lambda s, b, h, q_idx, kv_idx: torch.bucketize(far[kv_idx], torch.tensor([-1.0, 0.0, 2.0, 1e20])) * 1.0,
    ):
        q, k, v = (random(1, 2, len(far), 4, seed=seed, requires_grad=False) for seed in (1, 2, 3))
        got = flex_attention(q.float(), k.float(), v.float(), mod)
        torch.testing.assert_close(got.double(), dense(q, k, v, mod)[0], atol=2e-5, rtol=0)


def test_distances_of_learned_positions():
    """The distance of a position from itself is 0: its norm has the slope 0 there."""
    q, k, v = (random(1, 2, 6, 4, seed=seed) for seed in (1, 2, 3))
    positions = random(6, 3, seed=4)
    for distance in (lambda x, y: (x - y).norm(), lambda x, y: torch.linalg.vector_norm(x - y), torch.dist):
        def mod(score, b, h, q_idx, kv_idx):
            return score - distance(positions[q_idx], positions[kv_idx])

        incoming = [random(1, 2, 6, 4, seed=5, requires_grad=False)]
        got = gradients([flex_attention(q, k, v, mod)], [q, k, v, positions], incoming)
        assert_same(got, gradients(dense(q, k, v, mod)[:1], [q, k, v, positions], incoming), 1e-11)


def test_gelu_by_tanh_of_large_scores_in_f32():
    scores = torch.tensor([100.0, 300.0, 1000.0, -1000.0, 1e20, -1e20]).reshape(1, 1, -1, 1)
    keys = torch.tensor([1.0, 0.0]).reshape(1, 1, 2, 1)

    def mod(score, b, h, q_idx, kv_idx):
        return F.gelu(score, approximate="tanh") * 1e-3

    def slopes(attention, dtype):
        q, k = scores.to(dtype).requires_grad_(), keys.to(dtype)
        return torch.autograd.grad(attention(q, k, k, mod).sum(), q)[0].double()

    got = slopes(lambda *tensors: flex_attention(*tensors, scale=1.0), torch.float32)
    want = slopes(lambda *tensors: dense(*tensors, scale=1.0)[0], torch.float64)
    assert torch.allclose(got, want, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("before", ["torch.inference_mode().__enter__()", "FakeTensorMode().__enter__()",
                                    "torch.set_default_device('meta')", "torch.set_grad_enabled(False)"])
def test_the_import_may_stand_inside_a_mode(before):
    code = ("import torch; from torch._subclasses.fake_tensor import FakeTensorMode; " + before +
            "; import heddle.torch._tracing.tie_rules as rules; print(rules.SHARED_BY_FMAX, rules.BOUND_WINS, rules.SHARED_BY_CLAMP)")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    rules = importlib.import_module("heddle.torch._tracing.tie_rules")
    assert said.stdout.split() == [str(x) for x in (rules.SHARED_BY_FMAX, rules.BOUND_WINS, rules.SHARED_BY_CLAMP)], said.stderr
