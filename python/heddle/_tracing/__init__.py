"""How a mod's values are found, and when its expression is kept: docs/notes/tracing.md says what is promised.

The files, from the bottom: `loaded` (NumPy and torch, if imported), `steps` and `owners` (one look at one value),
`kinds` (sorts of values), `byte_code` (what code reads), `constants` (what never changes), `reached` (the walk over a
mod and its key), `rebound` (a copy of a mod with other values), `stand_ins` and `numbers` (what stands for arrays and
for numbers in it), `trace` (mods of NumPy's face; those of torch's are in heddle/torch/_tracing).
"""
