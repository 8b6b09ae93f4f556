#!/usr/bin/env python3
"""heddle.torch beside torch's own attention, in one run: host time of a call, making block masks, the prefill of a
Llama in transformers, and the time of common mods. On a GPU if there is one, else on the CPU with smaller problems.

    PYTHONPATH=build/python/python bench/compare_torch.py [host] [masks] [llama] [mods] [--json FILE]

Every figure is the best of several rounds, every ratio is of two times of this run, and every result is checked against
torch's eager flex_attention in f64 on a part of the heads before it is timed.
"""

import argparse
import json
import math
import time

import torch
from torch.nn.attention import flex_attention as flex

import heddle.torch
import heddle.viz

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
ROUNDS = 7
results = []


def wait():
    if ON_GPU:
        torch.cuda.synchronize()


def emit(section, what, **figures):
    results.append({"section": section, "what": what, **figures})
    print(
        f"{section:6} {what:44} "
        + "  ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in figures.items()
        ),
        flush=True,
    )


def host_microseconds(call, calls=100):
    """Of a call that nobody waits for."""
    for _ in range(20):
        call()
    best = math.inf
    for _ in range(ROUNDS):
        wait()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - began) / calls)
    wait()
    return best * 1e6


def milliseconds(call):
    """Of a call until its work is done."""
    return heddle.viz.seconds(call, rounds=ROUNDS, at_least=0.05, wait=wait) * 1e3


def randoms(*shape, count=3):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).to(DEVICE, DTYPE) for _ in range(count)]


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


@torch.no_grad()
def host():
    length = 256 if ON_GPU else 8
    q, k, v = randoms(1, 8, length, 64) if ON_GPU else randoms(1, 1, length, 8)
    slopes = torch.rand(q.shape[1], device=DEVICE)
    ours = heddle.torch.create_block_mask(causal, None, None, length, length, DEVICE)
    torchs = flex.create_block_mask(causal, None, None, length, length, DEVICE)

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    calls = {
        "heddle plain": lambda: heddle.torch.flex_attention(q, k, v),
        "heddle causal": lambda: heddle.torch.flex_attention(q, k, v, block_mask=ours),
        "heddle ALiBi, causal": lambda: heddle.torch.flex_attention(q, k, v, alibi, ours),
        "heddle torch's causal": lambda: heddle.torch.flex_attention(q, k, v, block_mask=torchs),
        "heddle SDPA, causal": lambda: heddle.torch.scaled_dot_product_attention(q, k, v, is_causal=True),
        "torch SDPA, causal": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    }
    compiled = torch.compile(flex.flex_attention)
    calls["flex compiled, causal"] = lambda: compiled(q, k, v, block_mask=torchs)
    calls["flex compiled, ALiBi, causal"] = lambda: compiled(q, k, v, alibi, torchs)
    times = {}
    for name, call in calls.items():
        times[name] = host_microseconds(call)
        emit("host", name, us=times[name])
    for what in ("causal", "ALiBi, causal"):
        emit("host", what, of_flex=times[f"heddle {what}"] / times[f"flex compiled, {what}"])


@torch.no_grad()
def masks():
    length = 131072 if ON_GPU else 8192
    lengths = torch.full((length // 4096 or 1,), length // (length // 4096 or 1))
    document = torch.repeat_interleave(torch.arange(len(lengths)), lengths).to(DEVICE)

    def documents(b, h, q_idx, kv_idx):
        return (document[q_idx] == document[kv_idx]) & (q_idx >= kv_idx)

    def lists(create):
        mask = create(documents, None, None, length, length, DEVICE)
        return mask.kv_indices, mask.full_kv_indices

    compiled = torch.compile(flex.create_block_mask)
    mine = milliseconds(lambda: lists(heddle.torch.create_block_mask))
    theirs = milliseconds(lambda: lists(compiled))
    what = f"causal documents, {length} tokens"
    emit("masks", f"{what}, lists", ms=mine, torch_ms=theirs, faster=theirs / mine)
    for name, create in {"heddle": heddle.torch.create_block_mask, "torch compiled": compiled}.items():
        if ON_GPU:
            result, peak = allocated(lambda create=create: lists(create))
            emit("masks", f"{what}, memory of {name}", lists_mib=result, peak_mib=peak)
    emit(
        "masks",
        f"{what}, without lists",
        ms=milliseconds(lambda: heddle.torch.create_block_mask(documents, None, None, length, length, DEVICE)),
    )


def allocated(call):
    """MiB of a call's result, and the most that stood at once."""
    wait()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    wait()
    sizes = [torch.cuda.max_memory_allocated() - before, sum(x.numel() * x.element_size() for x in result)]
    return sizes[1] / 2**20, sizes[0] / 2**20


@torch.no_grad()
def llama():
    """Layers of Llama 3's 8B: a prefill in transformers, beside its other attention functions."""
    import transformers

    import heddle.hf

    heddle.hf.register()
    shape = (
        {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
        if ON_GPU
        else {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2}
    )
    longest = 16384 if ON_GPU else 256
    config = transformers.LlamaConfig(
        **shape, num_hidden_layers=4, vocab_size=32000, max_position_embeddings=longest, rope_theta=500000.0
    )
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = transformers.LlamaModel._from_config(config, dtype=DTYPE).eval()
    names = ["heddle", "sdpa"] + (["flash_attention_2"] if transformers.utils.is_flash_attn_2_available() else [])
    for batch, length, is_padded in ((1, longest, False), (8, longest // 8, False), (8, longest // 8, True)):
        tokens = torch.randint(0, 32000, (batch, length), device=DEVICE)
        given = {"input_ids": tokens}
        if is_padded:
            given["attention_mask"] = torch.ones_like(tokens)
            given["attention_mask"][1::2, : length // 3] = 0
        times, outs = {}, {}
        for name in names:
            model.set_attn_implementation(name)
            outs[name] = model(**given, use_cache=False).last_hidden_state.float()
            times[name] = milliseconds(lambda: model(**given, use_cache=False))
        if is_padded:  # rows of padding may hold anything
            outs = {name: x[given["attention_mask"].bool()] for name, x in outs.items()}
        apart = {name: ((x - outs["sdpa"]).norm() / outs["sdpa"].norm()).item() for name, x in outs.items()}
        emit(
            "llama",
            f"{batch} x {length}{', padded' if is_padded else ''}",
            **{f"{name}_ms": ms for name, ms in times.items()},
            of_fastest=times["heddle"] / min(ms for name, ms in times.items() if name != "heddle"),
            difference=apart["heddle"],
        )


def common_mods(heads, length):
    generator = torch.Generator().manual_seed(1)
    slopes, pad = (
        torch.rand(heads, generator=generator).to(DEVICE),
        torch.randn(1, length, generator=generator).to(DEVICE),
    )
    table = torch.randn(2 * 128 + 1, heads, generator=generator).to(DEVICE)
    document = (torch.arange(length) // (length // 8)).to(DEVICE)
    bias = torch.randn(heads, length, length, device=DEVICE, dtype=DTYPE)
    temperature = (torch.rand(length, generator=generator) + 0.5).to(DEVICE)
    prefix = torch.tensor([length // 4], device=DEVICE)
    lower = torch.tensor([length * 3 // 4], device=DEVICE)
    side = math.isqrt(length)
    scores = {
        "ALiBi": lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx),
        "softcap": lambda score, b, h, q_idx, kv_idx: 20.0 * torch.tanh(score / 20.0),
        "relative position": lambda score, b, h, q_idx, kv_idx: (
            score + table[(q_idx - kv_idx).clamp(-128, 128) + 128, h]
        ),
        "padding bias": lambda score, b, h, q_idx, kv_idx: score + pad[b, kv_idx],
        "temperature": lambda score, b, h, q_idx, kv_idx: score * temperature[q_idx],
        "dense bias": lambda score, b, h, q_idx, kv_idx: score + bias[h, q_idx, kv_idx],
    }
    masks = {
        "causal": causal,
        "window 1024": lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx <= 1024),
        "causal documents": lambda b, h, q_idx, kv_idx: (document[q_idx] == document[kv_idx]) & (q_idx >= kv_idx),
        "prefix": lambda b, h, q_idx, kv_idx: (kv_idx < prefix[b]) | (q_idx >= kv_idx),
        "lengths": lambda b, h, q_idx, kv_idx: kv_idx < lower[b],
        "chunked": lambda b, h, q_idx, kv_idx: (q_idx // 512 == kv_idx // 512) & (q_idx >= kv_idx),
        "dilated": lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & ((q_idx - kv_idx) % 4 == 0),
        "global and window": lambda b, h, q_idx, kv_idx: ((q_idx - kv_idx).abs() <= 256) | (kv_idx < 64) | (q_idx < 64),
        "2-D neighbourhood": lambda b, h, q_idx, kv_idx: (
            ((q_idx // side - kv_idx // side).abs() <= 6) & ((q_idx % side - kv_idx % side).abs() <= 6)
        ),
    }
    return [(name, score, None) for name, score in scores.items()] + [
        (name, None, mask) for name, mask in masks.items()
    ]


def is_right(out, q, k, v, score, mask):
    """On two heads, beside f64; twice plain torch's error in the same type is allowed."""
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    block = None if mask is None else flex.create_block_mask(mask, None, None, q.shape[2], k.shape[2], DEVICE)
    parts = [x[:, :2] for x in (q, k, v)]
    want = flex.flex_attention(*(x.double() for x in parts), score, block)
    plain = flex.flex_attention(*parts, score, block).double()
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = False
    allowed = 2 * (plain - want).abs().max() + 1e-5
    return bool((out[:, :2].double() - want).abs().max() <= allowed)


@torch.no_grad()
def mods():
    batch, heads, length, head_dim = (2, 16, 8192, 128) if ON_GPU else (1, 4, 1024, 64)
    q, k, v = randoms(batch, heads, length, head_dim)
    small = [x[:1, :, :2048].contiguous() for x in (q, k, v)]
    ratios = []
    for name, score, mask in common_mods(heads, length):
        torch._dynamo.reset()  # else torch gives up compiling after some mods
        compiled = torch.compile(flex.flex_attention)
        ours = theirs = None
        if mask is not None:
            ours = heddle.torch.create_block_mask(mask, None, None, length, length, DEVICE)
            theirs = flex.create_block_mask(mask, None, None, length, length, DEVICE)
        short = (
            None if mask is None else heddle.torch.create_block_mask(mask, None, None, *[small[0].shape[2]] * 2, DEVICE)
        )
        right = is_right(heddle.torch.flex_attention(*small, score, short), *small, score, mask)
        mine = milliseconds(lambda: heddle.torch.flex_attention(q, k, v, score, ours))
        other = milliseconds(lambda: compiled(q, k, v, score, theirs))
        ratios.append(other / mine)
        emit("mods", name, ms=mine, flex_ms=other, faster=other / mine, right=right)
    emit("mods", "geometric mean", faster=math.exp(sum(map(math.log, ratios)) / len(ratios)))


SECTIONS = {"host": host, "masks": masks, "llama": llama, "mods": mods}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", help="host, masks, llama, mods; all if none is named")
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    unknown = set(arguments.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))} is none of {', '.join(SECTIONS)}")
    print(torch.cuda.get_device_name() if ON_GPU else "CPU", f"torch {torch.__version__}, heddle {heddle.__version__}")
    for name in arguments.sections or SECTIONS:
        SECTIONS[name]()
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
