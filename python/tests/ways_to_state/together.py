"""Mods that find several numbers, each in another way."""

import random

from .registry import WAYS


def together(face, seed):
    """Two or three ways in one mod, as functions that it calls, or one after another by different makers: gives mods,
    and functions that change all of their numbers."""
    chosen = random.Random(seed)
    ways = [WAYS[name](face) for name in chosen.choices(sorted(WAYS), k=chosen.choice((2, 3)))]
    mods = [mod for mod, _ in ways]

    def mod(score, b, h, q_idx, kv_idx):
        for one in mods:
            score = one(score, b, h, q_idx, kv_idx)
        return score

    first, second = mods[:2]

    def two(score, b, h, q_idx, kv_idx):
        return first(second(score, b, h, q_idx, kv_idx), b, h, q_idx, kv_idx)

    for _ in range(6):
        numbers = [chosen.choice(face.numbers) for _ in ways]

        def put(_, numbers=numbers):
            for (_, change), x in zip(ways, numbers):
                change(x)

        yield mod, put
        yield two, put
