"""Mods that multiply the score by a number, which each of them finds in another way.

A way is a function of a face (NumPy's or torch's arrays) that gives the mod and a function that changes the number.
Ways of KEPT find it where the library watches: such a mod is traced once for a number.
"""

from .registry import FREE, KEPT, WAYS
from . import arrays, containers, expressions, functions, objects, scopes  # noqa: F401  they fill both
from .together import together

__all__ = ["FREE", "KEPT", "WAYS", "together"]
