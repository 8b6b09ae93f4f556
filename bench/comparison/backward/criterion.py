"""The backward's criterion of heddle/check.h on the device: dq, dk, dv and the gradients of captures against float64,
beside what the backward that is not fused errs from the same stored o and lse.

For equal lengths, bf16, softmax, full, causal, or with the mods of comparison/mod_rows.py. All query heads of a sampled KV
head are judged, because its dk and dv are sums over them. Floors leave out what dt/ds errs by; what is allowed is
smaller by that. That every element is written is checked everywhere.
"""

import math

from comparison import criterion

BUDGET = 1 << 28  # elements of score matrices that are computed in float64
CHUNK = 1 << 25  # of them at a time
ROWS = 1024  # of queries at a time
STEP = criterion.FLOOR_UNIT
TERMS_STEPS = 0.25  # what a sum of products errs by, in steps of its magnitudes (src/reference/reference_backward.cc)
UNSEEN = criterion.SMALLEST_SUBNORMAL["bf16"] / 2


class Inputs:
    """What a backward is judged for. q, d_o [B, S, H, D]; k, v [B, S, Hkv, D]. `functions`: score(t, h, q, k),
    mask(q, k) and weight(b, h, q, k), each or None. `reads`, by the names of captures whose gradients are judged: the
    axes of the capture, of "h", "q", "k", and the function (q, k) that gives dt by d of what is read (None: 1)."""

    def __init__(self, torch, q, k, v, d_o, causal, functions=None, reads=None):
        self.torch, self.q, self.k, self.v, self.d_o = torch, q, k, v, d_o
        self.causal, self.functions, self.reads = causal, functions, reads or {}
        self.batch, self.s, self.heads, self.d = q.shape
        self.kv_heads = k.shape[2]
        self.group = self.heads // self.kv_heads
        self.scale = 1 / math.sqrt(self.d)

    def function(self, kind):
        return getattr(self.functions, kind, None)


def sampled_heads(inputs, budget):
    """(batch entry, KV head) pairs. With captures whose gradients are judged: all batch entries of some heads, and of
    all heads where a gradient has no axis of heads."""
    per_head = inputs.group * inputs.s * inputs.s
    if not inputs.reads:
        total = inputs.batch * inputs.kv_heads
        count = max(2, min(total, budget // per_head))
        numbers = sorted({round(i * (total - 1) / (count - 1)) for i in range(count)})
        return [(number // inputs.kv_heads, number % inputs.kv_heads) for number in numbers]
    count = max(2, min(inputs.kv_heads, budget // (per_head * inputs.batch)))
    if any("h" not in axes for axes, _ in inputs.reads.values()):
        count = inputs.kv_heads
    heads = sorted({round(i * (inputs.kv_heads - 1) / max(1, count - 1)) for i in range(count)})
    return [(b, h) for h in heads for b in range(inputs.batch)]


class Block:
    """Some rows of a query head, for several (batch entry, KV head) pairs: tensors [pairs, rows, D] and [pairs, keys,
    D], and what the mods say of their score matrix, in one precision."""

    def __init__(self, inputs, b, kv_head, in_group, begin, end, real):
        torch = inputs.torch
        self.torch, self.inputs = torch, inputs
        self.b, self.h = b, kv_head * inputs.group + in_group
        self.begin, self.end = begin, end
        count = end if inputs.causal else inputs.s
        self.q, self.d_o = (x[b, begin:end, self.h].to(real) for x in (inputs.q, inputs.d_o))
        self.k, self.v = (x[b, :count, kv_head].to(real) for x in (inputs.k, inputs.v))
        self.rows = torch.arange(begin, end, device=b.device)[:, None]
        self.keys = torch.arange(count, device=b.device)[None, :]
        self.head = self.h[:, None, None]
        self._score()

    def _score(self):
        """t, with -inf where nothing attends, its derivative by the score (None: 1), and the weight (None: 1)."""
        torch, inputs = self.torch, self.inputs
        s = inputs.scale * (self.q @ self.k.transpose(1, 2))
        self.masked, self.slope, self.t = None, None, s
        if inputs.causal:
            self.masked = (self.keys > self.rows)[None]
        if (mask := inputs.function("mask")) is not None:
            self.masked = ~mask(self.rows, self.keys)[None]
        if (score := inputs.function("score")) is not None:
            with torch.enable_grad():
                s.requires_grad_()
                t = score(s, self.head, self.rows, self.keys)
                (self.slope,) = torch.autograd.grad(t.sum(), s)
            self.t = t.detach()
            unseen = self.t == -math.inf
            self.masked = unseen if self.masked is None else self.masked | unseen
        self.weight = None
        if (weight := inputs.function("weight")) is not None:
            self.weight = weight(self.b[:, None, None], self.head, self.rows, self.keys)
        if self.masked is not None:
            self.t = self.t.masked_fill(self.masked, -math.inf)

    def weighed(self, x):
        return x if self.weight is None else x * self.weight

    def weighed_size(self, x):
        return x if self.weight is None else x * self.weight.abs()

    def sloped(self, x):
        return x if self.slope is None else x * self.slope

    def zero_masked(self, x):
        return x if self.masked is None else x.masked_fill_(self.masked, 0)

    def terms(self, left, right):
        return left.abs() @ right.abs().transpose(1, 2)


class Sums:
    """Gradients of the sampled heads as they are added up: q [pairs, group, S, D]; k, v [pairs, S, D]; captures by
    name, only the sampled heads of those that have heads."""

    def __init__(self, inputs, pairs, heads, real):
        torch, device = inputs.torch, inputs.q.device
        self.inputs = inputs
        kv = (pairs, inputs.s, inputs.d)
        self.q = torch.zeros(pairs, inputs.group, inputs.s, inputs.d, dtype=real, device=device)
        self.k, self.v = (torch.zeros(kv, dtype=real, device=device) for _ in range(2))
        self.heads = torch.unique(heads).tolist()
        extents = {"h": len(self.heads), "q": inputs.s, "k": inputs.s}
        self.captures = {
            name: torch.zeros([extents[axis] for axis in axes], dtype=real, device=device)
            for name, (axes, _) in inputs.reads.items()
        }

    def add(self, block, at, in_group, of_scores, of_weights, of_reads, sizes=False):
        """Adds a block: its ds, p w and dt; `sizes`: what these are multiplied by counts by its absolute value."""
        size = (lambda x: x.abs()) if sizes else (lambda x: x)
        scale, count = self.inputs.scale, block.k.shape[1]
        self.q[at, in_group, block.begin : block.end] = scale * (of_scores @ size(block.k))
        self.k[at, :count] += scale * (of_scores.transpose(1, 2) @ size(block.q))
        self.v[at, :count] += of_weights.transpose(1, 2) @ size(block.d_o)
        for name, (axes, slope) in self.inputs.reads.items():
            terms = of_reads if slope is None else of_reads * size(slope(block.rows, block.keys))
            self._add_capture(self.captures[name], axes, block, terms)

    def _add_capture(self, total, axes, block, terms):
        """terms [pairs, rows, keys]: those of several batch entries have one place."""
        rows, keys = slice(block.begin, block.end), slice(0, terms.shape[2])
        for own, h in zip(terms, block.h.tolist()):
            index = self.heads.index(h)
            if axes == ("h", "q", "k"):
                total[index, rows, keys] += own
            elif axes == ("h",):
                total[index] += own.sum()
            elif axes == ("k",):
                total[keys] += own.sum(0)
            else:
                raise ValueError(f"captures of axes {axes} are not judged")


def add_exact(block, at, in_group, value, magnitude, floor):
    """A block of the reference: gradients in float64, and by what they are judged."""
    torch, inputs = block.torch, block.inputs
    sizes = torch.maximum(block.t.abs(), 0.5 * inputs.scale * block.terms(block.q, block.k))
    exponent = block.zero_masked(sizes).amax(-1, keepdim=True)
    del sizes
    lse = block.t.logsumexp(-1, keepdim=True)
    p = (block.t - lse).exp_()
    p_size = block.zero_masked(p.clamp(min=criterion.FLUSHED))
    o = block.weighed(p) @ block.v
    o_size = block.weighed_size(p_size) @ block.v.abs()
    o_floor = torch.expm1(STEP * (1 + exponent)) * o_size

    d_p = block.d_o @ block.v.transpose(1, 2)
    delta = (block.d_o * o).sum(-1, keepdim=True)
    delta_size = (block.d_o.abs() * o_size).sum(-1, keepdim=True)
    delta_floor = (block.d_o.abs() * (o_floor + UNSEEN)).sum(-1, keepdim=True) + TERMS_STEPS * STEP * delta_size
    w_d_p = block.weighed(d_p)
    growth = torch.expm1(STEP * (1 + torch.maximum(exponent, lse.abs())))
    p_floor = (p_size * growth).clamp_(max=1)

    dt = p * (w_d_p - delta)
    value.add(block, at, in_group, block.sloped(dt), block.weighed(p), dt)
    dt = p_size * (w_d_p.abs() + delta_size)
    slope_size = block.slope.abs() if block.slope is not None else 1
    magnitude.add(block, at, in_group, dt * slope_size, block.weighed_size(p_size), dt, sizes=True)
    sums = block.weighed_size(TERMS_STEPS * STEP * block.terms(block.d_o, block.v)) + delta_floor
    dt = p_floor * (w_d_p.abs() + delta.abs()) + p_size * sums
    floor.add(block, at, in_group, dt * slope_size, block.weighed_size(p_floor), dt, sizes=True)


def add_plain(block, at, in_group, o, lse, value):
    """A block of plain's backward, in f32. o [pairs, rows, D] and lse [pairs, rows] as they were stored."""
    p = (block.t - lse[..., None]).exp_()
    delta = (block.d_o * o).sum(-1, keepdim=True)
    dt = p * (block.weighed(block.d_o @ block.v.transpose(1, 2)) - delta)
    stored = criterion.BF16.round_weights
    value.add(block, at, in_group, stored(block.sloped(dt)), stored(block.weighed(p)), dt)


class Reference:
    def __init__(self, inputs, budget=BUDGET):
        self.inputs = inputs
        self.pairs = sampled_heads(inputs, budget)
        device = inputs.q.device
        self.b = inputs.torch.tensor([b for b, _ in self.pairs], device=device)
        self.h = inputs.torch.tensor([h for _, h in self.pairs], device=device)
        in_group = inputs.torch.arange(inputs.group, device=device)
        self.q_heads = inputs.torch.unique(self.h[:, None] * inputs.group + in_group)
        self.value, self.magnitude, self.floor = (self._sums(inputs.torch.float64) for _ in range(3))
        for block, at, in_group in self._blocks(inputs.torch.float64):
            add_exact(block, at, in_group, self.value, self.magnitude, self.floor)

    def _sums(self, real):
        return Sums(self.inputs, len(self.pairs), self.q_heads, real)

    def _blocks(self, real):
        inputs = self.inputs
        rows = min(inputs.s, ROWS)
        together = max(1, CHUNK // (rows * inputs.s))
        for first in range(0, len(self.pairs), together):
            at = slice(first, min(first + together, len(self.pairs)))
            for in_group in range(inputs.group):
                for begin in range(0, inputs.s, rows):
                    end = min(begin + rows, inputs.s)
                    yield Block(inputs, self.b[at], self.h[at], in_group, begin, end, real), at, in_group

    def plain(self, o, lse):
        """Plain's gradients from a contender's stored o [B, H, S, D] and lse [B, H, S]."""
        value = self._sums(self.inputs.torch.float32)
        for block, at, in_group in self._blocks(self.inputs.torch.float32):
            stored = (x[block.b, block.h, block.begin : block.end].float() for x in (o, lse))
            add_plain(block, at, in_group, *stored, value)
        return value

    def judge(self, gradients, o, lse, captures=None):
        """gradients: dq [B, H, S, D], dk, dv [B, Hkv, S, D] in bf16; captures: gradients by name. A report as plain
        data."""
        plain = self.plain(o, lse)
        groups = (self.inputs.kv_heads, self.inputs.group)
        tensors = {
            "dq": self._judge(gradients[0].unflatten(1, groups)[self.b, self.h], gradients[0], "q", plain),
            "dk": self._judge(gradients[1][self.b, self.h], gradients[1], "k", plain),
            "dv": self._judge(gradients[2][self.b, self.h], gradients[2], "v", plain),
        }
        for name, given in (captures or {}).items():
            axes, _ = self.inputs.reads[name]
            sampled = given[self.q_heads] if axes[0] == "h" else given
            tensors[f"d_captures['{name}']"] = self._judge(sampled, given, name, plain)
        return {
            "passed": all(part["passed"] for part in tensors.values()),
            "heads": len(self.pairs),
            "tensors": tensors,
        }

    def _judge(self, sampled, everything, name, plain):
        def of(sums):
            return sums.captures[name] if name in self.inputs.reads else getattr(sums, name)

        dtype = "bf16" if everything.dtype == self.inputs.torch.bfloat16 else "f32"
        return criterion.judge_tensor(
            self.inputs.torch,
            value=sampled,
            reference=of(self.value),
            plain=of(plain).to(everything.dtype),
            floor=of(self.floor),
            magnitude=of(self.magnitude),
            unit=criterion.BF16.unit,
            dtype=dtype,
            everything=everything,
        )
