"""The ranks of a context parallel group, and how they find out that they disagree."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

c10d: Any = getattr(dist, "distributed_c10d", None)  # a torch without torch.distributed has none


class Ranks(NamedTuple):
    """A process group by its name, this process's rank in it, and how many ranks it has. It does not keep the group
    alive: destroy_process_group() must end Gloo's threads before the interpreter ends.

    On several hosts ranks h * per_host to (h + 1) * per_host - 1 stand on host h, and two more groups have a name: the
    ranks of this host, and those of this rank's number on each host. With one host per_host is 0."""

    name: str
    rank: int
    size: int
    per_host: int = 0
    host_name: str = ""
    rail_name: str = ""

    @property
    def group(self) -> Any:
        return c10d._resolve_process_group(self.name)

    @property
    def host(self) -> Any:
        return c10d._resolve_process_group(self.host_name)

    @property
    def rail(self) -> Any:
        return c10d._resolve_process_group(self.rail_name)

    @property
    def near(self) -> list[int]:
        """The ranks among which rows go to the queries that read them: in the order of their group."""
        if not self.per_host:
            return list(range(self.size))
        first = self.rank // self.per_host * self.per_host
        return list(range(first, first + self.per_host))

    @property
    def far(self) -> list[int]:
        """The ranks of this rank's number on all hosts, likewise."""
        return list(range(self.rank % self.per_host, self.size, self.per_host))


def ranks_of(group: Any) -> Ranks:
    """The ranks of a ProcessGroup, a DeviceMesh of one dimension or of two (hosts, then the GPUs of each), or None: all
    processes.

    Raises RuntimeError if torch.distributed is not initialised, TypeError for anything else, ValueError for a mesh of
    other dimensions, for one whose processes no group has together, and for a group that misses this process.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError("torch.distributed has no process group yet: call torch.distributed.init_process_group "
                           "first")
    if hasattr(group, "get_group") and hasattr(group, "ndim"):
        if group.ndim not in (1, 2):
            raise ValueError(f"group is a DeviceMesh of {group.ndim} dimensions; one of 1 dimension, or of 2 (hosts, "
                             "then the GPUs of each), is accepted: take them by their names, mesh['cp']")
        if group.ndim == 2:
            return ranks_on_hosts(group)
        group = group.get_group()
    if group is None:
        group = dist.group.WORLD
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("group misses this process; each process that calls must be one of its ranks")
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"group is {type(group).__name__}; a ProcessGroup, a DeviceMesh of 1 or 2 dimensions and "
                        "None are accepted")
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError("group misses this process; each process that calls must be one of its ranks")
    return Ranks(group.group_name, rank, dist.get_world_size(group))


def ranks_on_hosts(mesh: Any) -> Ranks:
    """The ranks of a mesh [hosts, GPUs of each]."""
    members = mesh.mesh.flatten().tolist()
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError("group misses this process; each process that calls must be one of its ranks")
    if members != sorted(members):
        raise ValueError(f"group is a DeviceMesh of processes {members}; ascending ones are accepted, as "
                         "init_device_mesh makes them")
    hosts, per_host = mesh.shape
    if hosts == 1:
        return ranks_of(mesh.get_group(1))
    rank = coordinate[0] * per_host + coordinate[1]
    rail = mesh.get_group(0).group_name
    if per_host == 1:
        return Ranks(rail, rank, hosts, 1)
    return Ranks(group_of(members).group_name, rank, len(members), per_host, mesh.get_group(1).group_name, rail)


def group_of(members: list[int]) -> Any:
    """The group that has these processes. Raises ValueError if nobody has made it."""
    for group, ranks in c10d._world.pg_group_ranks.items():
        if sorted(ranks) == members and all(ranks[member] == i for i, member in enumerate(members)):
            return group
    raise ValueError(f"group is a DeviceMesh of processes {members}, and no group has them all; call "
                     "dist.new_group of them on all processes before")


def device_types(ranks: Ranks) -> dict[str, str]:
    """The kinds of devices whose tensors the group carries, and by which backend."""
    found = {}
    for part in dist.get_backend_config(ranks.group).split(","):
        device, _, backend = part.partition(":")
        found[device] = backend
    return found


def check_device(ranks: Ranks, device: torch.device) -> None:
    """Raises ValueError for tensors that the group cannot exchange."""
    backend = device_types(ranks).get(device.type)
    if backend is None or device.type == "cuda" and backend == "gloo":
        raise ValueError(f"the tensors are on {device}, and the group's backend is {dist.get_backend(ranks.group)}; "
                         f"{'nccl' if device.type == 'cuda' else 'gloo'} carries tensors of {device.type}")


def own_device(ranks: Ranks) -> torch.device:
    """Where small tensors of a collective stand: on the CPU if the group carries such."""
    if "cpu" in device_types(ranks):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def word(*values: Any) -> int:
    """A number of 63 bits for values whose repr says all of them."""
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=8).digest(), "little") >> 1


def word_of_content(x: torch.Tensor) -> int:
    """A number for the type, shape and elements of a tensor. On a GPU it waits."""
    plain = x.detach().resolve_neg().cpu().contiguous()
    raw = plain.view(torch.uint8) if plain.dim() else plain.reshape(1).view(torch.uint8)
    content = hashlib.blake2b(raw.numpy().tobytes(), digest_size=8).digest()
    return word(str(x.dtype), tuple(x.shape), content)


def agree(ranks: Ranks, stated: Sequence[tuple[str, Any]], error: BaseException | None = None) -> None:
    """Compares what each rank states, in a collective of all ranks.

    stated: what it is about, and a value, whose repr counts; the same number of entries on all ranks, also beside an
    error. Raises `error` if it is given; RuntimeError if another rank has one; ValueError that names the first entry on
    which ranks differ.
    """
    mine = torch.tensor([0 if error is None else 1, *(word(value) for _, value in stated)], dtype=torch.int64,
                        device=own_device(ranks))
    all_words = mine.new_empty(ranks.size * mine.numel())
    dist.all_gather_into_tensor(all_words, mine, group=ranks.group)
    if error is not None:
        raise error
    rows = all_words.reshape(ranks.size, -1).tolist()
    failed = [rank for rank, row in enumerate(rows) if row[0]]
    if failed:
        raise RuntimeError(f"rank {ranks.rank} stops because {'rank' if len(failed) == 1 else 'ranks'} "
                           f"{', '.join(map(str, failed))} of the group raised an error, which says why")
    for column, (what, value) in enumerate(stated, start=1):
        others = [rank for rank, row in enumerate(rows) if row[column] != rows[ranks.rank][column]]
        if others:
            shown = repr(value)
            named = f"{'rank' if len(others) == 1 else 'ranks'} {', '.join(map(str, others))}"
            raise ValueError(f"ranks disagree on {what}: rank {ranks.rank} has {shown if len(shown) < 400 else '...'}, "
                             f"{named} of the group differ")
