"""The table of the portable families as text: lines, ratios, verdicts."""

from comparison import grid, mod_rows, report as common
from comparison.portable import contenders


def best(entry):
    return max((ran["tflops"] for ran in entry["peers"].values() if "tflops" in ran), default=None)


def ratio(entry):
    """Heddle's rate by the best peer's."""
    most = best(entry)
    return entry["heddle"]["tflops"] / most if most and "tflops" in entry["heddle"] else None


def verdict(entry):
    if entry.get("error") or entry["heddle"].get("error"):
        return "ERROR"
    if not entry["heddle"].get("passed"):
        return "WRONG"
    by_best = ratio(entry)
    return "-" if by_best is None else "ok" if by_best >= entry["target"] else "MISS"


def of_peer(entry, name, field):
    return entry["peers"].get(name, {}).get(field)


def line(entry):
    heddle = entry["heddle"]
    rates = [heddle.get("tflops"), *(of_peer(entry, name, "tflops") for name in contenders.PEERS)]
    by_each = [
        heddle["tflops"] / of_peer(entry, name, "tflops")
        if "tflops" in heddle and of_peer(entry, name, "tflops")
        else None
        for name in contenders.PEERS
    ]
    sizes = [heddle.get("bytes"), *(of_peer(entry, name, "bytes") for name in contenders.PEERS)]
    parts = [common.number(rate, 1) for rate in rates] + [common.number(share, 2) for share in (*by_each, ratio(entry))]
    parts.append(" / ".join(common.number(size and size / 2**20) for size in sizes))
    parts.append(common.number(heddle.get("plan_seconds"), 2))
    return f"| {entry['name']} | {' | '.join(parts)} | {verdict(entry)} |"


def mod_line(entry):
    what = f"{entry['pass']} D{entry['d']} {entry['mod']}"
    if entry.get("error"):
        return f"| {what} | - | - | {common.one_line(entry['error'])} |"
    share = f"{100 * entry['share']:.1f} %"
    return f"| {what} | {common.number(entry.get('ms'), 3)} | {share} | {common.number(entry.get('cost'), 2)} |"


def markdown(results):
    """The table, and that of mods."""
    names = ("heddle", *contenders.PEERS)
    lines = [
        f"{results['device']}; {results['versions']}. TFLOP/s (causal counts half), batch · S = {grid.TOKENS}, "
        f"H · D = {grid.WIDTH}, L2 flushed before each call; median of {results['rounds']} shuffled rounds. "
        "`plan`: seconds of planning and compiling from nothing, for a backward those of both passes.",
        "",
        f"| | {' | '.join(names)} | {' | '.join(f'by {name}' for name in names[1:])} | by best "
        f"| MiB of results and between: {' / '.join(names)} | plan | |",
        "|" + "---|" * (len(names) + len(names) + 4),
        *(line(entry) for entry in results["cells"]),
    ]
    if results["mods"]:
        lines += [
            "",
            f"bf16, B {mod_rows.BATCH}, H {mod_rows.HEADS}, S {results['mod_rows']}. Cost: the time by that without a mod, of as "
            "many pairs as the mask lets attend.",
            "",
            "| mod | ms | pairs | cost |",
            "|---|---|---|---|",
            *(mod_line(entry) for entry in results["mods"]),
        ]
    for entry in results["cells"]:
        for name, ran in (("", entry), ("heddle", entry["heddle"]), *entry["peers"].items()):
            if ran.get("error"):
                lines.append(f"- {entry['name']} {name}: {common.one_line(ran['error'])}")
    return "\n".join(lines) + "\n"


def failed(results):
    return any(verdict(entry) in ("ERROR", "WRONG") for entry in results["cells"])
