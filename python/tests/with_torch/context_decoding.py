"""A tiny model that decodes with a cache over several ranks, and what such a cache refuses."""

import torch
import torch.distributed as dist

import context_cases
from context_cases import GROUPS, Problem
from gradient_reference import dense
from heddle.torch import AuxRequest, context_parallel


VOCABULARY, WIDTH = 32, 16


def tiny_model(heads, kv_heads, dtype):
    """Weights of a model of one attention: embedding, q, k, v, out."""
    problem = Problem(dtype=dtype)
    share = WIDTH // heads
    return [problem.draw(20 + i, *shape, dtype=dtype) for i, shape in enumerate(
        ((VOCABULARY, WIDTH), (WIDTH, WIDTH), (WIDTH, kv_heads * share), (WIDTH, kv_heads * share),
         (WIDTH, VOCABULARY)))]


def generated(ranks, dtype, heads=4, kv_heads=2, page=4, prompt=9, steps=14, window=6):
    """Greedy tokens and their logits from a prompt, with a cache over some ranks; 0 ranks: over the whole sequence each
    time, by torch's own operations."""
    embedding, to_q, to_k, to_v, to_logits = tiny_model(heads, kv_heads, dtype)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCABULARY, (2, prompt), generator=generator).to(context_cases.DEVICE)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.promote_types(dtype, torch.float32),
                          device=context_cases.DEVICE)
    sinks = torch.tensor([0.1, -0.2, 0.3, 0.0], dtype=slopes.dtype, device=context_cases.DEVICE)
    score_mod = lambda score, b, h, q, kv: score - slopes[h] * (q - kv)
    mask_mod = lambda b, h, q, kv: (q - kv < window) | (kv == 0)
    cache = ranks and context_parallel.ContextCache(2, kv_heads, 40, WIDTH // heads, group=GROUPS[ranks], page=page,
                                                    dtype=dtype, device=context_cases.DEVICE)
    new, logits = tokens, []
    for _ in range(steps):
        x = embedding[new if ranks else tokens]
        query, key, value = ((x @ weight).unflatten(2, (-1, WIDTH // heads)).transpose(1, 2)
                             for weight in (to_q, to_k, to_v))
        if ranks:
            cache.append(key, value)
            out, aux = cache.attention(query, score_mod=score_mod, mask_mod=mask_mod, sinks=sinks, enable_gqa=True,
                                       return_aux=AuxRequest(lse=True))
        else:
            whole_mask = lambda b, h, q, kv: (kv <= q) & mask_mod(b, h, q, kv)
            out, _ = dense(query, key, value, score_mod, whole_mask, sinks=sinks)
        logits.append((out.transpose(1, 2).flatten(2)[:, -1] + x[:, -1]) @ to_logits)
        new = logits[-1].argmax(-1, keepdim=True)
        tokens = torch.cat((tokens, new), 1)
    return tokens, torch.stack(logits)


# Rows that three sequences get in each step; before the third one they are cut to these lengths.
RAGGED_STEPS = [9, 4, 0], [1, 1, 5], [2, 0, 3], [1, 1, 1]
CUT = 2, (10, 0, 3)


def ragged(ranks, dtype, computes=None, page=2, heads=4, kv_heads=2, dim=8):
    """(out, lse) of each step of sequences of different lengths: of a cache over some ranks; 0 ranks: sequence by
    sequence, by torch's own operations in the type `computes`."""
    problem = Problem(dtype=dtype)
    slopes = problem.draw(1, heads, dtype=torch.promote_types(dtype, torch.float32))
    score_mod = lambda score, b, h, q, kv: score - slopes[h].abs() * (q - kv)
    mask_mod = lambda b, h, q, kv: (q - kv < 6 + b) | (kv == 0)
    cache = ranks and context_parallel.ContextCache(3, kv_heads, 16, dim, group=GROUPS[ranks], page=page, dtype=dtype,
                                                    device=context_cases.DEVICE)
    kept = [[problem.draw(2, 1, kv_heads, 0, dim, dtype=computes)] * 2 for _ in range(3)]
    found = []
    for step, counts in enumerate(RAGGED_STEPS):
        if step == CUT[0]:
            if ranks:
                cache.truncate(CUT[1])
            kept = [[x[:, :, :length] for x in one] for one, length in zip(kept, CUT[1])]
        query, *new = (problem.draw(10 * step + i, 3, extent, max(counts), dim)
                       for i, extent in enumerate((heads, kv_heads, kv_heads)))
        if ranks:
            cache.append(*new, counts=counts)
            out, aux = cache.attention(query, score_mod=score_mod, mask_mod=mask_mod, enable_gqa=True, counts=counts,
                                       return_aux=AuxRequest(lse=True))
            found.append((out, aux.lse))
            continue
        query, *new = (x.to(computes) for x in (query, *new))
        out, lse = torch.zeros_like(query), torch.full_like(query[..., 0], -torch.inf)
        for b, count in enumerate(counts):
            if count == 0:
                continue
            kept[b] = [torch.cat((x, y[b:b + 1, :, :count]), 2) for x, y in zip(kept[b], new)]
            first = kept[b][0].shape[2] - count
            scored = lambda score, b_, h, q, kv, first=first: score_mod(score, b_, h, q + first, kv)
            masked = lambda b_, h, q, kv, b=b, first=first: (kv <= q + first) & mask_mod(b_ + b, h, q + first, kv)
            out[b, :, :count], lse[b, :, :count] = (
                x[0] for x in dense(query[b:b + 1, :, :count], *kept[b], scored, masked))
        found.append((out, lse))
    return found


def refused_by_cache(ranks):
    """What a cache refuses, by name; the last entry is a call of which one rank's differs."""
    cache = context_parallel.ContextCache(1, 2, 8, 4, group=GROUPS[ranks], page=2, dtype=torch.float64,
                                          device=context_cases.DEVICE, checks="calls")
    rows = lambda n, heads=2: torch.zeros(1, heads, n, 4, dtype=torch.float64, device=context_cases.DEVICE)
    cache.append(rows(3), rows(3))
    calls = [lambda: cache.append(rows(6), rows(6)), lambda: cache.append(rows(1).float(), rows(1)),
             lambda: cache.append(rows(2), rows(1)),
             lambda: cache.append(rows(2), rows(2), counts=[3]), lambda: cache.truncate([4]),
             lambda: cache.attention(rows(4)), lambda: cache.attention(rows(1).requires_grad_()),
             lambda: cache.attention(rows(1), scale=1.0 + dist.get_rank())]
    found = []
    for call in calls:
        try:
            call()
            found.append("accepted")
        except (ValueError, NotImplementedError) as error:
            found.append(str(error))
    return found
