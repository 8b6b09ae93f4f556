"""Curves: TFLOP/s over S, a panel for each head dimension and mask."""

from comparison import report

# A contender keeps its colour in every figure. Ours is the one that stands out.
STYLES = {
    "heddle": ("Heddle", "#d62728", 2.4),
    "cudnn": ("cuDNN", "#1f77b4", 1.4),
    "fa2": ("FlashAttention-2", "#7f7f7f", 1.4),
    "flex": ("FlexAttention", "#2ca02c", 1.4),
    "fa4": ("FlashAttention-4", "#9467bd", 1.4),
}


def cells_with_curves(results):
    """All but those of grouped queries, which are other work."""
    return [cell for cell in results["cells"] if cell.get("kv_heads", cell.get("heads")) == cell.get("heads")]


def draw(results, path):
    """Writes the figure; its suffix names the format. There must be cells with curves."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.fonttype"] = "none"  # text stays text
    pyplot.rcParams["svg.hashsalt"] = "heddle"  # the same bytes for the same results
    cells_of_panels = cells_with_curves(results)
    dims = sorted({cell["d"] for cell in cells_of_panels})
    masks = sorted({cell["causal"] for cell in cells_of_panels})
    figure, panels = pyplot.subplots(
        len(masks),
        len(dims),
        squeeze=False,
        sharex=True,
        sharey=True,
        figsize=(1.5 + 3.6 * len(dims), 1.4 + 2.9 * len(masks)),
    )
    for row, causal in enumerate(masks):
        for column, d in enumerate(dims):
            cells = sorted(
                (cell for cell in cells_of_panels if (cell["d"], cell["causal"]) == (d, causal)),
                key=lambda cell: cell["s"],
            )
            draw_panel(panels[row][column], cells, results["contenders"])
            panels[row][column].set_title(f"D {d}, {'causal' if causal else 'full'}", fontsize=10)
    for panel in panels[-1]:
        panel.set_xlabel("sequence length")
    for panel in panels[:, 0]:
        panel.set_ylabel("TFLOP/s")
        panel.set_ylim(bottom=0)
    handles = {}
    for panel in panels.flat:
        for handle, label in zip(*panel.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    figure.suptitle(f"{results['title']} ({results['device']})", fontsize=11)
    figure.legend(
        handles.values(), handles.keys(), loc="lower center", ncol=max(1, len(handles)), frameon=False, fontsize=9
    )
    figure.tight_layout(rect=(0, 0.06, 1, 0.99))
    figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None)
    pyplot.close(figure)


def draw_panel(panel, cells, contenders):
    for name in contenders:
        points = [(cell["s"], rate) for cell in cells if (rate := report.rate(cell, name))]
        if not points:
            continue
        if name == report.GEMM:
            panel.plot(*zip(*points), color="black", linestyle=":", linewidth=1, label="GEMM 8192³, bf16")
            continue
        label, colour, width = STYLES.get(name, (name, None, 1.4))
        panel.plot(
            *zip(*points),
            color=colour,
            linewidth=width,
            marker="o",
            markersize=3,
            label=label,
            zorder=3 if name == report.OURS else 2,
        )
    panel.set_xscale("log", base=2)
    lengths = sorted({cell["s"] for cell in cells})
    panel.set_xticks(lengths, [str(length) for length in lengths])
    panel.grid(True, linewidth=0.4, alpha=0.5)
