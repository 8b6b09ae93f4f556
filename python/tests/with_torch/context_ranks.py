"""Processes that stay for many tests, each a rank of Gloo groups, or of NCCL's with a GPU each
(HEDDLE_TEST_DEVICE=cuda): importing torch takes longer than the tests.

The parent sends each process the name of a function of context_cases.py or its neighbours and its arguments, and gets
what it returns, or what it raised.
"""

import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import NamedTuple

GLOO_SECONDS = 20  # after which a rank stops to wait for another one
REPLY_SECONDS = 60


class Failure(NamedTuple):
    """What a rank raised."""

    kind: str  # the name of its type
    message: str
    trace: str


def send(connection, value):
    """As bytes: torch would share the memory of tensors between processes, by servers of its own."""
    connection.send_bytes(pickle.dumps(value))


def receive(connection):
    return pickle.loads(connection.recv_bytes())


def on_cpu(made):
    """The same with all tensors on the CPU: the parent has no GPU."""
    if hasattr(made, "cpu"):
        return made.cpu()
    if isinstance(made, Failure):
        return made
    if isinstance(made, dict):
        return {name: on_cpu(one) for name, one in made.items()}
    return type(made)(on_cpu(one) for one in made) if isinstance(made, (list, tuple)) else made


class Processes:
    """`size` processes of one world, with a group of the first n ranks for each n."""

    def __init__(self, size):
        self.size = size
        self._folder = tempfile.TemporaryDirectory(prefix="heddle-ranks-")
        address = str(Path(self._folder.name) / "socket")
        listener = Listener(address, "AF_UNIX", backlog=size)
        environment = {**os.environ, "OMP_NUM_THREADS": "1",
                       "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        self._processes = [
            subprocess.Popen([sys.executable, __file__, address, str(rank), str(size)], env=environment)
            for rank in range(size)]
        self._connections = {}
        for _ in range(size):
            connection = listener.accept()
            self._connections[receive(connection)] = connection
        listener.close()

    def start(self, function, *arguments, ranks):
        for rank in range(ranks) if isinstance(ranks, int) else ranks:
            send(self._connections[rank], (function, arguments))

    def reply(self, rank, seconds=REPLY_SECONDS):
        """What the rank returned, or the Failure that it raised; None if it has died."""
        if not self._connections[rank].poll(seconds):
            self.close()
            raise AssertionError(f"rank {rank} gave no answer in {seconds} s: it hangs")
        try:
            return receive(self._connections[rank])
        except (EOFError, ConnectionError):
            return None

    def replies(self, function, *arguments, ranks):
        """One for each rank, Failures among them."""
        self.start(function, *arguments, ranks=ranks)
        return [self.reply(rank) for rank in (range(ranks) if isinstance(ranks, int) else ranks)]

    def results(self, function, *arguments, ranks):
        """One for each rank. Raises AssertionError with the first Failure."""
        made = self.replies(function, *arguments, ranks=ranks)
        for one in made:
            if isinstance(one, Failure):
                raise AssertionError(f"{one.kind}: {one.message}\n{one.trace}")
        return made

    def are_alive(self):
        return all(process.poll() is None for process in self._processes)

    def close(self):
        for connection in self._connections.values():
            connection.close()
        for process in self._processes:
            process.kill()
            process.wait()
        self._folder.cleanup()


def mesh_of(hosts, per_host, group, device):
    """A mesh of groups with a timeout: those of init_device_mesh wait for half an hour."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    ranks = torch.arange(hosts * per_host).reshape(hosts, per_host)
    own = [[one for one in [group(members) for members in lists.tolist()] if dist.get_rank(one) >= 0]
           for lists in (ranks.T, ranks)]
    return DeviceMesh.from_group([one for (one,) in own], device, ranks, mesh_dim_names=("hosts", "gpus"))


def serve(address, rank, size):
    """A process: runs what it is asked to until the parent goes."""
    connection = Client(address, "AF_UNIX")
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    folder = Path(address).parent
    on_gpus = os.environ.get("HEDDLE_TEST_DEVICE") == "cuda"
    if on_gpus:
        torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo", rank=rank, world_size=size,
                            init_method=f"file://{folder}/rendezvous",
                            timeout=timedelta(seconds=GLOO_SECONDS))
    import context_beside_torch
    import context_cases
    import context_decoding
    import context_faults

    modules = context_cases, context_faults, context_beside_torch, context_decoding
    if on_gpus:
        context_cases.DEVICE = f"cuda:{rank}"

    def group(members, seconds=GLOO_SECONDS):
        return dist.new_group(members, timeout=timedelta(seconds=seconds))

    context_cases.GROUPS.update({n: group(list(range(n))) for n in range(1, size + 1)})
    for hosts in sorted({2, size // 2}) if size >= 4 and size % 2 == 0 else ():  # pretended, on one machine
        context_cases.GROUPS[hosts, size // hosts] = mesh_of(hosts, size // hosts, group, "cuda" if on_gpus else "cpu")
    context_cases.PAIRS.update({one: group([0, one]) for one in range(1, size)}, late=group([0, 1], 3))
    send(connection, rank)
    while True:
        try:
            function, arguments = receive(connection)
        except (EOFError, ConnectionError):
            os._exit(0)  # without torch's farewells, which wait for the other ranks
        try:
            owner = next(module for module in modules if hasattr(module, function))
            made = getattr(owner, function)(*arguments)
        except BaseException as error:
            made = Failure(type(error).__name__, str(error), traceback.format_exc())
        send(connection, on_cpu(made))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import context_ranks  # Failure's class must have the parent's name

    context_ranks.serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
