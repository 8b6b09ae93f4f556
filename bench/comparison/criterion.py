"""The criterion of heddle/check.h on the device: o and lse against float64, beside what an unfused computation errs.

For equal lengths and bf16 or 8-bit inputs, full, causal, or with the mods of comparison/mod_rows.py. The floor is e *
magnitude: in these inputs |t| is small, and so is e. Heads are judged until their score matrices hold BUDGET elements:
all of them for short sequences, a few for long ones. That o and lse are written is checked everywhere.
"""

import dataclasses
import math
from collections.abc import Callable

BUDGET = 1 << 30  # elements of score matrices that are computed in float64
CHUNK = 1 << 26  # of them at a time

FLOOR_UNIT = 2.0**-21  # eight units of f32
FLUSHED = 2.0**-102  # f32 flushes probabilities below this
SMALLEST_SUBNORMAL = {"bf16": 2.0**-133, "f32": 2.0**-149}
SIGNIFICAND_BITS = {"bf16": 8, "f32": 24}


@dataclasses.dataclass(frozen=True)
class Storage:
    """What q, k and v are stored in: its unit roundoff, what a step of a sum is rounded to, and P in its precision."""

    unit: float
    floor_unit: float
    round_weights: Callable


BF16 = Storage(2.0**-8, FLOOR_UNIT, lambda p: p.bfloat16().float())


def sampled_pairs(batch, heads, s, budget=BUDGET):
    """(batch entry, head) pairs, spread evenly, the first and the last among them."""
    total = batch * heads
    count = max(2, min(total, budget // (s * s)))
    if total == 1:
        return [(0, 0)]
    numbers = sorted({round(i * (total - 1) / (count - 1)) for i in range(count)})
    return [(number // heads, number % heads) for number in numbers]


class Reference:
    """Attention of sampled heads in float64, and plain: S and softmax in f32, P rounded, o rounded once."""

    def __init__(self, torch, q, k, v, causal, mods=None, budget=BUDGET, storage=BF16):
        """q, k, v: [B, S, H, D], multiplied by their descale factors. `mods`: functions score(t, h, q, k), mask(q, k)
        and weight(b, h, q, k), or None; sinks [H] or None, and the normalizer's name."""
        self.torch, self.mods, self.storage = torch, mods, storage
        batch, s, heads, d = q.shape
        self.pairs = sampled_pairs(batch, heads, s, budget)
        self.b = torch.tensor([b for b, _ in self.pairs], device=q.device)
        self.h = torch.tensor([h for _, h in self.pairs], device=q.device)
        q, k, v = (x[self.b, :, self.h] for x in (q, k, v))  # [pairs, S, D]
        rows = min(s, 1024)
        together = max(1, CHUNK // (rows * s))
        parts = []
        for first in range(0, len(self.pairs), together):
            at = slice(first, first + together)
            blocks = [
                self._rows(q[at], k[at], v[at], self.b[at], self.h[at], row, min(row + rows, s), causal)
                for row in range(0, s, rows)
            ]
            parts.append([torch.cat(tensors, dim=1) for tensors in zip(*blocks)])
        self.o, self.magnitude, self.sensitivity, self.exponent, self.lse, self.plain_o, self.plain_lse = (
            torch.cat(tensors) for tensors in zip(*parts)
        )

    def _mod(self, kind, t, b, h, begin):
        """What that mod gives for the score matrix t of the heads h, whose rows begin there; None without one."""
        mod = getattr(self.mods, kind, None)
        if mod is None:
            return None
        rows = self.torch.arange(begin, begin + t.shape[-2], device=t.device)[:, None]
        keys = self.torch.arange(t.shape[-1], device=t.device)[None, :]
        if kind == "mask":
            return mod(rows, keys)
        h = h[:, None, None]
        return mod(t, h, rows, keys) if kind == "score" else mod(b[:, None, None], h, rows, keys)

    def _weights(self, t, h):
        """The weights of values [pairs, rows, keys], their rows' sums and lse [pairs, rows, 1]."""
        torch, sinks = self.torch, getattr(self.mods, "sinks", None)
        normalizer = getattr(self.mods, "normalizer", "softmax")
        one, no_lse = torch.ones_like(t[..., :1]), torch.zeros_like(t[..., 0])
        if normalizer == "sigmoid":
            return torch.sigmoid(t), one, no_lse
        if normalizer == "none":
            return t.masked_fill(t == -math.inf, 0), one, no_lse
        m = t.amax(-1, keepdim=True)
        if sinks is not None:
            sink = sinks[h][:, None, None].to(t.dtype)
            m = torch.maximum(m, sink)
        p = (t - m).exp_()
        l = p.sum(-1, keepdim=True)
        if sinks is not None:
            l = l + (sink - m).exp()
        return p, l, (m + l.log()).squeeze(-1)

    def _rows(self, q, k, v, b, h, begin, end, causal):
        torch = self.torch
        if causal:
            k, v = k[:, :end], v[:, :end]
        q = q[:, begin:end]
        scale = 1 / math.sqrt(q.shape[-1])
        keys = torch.arange(k.shape[1], device=q.device)
        masked = keys > torch.arange(begin, end, device=q.device)[:, None] if causal else None

        t = scale * (q.double() @ k.double().transpose(1, 2))
        # How large the row's scores are, or half of the terms that cancel in one: what f32 may err by.
        terms = 0.5 * scale * (q.abs().double() @ k.abs().double().transpose(1, 2))
        if (attends := self._mod("mask", t, b, h, begin)) is not None:
            masked = ~attends
        if (scored := self._mod("score", t, b, h, begin)) is not None:
            t = scored
            unseen = t == -math.inf
            masked = unseen if masked is None else masked | unseen
        weight = self._mod("weight", t, b, h, begin)
        sizes = torch.maximum(t.abs(), terms)
        del terms
        if masked is not None:
            t = t.masked_fill(masked, -math.inf)
            sizes.masked_fill_(masked, 0)
        exponent = sizes.amax(-1)
        del sizes
        if (sinks := getattr(self.mods, "sinks", None)) is not None:
            exponent = torch.maximum(exponent, sinks[h][:, None].abs().double())
        p, l, lse = self._weights(t, h)
        weigh = (lambda x: x) if weight is None else (lambda x: x * weight)
        o = (weigh(p) @ v.double()) / l
        p = p.abs().clamp_(min=FLUSHED)
        if masked is not None:
            p.masked_fill_(masked, 0)
        p = weigh(p).abs()
        magnitude = (p @ v.abs().double()) / l
        sensitivity = (1 + exponent[..., None]) * magnitude
        if getattr(self.mods, "normalizer", "softmax") == "none":  # p is t itself, not its exponential
            attended = torch.ones_like(t) if masked is None else (~masked).to(t.dtype).expand_as(t)
            sensitivity = exponent[..., None] * (weigh(attended).abs() @ v.abs().double())
        del t, p

        t = scale * (q.float() @ k.float().transpose(1, 2))
        if (scored := self._mod("score", t, b, h, begin)) is not None:
            t = scored
        if masked is not None:
            t = t.masked_fill(masked, -math.inf)
        p, l, plain_lse = self._weights(t, h)
        plain_o = ((self.storage.round_weights(weigh(p)) @ v.float()) / l).bfloat16()
        return o, magnitude, sensitivity, exponent, lse, plain_o, plain_lse

    def judge(self, o, lse):
        """o [B, H, S, D] in bf16, lse [B, H, S] in f32 or None: a report as plain data."""
        torch = self.torch
        tensors = {
            "o": judge_tensor(
                torch,
                value=o[self.b, self.h],
                reference=self.o,
                plain=self.plain_o,
                floor=self.storage.floor_unit * self.sensitivity,
                magnitude=self.magnitude,
                unit=self.storage.unit,
                dtype="bf16",
                everything=o,
            )
        }
        if lse is not None:
            tensors["lse"] = judge_tensor(
                torch,
                value=lse[self.b, self.h],
                reference=self.lse,
                plain=self.plain_lse,
                floor=self.storage.floor_unit * (1 + self.exponent) * self.lse.abs().clamp(min=1),
                magnitude=None,
                unit=None,
                dtype="f32",
                everything=lse,
            )
        return {
            "passed": all(part["passed"] for part in tensors.values()),
            "heads": len(self.pairs),
            "tensors": tensors,
        }


def judge_tensor(torch, *, value, reference, plain, floor, magnitude, unit, dtype, everything):
    """One tensor. `magnitude`, `unit`: those of (b), which speaks of o only. `everything`: all heads, which must be
    finite."""
    specials = int((~torch.isfinite(everything)).sum())
    error = (value.double() - reference).abs()
    plain_error = (plain.double() - reference).abs()
    stored = reference.to(torch.bfloat16 if dtype == "bf16" else torch.float32).double()
    rounding = (stored - reference).abs()
    allowed = {
        name: 2 * max(figure(plain_error), figure(rounding)) + figure(floor)
        for name, figure in (("max", lambda x: x.max().item()), ("mean", lambda x: x.mean().item()))
    }
    worst = 0.0
    if magnitude is not None:
        one_rounding = (reference.abs() * 2.0 ** -SIGNIFICAND_BITS[dtype]).clamp(min=SMALLEST_SUBNORMAL[dtype] / 2)
        worst = (error / (4 * unit * magnitude + floor + one_rounding)).max().item()
    result = {
        "max_error": error.max().item(),
        "mean_error": error.mean().item(),
        "max_allowed": allowed["max"],
        "mean_allowed": allowed["mean"],
        "plain_max_error": plain_error.max().item(),
        "plain_mean_error": plain_error.mean().item(),
        "worst_row": worst,
        "not_finite": specials,
    }
    shares = (result["max_error"] / allowed["max"], result["mean_error"] / allowed["mean"], worst)
    result["share"] = max(shares) if all(map(math.isfinite, shares)) and specials == 0 else math.inf
    result["passed"] = result["share"] <= 1
    return result
