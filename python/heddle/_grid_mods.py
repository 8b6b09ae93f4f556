"""Ready-made mods of tokens that stand in a grid, an image or a film, row-major."""

from __future__ import annotations

from typing import Any

from . import _core, _mod
from ._mod import Mod
from ._named_arguments import checks_arguments


@checks_arguments
def neighbourhood_2d(width: int, radius_y: int, radius_x: int) -> Mod:
    """A neighbourhood in an image, row-major, `width` tokens per row: keys at most radius_y rows and radius_x columns
    away. Raises ValueError for width < 1 and negative radii.

    >>> import heddle
    >>> print(heddle.BlockMask.build(heddle.mods.neighbourhood_2d(2, 1, 0), 4, 4, block=1))
    #.#.
    .#.#
    #.#.
    .#.#
    """
    def expr() -> Any:
        return _core.mod_neighbourhood_2d(width, radius_y, radius_x)

    return _mod.checked(_mod.mask(expr, f"neighbourhood_2d({width}, {radius_y}, {radius_x})"), expr)


@checks_arguments
def natten_2d(height: int, width: int, kernel_y: int, kernel_x: int) -> Mod:
    """Neighbourhood attention (NATTEN) in an image, row-major: each query sees kernel_y rows and kernel_x columns,
    centred on itself. At the border the window is shifted inside and keeps its size. Raises ValueError for kernels that
    are even or larger than height and width.

    >>> import heddle
    >>> print(heddle.BlockMask.build(heddle.mods.natten_2d(1, 5, 1, 3), 5, 5, block=1))
    ###..
    ###..
    .###.
    ..###
    ..###
    """
    def expr() -> Any:
        return _core.mod_natten_2d(height, width, kernel_y, kernel_x)

    return _mod.checked(_mod.mask(expr, f"natten_2d({height}, {width}, {kernel_y}, {kernel_x})"), expr)


@checks_arguments
def natten_3d(depth: int, height: int, width: int, kernel_z: int, kernel_y: int, kernel_x: int) -> Mod:
    """natten_2d in `depth` images of height x width: kernel_z of them, kernel_y rows, kernel_x columns. Raises
    ValueError as natten_2d does.

    >>> import heddle
    >>> print(heddle.BlockMask.build(heddle.mods.natten_3d(3, 1, 2, 1, 1, 1), 6, 6, block=1))
    #.....
    .#....
    ..#...
    ...#..
    ....#.
    .....#
    """
    def expr() -> Any:
        return _core.mod_natten_3d(depth, height, width, kernel_z, kernel_y, kernel_x)

    name = f"natten_3d({depth}, {height}, {width}, {kernel_z}, {kernel_y}, {kernel_x})"
    return _mod.checked(_mod.mask(expr, name), expr)


@checks_arguments
def sliding_tiles_2d(tiles_y: int, tiles_x: int, tile: int, kernel_y: int, kernel_x: int) -> Mod:
    """Sliding tile attention: tokens are stored tile by tile, `tile` tokens in each of tiles_y x tiles_x tiles,
    row-major. The tiles see kernel_y x kernel_x tiles, as natten_2d's tokens do, so blocks of `tile` queries and keys
    are full or empty. Raises ValueError as natten_2d does, and for tile < 1.

    >>> import heddle
    >>> print(heddle.BlockMask.build(heddle.mods.sliding_tiles_2d(1, 3, 2, 1, 1), 6, 6, block=1))
    ##....
    ##....
    ..##..
    ..##..
    ....##
    ....##
    """
    def expr() -> Any:
        return _core.mod_sliding_tiles_2d(tiles_y, tiles_x, tile, kernel_y, kernel_x)

    name = f"sliding_tiles_2d({tiles_y}, {tiles_x}, {tile}, {kernel_y}, {kernel_x})"
    return _mod.checked(_mod.mask(expr, name), expr)


@checks_arguments
def sliding_tiles_3d(
    tiles_z: int, tiles_y: int, tiles_x: int, tile: int, kernel_z: int, kernel_y: int, kernel_x: int
) -> Mod:
    """sliding_tiles_2d in a video of tiles_z x tiles_y x tiles_x tiles of `tile` tokens: each tile sees kernel_z x
    kernel_y x kernel_x tiles. Raises ValueError as sliding_tiles_2d does.

    >>> import heddle
    >>> print(heddle.BlockMask.build(heddle.mods.sliding_tiles_3d(3, 1, 1, 2, 1, 1, 1), 6, 6, block=1))
    ##....
    ##....
    ..##..
    ..##..
    ....##
    ....##
    """
    def expr() -> Any:
        return _core.mod_sliding_tiles_3d(tiles_z, tiles_y, tiles_x, tile, kernel_z, kernel_y, kernel_x)

    name = f"sliding_tiles_3d({tiles_z}, {tiles_y}, {tiles_x}, {tile}, {kernel_z}, {kernel_y}, {kernel_x})"
    return _mod.checked(_mod.mask(expr, name), expr)


@checks_arguments
def swin_windows(width: int, window: int, shift: int = 0) -> Mod:
    """Swin's windows of an image, row-major, `width` a row: queries and keys see their own window x window tokens. The
    windows begin `shift` tokens above and left of the multiples of `window`. As in Swin, tokens of opposite borders do
    not see each other. Raises ValueError for window < 1 and shift outside of [0, window).

    >>> import heddle
    >>> print(heddle.BlockMask.build(heddle.mods.swin_windows(4, 2, 1), 4, 4, block=1))
    #...
    .##.
    .##.
    ...#
    """
    def expr() -> Any:
        return _core.mod_swin_windows(width, window, shift)

    return _mod.checked(_mod.mask(expr, f"swin_windows({width}, {window}, {shift})"), expr)


@checks_arguments
def swin_bias(table: Any, width: int, window: int) -> Mod:
    """A score_mod, Swin's bias by offset: score + table[(dy + window - 1) * (2 window - 1) + dx + window - 1, h], where
    dy and dx are the rows and columns from the key to the query in an image, row-major, `width` a row, clipped to
    window - 1. table f32 [(2 window - 1)^2, Hq]. Raises ValueError for width and window below 1.

    >>> import numpy as np, heddle
    >>> x = np.ones((1, 2, 16, 8), np.float32)
    >>> heddle.attention(x, x, x, score_mod=heddle.mods.swin_bias(np.zeros((9, 2), np.float32), 4, 2)).shape
    (1, 2, 16, 8)
    """
    _mod.refuse_no_array("table", table)
    return _mod.score(lambda: _core.mod_swin_bias(table, width, window), f"swin_bias({width}, {window})")
