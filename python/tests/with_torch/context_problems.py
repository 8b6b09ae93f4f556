"""The problems that the files test_torch_context*.py give to ranks."""

import torch

from context_cases import Problem

PROBLEMS = {
    "two ranks": Problem(score="alibi"),
    "one rank": Problem(ranks=1, score="alibi", sinks=True),
    "four ranks, a learned table": Problem(ranks=4, score="distance", q_len=50),
    "nothing masked": Problem(ranks=3, mask=None, score="bias", q_len=21),
    "window": Problem(ranks=4, mask="window", score="alibi", q_len=61),
    "documents": Problem(ranks=3, form="documents", score="softcap", q_len=60),
    "prefix, heap": Problem(ranks=3, mask="prefix", score="alibi", plan={"placing": "heap"}),
    "random blocks, as lists": Problem(ranks=4, mask="blocks", form="lists", score="alibi", q_len=64),
    "lists, by head and ragged": Problem(ranks=2, mask="by head", form="lists", q_len=43),
    "a function, by batch": Problem(ranks=2, batch=3, mask="by batch", form="function", score="by batch"),
    "by head": Problem(ranks=4, heads=4, kv_heads=4, mask="by head", score="alibi", q_len=40),
    "rows that attend nothing": Problem(ranks=3, mask="nothing for some", score="alibi"),
    "and a sink": Problem(ranks=3, mask="nothing for some", score="alibi", sinks=True),
    "GQA, two groups": Problem(ranks=2, heads=8, kv_heads=2, score="alibi", sinks=True, options={"head_groups": 2}),
    "GQA 16 to 1": Problem(ranks=2, heads=16, kv_heads=1, q_len=20, score="alibi"),
    "four groups by head, keys kept": Problem(ranks=3, heads=4, kv_heads=4, batch=2, mask="by head", score="bias",
                                              sinks=True, options={"head_groups": 4, "keep_kv": True}),
    "captures reduced": Problem(ranks=4, score="distance", sinks=True, options={"reduce_captures": True, "scale": 0.3}),
    "other head dimensions": Problem(ranks=2, dim=16, v_dim=24, q_len=33),
    "more keys than queries": Problem(ranks=3, q_len=19, kv_len=45, mask="prefix", score="alibi"),
    "more queries than keys": Problem(ranks=3, q_len=45, kv_len=19, score="alibi"),
    "as many rows as ranks": Problem(ranks=4, q_len=4, score="alibi", plan={"chunk": None}),
    "ranks without rows": Problem(ranks=4, q_len=11, score="alibi", sinks=True, plan={"chunk": 8}),
    "one chunk": Problem(ranks=2, q_len=30, plan={"chunk": 64}, score="alibi"),
    "dropout": Problem(ranks=3, dropout=0.4, score="alibi"),
    "dropout, groups of heads": Problem(ranks=2, heads=4, kv_heads=4, dropout=0.25,
                                        options={"head_groups": 2, "dropout_seed": 5}),
    "bf16": Problem(ranks=4, dtype=torch.bfloat16, dim=64, v_dim=64, q_len=96, score="alibi", sinks=True),
    "f16, head dimension 128": Problem(ranks=2, dtype=torch.float16, dim=128, v_dim=128, q_len=64, heads=4, kv_heads=2),
    "f32": Problem(ranks=3, dtype=torch.float32, score="bias", q_len=70, options={"head_groups": 2}),
}

ON_HOSTS = {
    "causal": Problem(score="alibi", q_len=50, sinks=True),
    "window": Problem(mask="window", score="alibi", q_len=61),
    "documents, groups of heads": Problem(form="documents", score="softcap", q_len=60, heads=4, kv_heads=4,
                                          options={"head_groups": 4}),
    "nothing masked, keys kept": Problem(mask=None, score="bias", q_len=33, options={"keep_kv": True}),
    "more keys than queries": Problem(q_len=19, kv_len=45, mask="prefix", score="alibi"),
    "a rank without rows": Problem(q_len=20, score="alibi", plan={"chunk": 8}),
    "random blocks, heap": Problem(mask="blocks", form="lists", q_len=64, plan={"placing": "heap"}),
    "bf16": Problem(dtype=torch.bfloat16, dim=64, v_dim=64, q_len=96, score="alibi"),
}

IN_GRANULES = {
    "causal": Problem(ranks=4, score="alibi", q_len=1024),
    "softcap, window, dropout": Problem(ranks=3, score="softcap", mask="window", dropout=0.3, q_len=900,
                                        plan={"placing": "heap"}),
    "documents, a learned table": Problem(ranks=4, form="documents", score="distance", q_len=1000),
    "groups, by head, in chunks of 256": Problem(ranks=4, heads=4, kv_heads=2, mask="by head", score="alibi", q_len=2048,
                                                 options={"head_groups": 2}, plan={"chunk": 256}),
    "other granules": Problem(ranks=4, score="alibi", q_len=960, plan={"chunk": 64}),
}

FAULTS = {
    "rows reversed": Problem(ranks=2), "a row too few": Problem(ranks=2),
    "local kv_idx": Problem(ranks=3, score="alibi"), "local q_idx": Problem(ranks=3, score="alibi"),
    "gradients added twice": Problem(ranks=2), "own gradients alone": Problem(ranks=2),
    "heads from 0": Problem(ranks=2, heads=4, kv_heads=4, score="alibi", options={"head_groups": 2}),
    "any rows are granules": Problem(ranks=2, score="alibi"),
    "crossed rows stay": Problem(ranks=4, hosts=2, mask=None),
    "seed by rank": Problem(ranks=2, dropout=0.5), "starts of another rank": Problem(ranks=3, score="alibi"),
}

COMPILED = [Problem(ranks=2, heads=4, kv_heads=2, q_len=50, score="alibi", sinks=True, dropout=0.3,
                    plan={"placing": placing}) for placing in ("zigzag", "contiguous", "heap")]

OWN_FIRST_FAULTS = {name: Problem(ranks=2, score="alibi", sinks=True, plan={"placing": "zigzag"}) for name in (
    "rows reversed", "a row too few", "local kv_idx", "heads from 0", "gradients added twice", "own gradients alone",
    "sinks in both parts", "dq of own keys alone", "merged by own lse")}
