"""Results as plain data, and what they say: ratios, verdicts, tables."""

import math

OURS = "heddle"
YARDSTICK = "cudnn"
GEMM = "gemm"


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def geomean(values):
    return math.exp(sum(math.log(value) for value in values) / len(values)) if values else None


def rate(cell, contender):
    """TFLOP/s of a contender in a cell's result; None where it did not run."""
    return cell["contenders"].get(contender, {}).get("tflops")


def ratio_to(cell, contender):
    """Our rate by another's; None where one of them is missing."""
    ours, other = rate(cell, OURS), rate(cell, contender)
    return ours / other if ours and other else None


def ratio_to_best(cell):
    """Our rate by that of the best peer that ran."""
    ratios = [ratio_to(cell, name) for name in cell["contenders"] if name not in (OURS, GEMM)]
    return min((ratio for ratio in ratios if ratio is not None), default=None)


def verdict(cell):
    """ "ok", "MISS", or what is missing for one."""
    ours = cell["contenders"].get(OURS, {})
    if ours.get("error"):
        return "ERROR"
    if ours.get("check", {}).get("passed") is False:
        return "WRONG"
    if "check" not in ours:
        return "UNCHECKED"
    ratio = ratio_to(cell, YARDSTICK)
    if ratio is None or cell.get("target") is None:
        return "-"
    if ratio < cell["target"]:
        return "MISS"
    part = ratio_to(cell, GEMM)
    return "MISS" if cell.get("gemm_target") and part is not None and part < cell["gemm_target"] else "ok"


def summary(results):
    """The figures of the whole grid."""
    cells = results["cells"]
    ratios = [ratio for cell in cells if (ratio := ratio_to(cell, YARDSTICK)) is not None]
    gemms = [value for cell in cells if (value := rate(cell, GEMM)) is not None]
    return {
        "cells": len(cells),
        "compared": len(ratios),
        "geomean": geomean(ratios),
        "geomean_target": results["geomean_target"],
        "gemm_tflops": median(gemms) if gemms else None,
        "verdicts": {
            name: sum(verdict(cell) == name for cell in cells)
            for name in ("ok", "MISS", "WRONG", "UNCHECKED", "ERROR", "-")
        },
    }


def number(value, digits=0):
    return "-" if value is None else f"{value:.{digits}f}"


def cell_line(cell):
    """One line for the terminal, as soon as a cell is done."""
    rates = "  ".join(f"{name} {number(rate(cell, name))}" for name in cell["contenders"])
    part = ratio_to(cell, GEMM)
    return (
        f"{verdict(cell):>9}  {cell['name']:<18} {number(ratio_to(cell, YARDSTICK), 2)} x cuDNN, target "
        f"{number(cell.get('target'), 2)}; {number(part, 2)} of the GEMM | {rates}"
    )


def markdown(results):
    names = [name for name in results["contenders"] if name != GEMM]
    lines = [
        f"# {results['title']}",
        "",
        f"{results['device']}; {results['date']}; {results['versions']}",
        "",
        results["method"],
        "",
        "| D | mask | S | " + " | ".join(names) + " | GEMM | of GEMM | x best | x cuDNN | target | |",
        "|" + "---|" * (len(names) + 9),
    ]
    for cell in results["cells"]:
        rates = " | ".join(number(rate(cell, name)) for name in names)
        lines.append(
            f"| {cell['d']} | {'causal' if cell['causal'] else 'full'} | {cell['s']} | {rates} | "
            f"{number(rate(cell, GEMM))} | {number(ratio_to(cell, GEMM), 2)} | {number(ratio_to_best(cell), 2)} | "
            f"{number(ratio_to(cell, YARDSTICK), 2)} | {number(cell.get('target'), 2)} | {verdict(cell)} |"
        )
    totals = summary(results)
    lines += [
        "",
        f"Geometric mean over {totals['compared']} cells: {number(totals['geomean'], 3)} x cuDNN (target "
        f"{totals['geomean_target']:.2f}). The GEMM: {number(totals['gemm_tflops'])} TFLOP/s. Verdicts: "
        + ", ".join(f"{count} {name}" for name, count in totals["verdicts"].items() if count)
        + ".",
    ]
    lines += extras_table(results.get("extras", {})) + error_list(results) + check_list(results)
    return "\n".join(lines) + "\n"


def extras_table(extras):
    if not extras:
        return []
    lines = ["", "| figure | value | target | |", "|---|---|---|---|"]
    for entry in extras.values():
        if entry.get("error"):
            lines.append(f"| {entry['what']} | {one_line(entry['error'])} | {entry.get('target_text', '-')} | ERROR |")
            continue
        lines.append(
            f"| {entry['what']} | {entry['text']} | {entry.get('target_text', '-')} | "
            f"{'ok' if entry['ok'] else 'MISS'} |"
        )
    return lines


def one_line(text):
    return " ".join(text.split())[:300].replace("|", "\\|")


def error_list(results):
    """Who did not run, and where; one line a reason."""
    where = {}
    for cell in results["cells"]:
        for name, entry in cell["contenders"].items():
            for kind in ("refused", "error", "check_error"):
                if entry.get(kind):
                    where.setdefault((name, one_line(entry[kind])), []).append(cell["name"])
    lines = [f"- {name}, not installed: {reason}" for name, reason in results.get("missing", {}).items()]
    lines += [f"- {name} in {', '.join(cells)}: {reason}" for (name, reason), cells in where.items()]
    return ["", "What did not run:", "", *lines] if lines else []


def check_list(results):
    """Errors of each contender beside what the criterion allows: the worst cell of each."""
    worst = {}
    for cell in results["cells"]:
        for name, entry in cell["contenders"].items():
            if "check" not in entry:
                continue
            share = max(part["share"] for part in entry["check"]["tensors"].values())
            if name not in worst or share > worst[name][0]:
                worst[name] = (share, cell["name"], entry["check"]["passed"])
    if not worst:
        return []
    lines = [
        f"| {name} | {share:.2f} | {where} | {'passed' if passed else 'FAILED'} |"
        for name, (share, where, passed) in worst.items()
    ]
    return [
        "",
        "Results against float64 by the criterion of `heddle/check.h`, as a share of what it allows:",
        "",
        "| | worst share | in | |",
        "|---|---|---|---|",
        *lines,
    ]
