"""Random queries and caches of a cell, and float64's answer."""

import math

DTYPES = {"bf16": "bfloat16", "e4m3": "float8_e4m3fn"}
T5_EDGES = (12, 16, 23, 32, 46, 64, 91)
SOFTCAP = 30.0
JUDGED = 16  # sequences


class Inputs:
    """q [B, heads, queries, D], and `caches`: (k, v) of each layer, [B, heads of keys, S, D], or pages [pages, heads of
    keys, page, D], which the table of pages lists in random order. Latent: v is k's first columns."""

    def __init__(self, torch, cell, device, layers):
        self.torch, self.cell, self.device = torch, cell, device
        self.q = torch.randn(cell.batch, cell.q_heads, cell.q_len, cell.qk_dim, device=device).bfloat16()
        self.sinks = torch.randn(cell.q_heads, device=device) if cell.window else None
        self.captures = {}
        if cell.mod == "ALiBi":
            self.captures["slopes"] = 2.0 ** (-8 * torch.arange(1, cell.q_heads + 1, device=device) / cell.q_heads)
        if cell.mod == "T5":
            self.captures["table"] = torch.randn(cell.q_heads, 8 + len(T5_EDGES) + 1, device=device)
        if cell.document:  # the newest one is document 0
            ids = (cell.s - 1 - torch.arange(cell.s, device=device, dtype=torch.int32)) // cell.document
            self.captures["ids"] = ids.expand(cell.batch, cell.s).contiguous()
        self.table = self.lengths = None
        shape = (cell.batch, cell.s, cell.kv_heads)
        if cell.page:
            shape = (self._set_table(), cell.page, cell.kv_heads)
        self.caches = [self._cache(shape) for _ in range(layers)]

    def _set_table(self):
        torch, cell = self.torch, self.cell
        lengths = cell.lengths or (cell.s,) * cell.batch
        shared = cell.prefix // cell.page if cell.page else 0
        pages = [-(-length // cell.page) for length in lengths]
        entries = shared + sum(pages) - shared * cell.batch
        numbers = torch.randperm(entries, dtype=torch.int32)
        table = torch.zeros(cell.batch, max(pages), dtype=torch.int32)
        table[:, :shared] = numbers[:shared]
        begin = shared
        for row, count in zip(table, pages):
            row[shared:count] = numbers[begin : begin + count - shared]
            begin += count - shared
        self.table = table.to(self.device)
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device=self.device)
        return entries

    def _cache(self, shape):
        cell, torch = self.cell, self.torch
        dtype = getattr(torch, DTYPES[cell.kv_dtype])

        def drawn(dim):
            x = torch.randn(*shape, dim, device=self.device, dtype=torch.bfloat16).to(dtype)
            return x.transpose(1, 2)

        k = drawn(cell.qk_dim)
        return (k, k[..., : cell.v_dim] if cell.latent else drawn(cell.v_dim))

    def rows(self, cache, batch):
        """k and v [heads of keys, length, D] of a sequence, in f64."""
        if self.table is None:
            return tuple(x[batch].double() for x in cache)
        length = int(self.lengths[batch])
        pages = self.table[batch, : -(-length // self.cell.page)].long()

        def gathered(x):
            bytes_of = x.view(self.torch.uint8) if x.dtype.itemsize == 1 else x
            found = bytes_of[pages].transpose(0, 1).reshape(x.shape[1], -1, x.shape[3])[:, :length]
            return found.contiguous().view(x.dtype).double()

        return tuple(map(gathered, cache))

    def scores(self, t):
        """The cell's score mod of t [heads, queries, keys] in f64."""
        torch, keys = self.torch, t.shape[-1]
        back = keys - 1 - torch.arange(keys, device=t.device)
        if self.cell.mod == "ALiBi":
            return t - self.captures["slopes"].double()[:, None, None] * back
        if self.cell.mod == "softcap":
            return SOFTCAP * torch.tanh(t / SOFTCAP)
        if self.cell.mod == "T5":
            bucket = back.clamp(max=8) + sum((back >= edge).long() for edge in T5_EDGES)
            return t + self.captures["table"].double()[:, None, bucket]
        return t


SCORE_TEXTS = {
    "ALiBi": "score - slopes[h] * (kv_len - 1 - kv_idx)",
    "softcap": f"{SOFTCAP} * tanh(score / {SOFTCAP})",
    "T5": "score + table[h, min(kv_len - 1 - kv_idx, 8) + "
    + " + ".join(f"i32(kv_len - 1 - kv_idx >= {edge})" for edge in T5_EDGES)
    + "]",
}


def judge(inputs, o):
    """The largest error of o beside float64, by what an unfused computation errs: S and softmax in f32, P in bf16. Up
    to 2 is right (heddle/check.h, a)."""
    torch, worst, plain, cell = inputs.torch, 0.0, 0.0, inputs.cell
    for batch in range(min(cell.batch, JUDGED)):
        k, v = (x[:, -(cell.window or cell.document) :] for x in inputs.rows(inputs.caches[0], batch))
        group = cell.q_heads // cell.kv_heads
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        if k.shape[1] == 0:
            worst = max(worst, 0.0 if (o[batch] == 0).all() else math.inf)
            continue
        t = inputs.scores(inputs.q[batch].double() @ k.transpose(1, 2) / math.sqrt(cell.qk_dim))
        if cell.q_len > 1:
            t = t.masked_fill(torch.ones_like(t, dtype=torch.bool).triu(t.shape[2] - cell.q_len + 1), -math.inf)
        if inputs.sinks is not None:  # a key whose value is 0
            t = torch.cat([t, inputs.sinks.double().reshape(-1, 1, 1)], -1)
            v = torch.cat([v, torch.zeros_like(v[:, :1])], 1)
        right = torch.softmax(t, -1) @ v
        unfused = (torch.softmax(t.float(), -1).bfloat16().double() @ v).to(o.dtype)
        own = o[batch].double()
        worst = max(worst, (own - right).abs().max().item()) if own.isfinite().all() else math.inf
        plain = max(plain, (unfused.double() - right).abs().max().item())
    return worst / plain
