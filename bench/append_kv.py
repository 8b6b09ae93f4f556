"""append_kv on a GPU beside torch's indexed assignment and a copy of as many bytes, in CUDA graphs.

  python bench/append_kv.py

8 heads of D 128 in bf16, pages of 16 rows in random order. Each graph has 32 calls on caches of their own; microseconds
of one call, the median of 21 replays. `copy`: torch's copy_ of the new rows' bytes to as many others.
"""

import torch

from heddle.torch import serving

HEADS, D, PAGE, CALLS = 8, 128, 16, 32
CELLS = ((1, 1), (64, 1), (256, 1), (1, 2048), (8, 2048))  # sequences, new rows


def time_of(calls):
    """Microseconds of one of the calls, of which a graph runs each once."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(21):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / len(calls))
    return sorted(times)[len(times) // 2]


def by_torch(keys, values, k, v, lengths, table):
    position = lengths.long()[:, None] + torch.arange(k.shape[1], device=k.device)
    entry, row = table.long().gather(1, position // PAGE), position % PAGE
    keys[entry, row] = k
    values[entry, row] = v


def cell(batch, rows):
    device = "cuda"
    pages = batch * ((rows + 100) // PAGE + 1)
    table = torch.randperm(pages, device=device).view(batch, -1).to(torch.int32)
    lengths = torch.randint(0, 100, (batch,), device=device, dtype=torch.int32)
    k, v = (torch.randn(batch, rows, HEADS, D, device=device, dtype=torch.bfloat16) for _ in range(2))
    layers = max(1, min(CALLS, (8 << 30) // (pages * PAGE * HEADS * D * 4)))
    caches = [[torch.zeros(pages, PAGE, HEADS, D, device=device, dtype=torch.bfloat16) for _ in range(2)]
              for _ in range(layers)]
    narrow = [[x.to(torch.float8_e4m3fn) for x in pair] for pair in caches]
    angles = torch.randn(rows + 200, D // 2, device=device)
    factors = torch.ones(batch, HEADS, device=device)
    rotary = serving.Rotary(angles, angles, False)
    other = torch.empty_like(k), torch.empty_like(v)
    times = {
        "append_kv": time_of([lambda c=c: serving.append(*c, k, v, lengths, table) for c in caches]),
        "with rotary": time_of([lambda c=c: serving.append(*c, k, v, lengths, table, rotary=rotary) for c in caches]),
        "to e4m3": time_of([lambda c=c: serving.append(*c, k, v, lengths, table, k_descale=factors, v_descale=factors)
                            for c in narrow]),
        "torch": time_of([lambda c=c: by_torch(*c, k, v, lengths, table) for c in caches]),
        "copy": time_of([lambda: (other[0].copy_(k), other[1].copy_(v)) for _ in caches]),
    }
    print(f"B {batch}, {rows} rows: " + ", ".join(f"{name} {one:.1f}" for name, one in times.items())
          + f"; of torch's {times['append_kv'] / times['torch']:.2f}, of the copy {times['append_kv'] / times['copy']:.2f}",
          flush=True)


if __name__ == "__main__":
    print(torch.cuda.get_device_name(), torch.__version__)
    with torch.no_grad():
        for batch, rows in CELLS:
            cell(batch, rows)
