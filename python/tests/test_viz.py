"""Pictures: what they show, and how a notebook shows them in a browser."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import heddle

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
import matplotlib.image  # noqa: E402

from heddle import viz  # noqa: E402


def test_seconds_waits_at_the_end_of_each_round():
    events = []
    viz.seconds(lambda: events.append("call"), rounds=2, at_least=0, wait=lambda: events.append("wait"))
    assert events == ["call", "wait"] * 3


def test_a_block_mask():
    mask = heddle.BlockMask.build(heddle.mods.causal(), 60, 64, block=16)
    axes = viz.block_mask(mask)
    (mesh,) = axes.collections
    kinds = np.asarray(mesh.get_array()).reshape(4, 4)
    assert np.array_equal(kinds, np.tril(np.full((4, 4), 2), -1) + np.eye(4))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["full 38%", "partial 25%", "empty 38%"]
    with pytest.raises(TypeError, match="mask is of type int"):
        viz.block_mask(3)
    with pytest.raises(ValueError):
        viz.block_mask(mask, head=1)


def test_weights():
    random = np.random.default_rng(1)
    q, k = (random.standard_normal((2, heads, 9, 8)).astype(np.float32) for heads in (4, 2))
    slopes = np.ones(4, np.float32)
    got = viz.weights(q, k, score_mod=heddle.mods.alibi(slopes), mask_mod=heddle.mods.causal())
    s = np.einsum("bhqd,bhkd->bhqk", q, k.repeat(2, 1)) * 8**-0.5 + np.arange(9) - np.arange(9)[:, None]
    s = np.where(np.tri(9, dtype=bool), s, -np.inf)
    want = np.exp(s - s.max(-1, keepdims=True))
    np.testing.assert_allclose(got, want / want.sum(-1, keepdims=True), atol=2e-6)
    axes = viz.attention_map(q, k, batch=1, head=3, labels=list("abcdefghi"), mask_mod=heddle.mods.causal())
    assert [text.get_text() for text in axes.get_xticklabels()] == list("abcdefghi")


def test_speed_curves():
    made = []

    def call(length):
        made.append(length)
        return lambda: None

    axes = viz.speed_curves({"one": call, "other": call}, [8, 16], flops=lambda length: 1e6 * length, rounds=1)
    assert made == [8, 16, 8, 16] and len(axes.lines) == 2 and axes.get_ylabel() == "TFLOP/s"
    assert all((line.get_ydata() > 0).all() for line in axes.lines)


def test_an_explanation_is_a_table():
    q = np.zeros((1, 1, 4, 8), np.float32)
    text = heddle.explain(q, q, q, mask_mod="kv_idx < 3 and q_idx < 5")._repr_html_()
    assert "<table" in text and "kv_idx &lt; 3" in text and "<script" not in text
    assert text.count("<svg") == 1 and "<svg" not in heddle.explain(q, q, q)._repr_html_()


CELLS = [
    """
import numpy as np, heddle, heddle.viz
%matplotlib inline
mask = heddle.BlockMask.build(heddle.mods.sliding_window(40) & heddle.mods.causal(), 256, 256, block=16)
mask""",
    """
q = np.zeros((1, 2, 64, 16), np.float32)
heddle.explain(q, q, q, mask_mod=heddle.mods.causal())""",
    "heddle.viz.block_mask(mask);",
]


def browser():
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


def test_a_notebook_in_a_browser(tmp_path):
    """A real browser draws the page; its pixels have the colours of the masks and the text of the table."""
    nbconvert = pytest.importorskip("nbconvert")
    pytest.importorskip("ipykernel")
    if browser() is None:
        pytest.skip("no chromium")
    cells = [
        {"cell_type": "code", "source": source.strip(), "metadata": {}, "outputs": [], "execution_count": None}
        for source in CELLS
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    (tmp_path / "masks.ipynb").write_text(json.dumps(notebook))
    environment = {**os.environ, "PYTHONPATH": str(Path(heddle.__file__).parent.parent)}
    subprocess.run(
        [
            sys.executable,
            "-m",
            "nbconvert",
            "--to",
            "html",
            "--execute",
            "--ExecutePreprocessor.kernel_name=python3",
            "masks.ipynb",
        ],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        timeout=120,
    )
    picture = tmp_path / "page.png"
    subprocess.run(
        [
            browser(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--window-size=1100,2600",
            f"--screenshot={picture}",
            (tmp_path / "masks.html").as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    pixels = (matplotlib.image.imread(picture)[..., :3] * 255).round().astype(int)
    assert nbconvert.__version__ and pixels.shape[0] > 1000

    def count(color):
        return int((np.abs(pixels - [int(color[i : i + 2], 16) for i in (1, 3, 5)]).max(-1) <= 3).sum())

    assert count(viz.FULL) > 1000 and count(viz.PARTIAL) > 1000, "the picture of heddle.viz"
    svg = heddle.BlockMask.build(heddle.mods.sliding_window(40) & heddle.mods.causal(), 256, 256, block=16)._repr_svg_()
    colors = {word[:7] for word in svg.split("#")[1:] for word in [f"#{word}"]}
    assert (
        sum(
            count(color) > 300
            for color in colors
            if len(color) == 7 and all(c in "0123456789abcdef" for c in color[1:])
        )
        >= 2
    )
    if keep := os.environ.get("HEDDLE_KEEP_PICTURES"):
        shutil.copy(picture, keep)
