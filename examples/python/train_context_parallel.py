"""Trains the model of examples/train with each sequence spread over several processes, and holds its losses against
those of one process in double precision (examples/train/expected_losses.txt).

    python examples/python/train_context_parallel.py [processes, 4 if not given] [steps, 30]
    torchrun --nproc-per-node 2 examples/python/train_context_parallel.py      # on two GPUs, over NCCL

Each process holds some rows of every sequence. All layers but attention work on single rows; attention receives the
keys and values that its rows read. The loss is the local sum divided by the global count, and the gradients of all
parameters, the learned mods among them, are added up over the processes.
"""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from heddle.torch import context_parallel

EXAMPLES = Path(__file__).resolve().parents[1]
TOLERANCE = 2e-6  # of the losses: nats a character


def model_of_one_process():
    """examples/train/expected.py: the model, its first numbers, and its attention on the whole score matrix."""
    spec = importlib.util.spec_from_file_location("expected", EXAMPLES / "train" / "expected.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(rank: int, size: int, steps: int, device: torch.device) -> list[float]:
    expected = model_of_one_process()
    text = (EXAMPLES / "data" / "text.txt").read_bytes()
    kinds = sorted(set(text))
    tokens = torch.tensor([kinds.index(byte) for byte in text])
    batch, window = expected.BATCH, expected.WINDOW
    model = expected.Model(len(kinds))

    def in_f32(x):
        return x.detach().float().to(device).requires_grad_()

    model.embedding, model.prediction = in_f32(model.embedding), in_f32(model.prediction)
    for block in model.blocks:
        block.update({name: in_f32(x) for name, x in block.items()})
    parameters = model.parameters()
    adam = torch.optim.Adam(parameters, lr=3e-3)

    plan = context_parallel.partition(lambda b, h, q, kv: kv <= q, q_len=window, chunk=4, device=device)
    if rank == 0:
        print(plan.explain(), flush=True)
    buckets = expected.BUCKET_OF[-1].flip(0).to(device)  # by distance

    def attention(qkv, slopes, table):
        q, k, v = (x.reshape(batch, -1, expected.HEADS, expected.HEAD_DIM).transpose(1, 2)
                   for x in qkv.split(expected.WIDTH, -1))

        def score_mod(score, b, h, q_idx, kv_idx):
            return score + slopes[h] * (kv_idx - q_idx) + table[buckets[(q_idx - kv_idx).clamp(min=0)], h]

        out = context_parallel.attention(q, k, v, plan, score_mod=score_mod)
        return out.transpose(1, 2).reshape(-1, expected.WIDTH)

    expected.attention = attention
    expected.cross_entropy = lambda scores, wanted: cross_entropy(scores, wanted, reduction="sum") / (batch * window)
    losses = []
    for step in range(steps):
        starts = torch.tensor([(step * batch + n) * 997 % (len(text) - window) for n in range(batch)])
        rows = (starts[:, None] + torch.arange(window + 1)).to(tokens.device)
        # Labels are the next characters of the whole sequence: they are shifted before they are sharded.
        characters, wanted = (context_parallel.shard(tokens[x].to(device), plan, dim=1)
                              for x in (rows[:, :-1], rows[:, 1:]))
        loss = model.loss(characters.flatten(), wanted.flatten())  # this process's share
        adam.zero_grad()
        loss.backward()
        for x in parameters:
            dist.all_reduce(x.grad)
        adam.step()
        whole = loss.detach()
        dist.all_reduce(whole)
        losses.append(whole.item())
    return losses


def run(rank: int, size: int, steps: int, address: str | None) -> None:
    on_gpus = address is None and torch.cuda.device_count() >= size
    if on_gpus:
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if on_gpus else "gloo", init_method=address, rank=rank, world_size=size)
    losses = train(rank, size, steps, torch.device("cuda", rank) if on_gpus else torch.device("cpu"))
    dist.destroy_process_group()
    if rank:
        return
    lines = (EXAMPLES / "train" / "expected_losses.txt").read_text().splitlines()
    wanted = [float(line.split()[1]) for line in lines if not line.startswith("#")]
    worst = max(abs(x - y) for x, y in zip(losses, wanted))
    for step in range(0, steps, max(1, steps // 5)):
        print(f"step {step:3}  loss {losses[step]:.6f}, of one process in double precision {wanted[step]:.6f}")
    print(f"{size} processes, {steps} steps: the losses differ by at most {worst:.1e} nats a character")
    if worst > TOLERANCE:
        raise SystemExit(f"the losses differ by {worst}; up to {TOLERANCE} is accepted")


def main() -> None:
    if "RANK" in os.environ:  # torchrun
        run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[1]) if len(sys.argv) > 1 else 30, None)
        return
    size, steps = (int(given) for given in (*sys.argv[1:], *("4", "30")[len(sys.argv) - 1:]))
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, (size, steps, f"file://{folder}/rendezvous"), nprocs=size)


if __name__ == "__main__":
    main()
