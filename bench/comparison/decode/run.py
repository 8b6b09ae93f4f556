"""Heddle's steps of decoding and those of its peers, each beside a plain read of the same keys and values: memory decides
there. All calls run in CUDA graphs, and in two ways:

- alone: a graph of one call, after a buffer larger than L2 was written (timing.GpuClock). An empty graph takes 3 to
  4 us this way, and the first reads wait until the written lines have left L2.
- in a row: a graph of many calls over different caches, more than L2 holds, as the layers of a model make them. The
  time of one call is the graph's by their number.
"""

import math

from comparison import grid, report, timing
from comparison.decode.contenders import FAMILIES, OURS, Heddle, contenders
from comparison.decode.inputs import Inputs, judge

IN_A_ROW = 32  # calls of a graph, at least
ROW_BYTES = 256 << 20  # that they read together, at least
MOST_BYTES = 40 << 30  # of their caches together


def graph_of(torch, call, layers):
    """A graph of the calls of these layers."""
    for layer in layers[:3]:
        call(layer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in layers:
            call(layer)

    def replay(kept=call):  # what the graph's kernels read
        graph.replay()

    return replay


def layers_of(cell, device):
    if device == "cpu":
        return 1
    return max(2, min(2 * IN_A_ROW, -(-ROW_BYTES // cell.bytes), MOST_BYTES // cell.cache_bytes))


class Comparison:
    def __init__(self, torch, lib, device, rounds, say, chosen, seconds=math.inf, families=FAMILIES):
        self.torch, self.lib, self.device, self.rounds, self.say = torch, lib, device, rounds, say
        self.cells, self.seconds, self.families = chosen, seconds, families
        self.clock = timing.clock_of(torch, device)
        self.missing = {}

    def run(self, save=lambda entries: None):
        """Entries of the cells, of which save() gets those so far after each."""
        entries = []
        for cell in grid.in_time(self.cells, self.seconds, self.say):
            entry = {
                "name": cell.name, "group": cell.group, "bytes": cell.bytes, "flops": cell.flops, "contenders": {}
            }
            entries.append(entry)
            try:
                self.compare(cell, entry)
            except Exception as error:  # the other cells still count
                entry["error"] = f"{type(error).__name__}: {error}"[:2000]
            self.say(line(entry))
            save(entries)
            if self.device != "cpu":
                self.torch.cuda.empty_cache()
        return entries

    def compare(self, cell, entry):
        layers = layers_of(cell, self.device)
        inputs = Inputs(self.torch, cell, self.device, layers)
        alone, in_a_row = {}, {}
        calls = [i % layers for i in range(max(layers, IN_A_ROW))]
        for name, make in contenders(inputs, self.lib, self.families):
            if name in self.missing:
                continue
            ran = entry["contenders"][name] = {}
            try:
                call = make()
                result = call()
                if name != "read":
                    ran["error_by_plain"] = judge(inputs, result)
                if isinstance(call, Heddle):
                    ran["plan"] = call.plan.explain()
                if self.device == "cpu":
                    alone[name] = timing.Timed(call, self.clock)
                else:
                    alone[name] = timing.Timed(graph_of(self.torch, call, [0]), self.clock)
                    in_a_row[name] = timing.Timed(graph_of(self.torch, call, calls), self.clock)
            except ImportError as error:
                self.missing[name] = str(error)
                del entry["contenders"][name]
            except Exception as error:
                ran["error"] = f"{type(error).__name__}: {error}"[:2000]
        for kind, timed, count in (("alone", alone, 1), ("in_a_row", in_a_row, len(calls))):
            failed = timing.interleave(timed, self.rounds)
            for name, one in timed.items():
                if name in failed:
                    entry["contenders"][name]["error"] = str(failed[name])
                elif one.samples:
                    entry["contenders"][name][kind] = 1e3 * report.median(one.samples) / count


def peers(entry, kind):
    """Times of the others, but for the read."""
    return [
        ran[kind]
        for name, ran in entry["contenders"].items()
        if name not in ("read", *OURS) and ran.get(kind)
    ]


def verdict(entry):
    ours = entry["contenders"].get("heddle", {})
    if entry.get("error") or ours.get("error"):
        return "ERROR"
    if not ours.get("error_by_plain", math.inf) <= 2:
        return "WRONG"
    best = [min(peers(entry, kind), default=None) for kind in ("alone", "in_a_row")]
    if None in best:
        return "-"
    return "ok" if ours["alone"] <= best[0] and ours["in_a_row"] <= best[1] else "MISS"


COLUMNS = (*OURS, "read", "cudnn", "fa2", "flashinfer", "cascade")


def line(entry):
    """us alone / us in a row, of each, and the plain read's time by Heddle's."""

    def times(name):
        ran = entry["contenders"].get(name)
        return " / ".join(report.number(ran.get(kind), 1) for kind in ("alone", "in_a_row")) if ran else "-"

    ours, read = entry["contenders"].get("heddle", {}), entry["contenders"].get("read", {})
    shares = [read[kind] / ours[kind] if read.get(kind) and ours.get(kind) else None for kind in ("alone", "in_a_row")]
    cells = [entry["name"], *map(times, COLUMNS), " / ".join(report.number(share, 2) for share in shares)]
    return f"| {' | '.join(cells)} | {report.number(ours.get('error_by_plain'), 2)} | {verdict(entry)} |"


def markdown(entries, missing):
    lines = [
        "us alone / us in a row. One query of 32 heads on 8, D 128, bf16 (windows: 64 heads, D 64) unless a cell says so.",
        "",
        f"| | {' | '.join(COLUMNS)} | read by heddle | error by plain's | |",
        "|" + "---|" * (len(COLUMNS) + 4),
        *(line(entry) for entry in entries),
    ]
    for entry in entries:
        for name, ran in [("", entry), *entry["contenders"].items()]:
            if ran.get("error"):
                lines.append(f"- {entry['name']} {name}: {report.one_line(ran['error'])}")
    lines += [f"- {name} is not installed: {why}" for name, why in missing.items()]
    return "\n".join(lines) + "\n"
