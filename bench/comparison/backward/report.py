"""What the results of whole cells say: ratios to the peers, verdicts, tables."""

from comparison import report as common
from comparison.backward import cells

OURS, GEMM = "heddle", "gemm"
VERDICTS = ("ok", "MISS", "WRONG", "UNCHECKED", "ERROR", "REFUSED", "-")
YARDSTICKS = ("cudnn", "fa4")  # who "the best peer" is the best of; without one of them, of those that ran


def rate(cell, name):
    """TFLOP/s; None of who did not run. A peer whose gradients fail the criterion still counts: it is only marked."""
    return cell["contenders"].get(name, {}).get("tflops")


def ratio_to(cell, name, ours=OURS):
    own, other = rate(cell, ours), rate(cell, name)
    return own / other if own and other else None


def ratio_to_best(cell, names=YARDSTICKS, ours=OURS):
    ratios = [ratio for name in names if (ratio := ratio_to(cell, name, ours)) is not None]
    return min(ratios, default=None)


def verdict(cell):
    """ "ok", "MISS", or why there is none."""
    ours = cell["contenders"].get(OURS, {})
    if ours.get("refused"):
        return "REFUSED"
    if ours.get("error"):
        return "ERROR"
    if ours.get("check", {}).get("passed") is False:
        return "WRONG"
    if "check" not in ours:
        return "UNCHECKED"
    ratio = ratio_to_best(cell)
    return "-" if ratio is None else "ok" if ratio >= cell["target"] else "MISS"


def summary(results):
    counted = [cell for cell in results["cells"] if cell["counts"]]
    best = [ratio for cell in counted if (ratio := ratio_to_best(cell)) is not None]
    cudnn = [ratio for cell in counted if (ratio := ratio_to(cell, "cudnn")) is not None]
    gemms = [value for cell in results["cells"] if (value := rate(cell, GEMM)) is not None]
    return {
        "compared": len(best),
        "best_geomean": common.geomean(best),
        "cudnn_geomean": common.geomean(cudnn),
        "gemm_tflops": common.median(gemms) if gemms else None,
        "verdicts": {name: sum(verdict(cell) == name for cell in results["cells"]) for name in VERDICTS},
    }


def failed(results):
    """Whether a result of ours is wrong, missing or unchecked. What the library refuses is said, and no failure."""
    verdicts = summary(results)["verdicts"]
    return bool(verdicts["WRONG"] or verdicts["ERROR"] or verdicts["UNCHECKED"])


def cell_line(cell):
    """One line for the terminal, as soon as a cell is done."""
    rates = "  ".join(f"{name} {common.number(rate(cell, name))}" for name in cell["contenders"])
    return (
        f"{verdict(cell):>9}  {cell['name']:<22} {common.number(ratio_to_best(cell), 2)} x the best, target "
        f"{common.number(cell['target'], 2)}; {common.number(ratio_to(cell, 'cudnn'), 2)} x cuDNN | {rates}"
    )


def rate_text(cell, name):
    """A rate; marked where the gradients fail the criterion."""
    ran = cell["contenders"].get(name, {})
    wrong = ran.get("check", {}).get("passed") is False
    return common.number(ran.get("tflops")) + ("!" if wrong else "")


def columns_of(cell):
    heads = f", GQA {cell['heads']}/{cell['kv_heads']}" if cell["heads"] != cell["kv_heads"] else ""
    return f"| {cell['d']}{heads} | {'causal' if cell['causal'] else 'full'} | {cell['s']} |"


def markdown(results):
    names = results["contenders"]
    head = ["D", "mask", "S", *names, "workspace, bytes a row and head", "x best", "x cuDNN", "target", ""]
    lines = [
        f"# {results['title']}",
        "",
        f"{results['device']}; {results['date']}; {results['versions']}",
        "",
        results["method"],
        "",
        "| " + " | ".join(head[:-1]) + " | |",
        "|" + "---|" * len(head),
    ]
    for cell in results["cells"]:
        rates = " | ".join(rate_text(cell, name) for name in names)
        workspace = cell["contenders"].get(OURS, {}).get("workspace_bytes")
        per_row = workspace / (cell["batch"] * cell["heads"] * cell["s"]) if workspace is not None else None
        lines.append(
            f"{columns_of(cell)} {rates} | {common.number(per_row, 1)} | {common.number(ratio_to_best(cell), 2)} | "
            f"{common.number(ratio_to(cell, 'cudnn'), 2)} | {common.number(cell['target'], 2)} | {verdict(cell)} |"
        )
    totals = summary(results)
    lines += [
        "",
        f"Geometric mean over {totals['compared']} cells of D 64 and 128: {common.number(totals['best_geomean'], 3)} x "
        f"the best of cuDNN and FlashAttention-4 (target {cells.BEST_GEOMEAN_TARGET}), "
        f"{common.number(totals['cudnn_geomean'], 3)} x cuDNN (target {cells.CUDNN_GEOMEAN_TARGET}). Verdicts: "
        + ", ".join(f"{count} {name}" for name, count in totals["verdicts"].items() if count)
        + ".",
    ]
    if "!" in "".join(lines):
        lines.append("!: these gradients fail the criterion.")
    lines += deterministic_table(results) + common.extras_table(results.get("extras", {}))
    lines += common.error_list(results) + common.check_list(results)
    return "\n".join(lines) + "\n"


def deterministic_table(results):
    """Deterministic modes: ours beside our free one, and beside the peers' deterministic ones."""
    names = results["deterministic"]
    if not names:
        return []
    peers = [name for name in names if name != f"{OURS}-det"]
    lines = [
        "",
        "Deterministic modes, TFLOP/s:",
        "",
        "| D | mask | S | " + " | ".join(names) + " | of free | target | x best | |",
        "|" + "---|" * (7 + len(names)),
    ]
    for cell in results["cells"]:
        ours = f"{OURS}-det"
        share, best = ratio_to(cell, OURS, ours), ratio_to_best(cell, peers, ours)
        ran = cell["contenders"].get(ours, {})
        said = "REFUSED" if ran.get("refused") else "ERROR" if ran.get("error") else "-"
        if share is not None:
            said = "ok" if share >= cells.DETERMINISTIC_TARGET and (best is None or best >= 1) else "MISS"
        lines.append(
            f"{columns_of(cell)} {' | '.join(rate_text(cell, name) for name in names)} | {common.number(share, 2)} | "
            f"{common.number(cells.DETERMINISTIC_TARGET, 2)} | {common.number(best, 2)} | {said} |"
        )
    return lines
