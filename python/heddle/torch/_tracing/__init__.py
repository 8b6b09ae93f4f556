"""Mods of torch functions to expressions: docs/notes/torch.md.

The files, from the bottom: `values` (symbolic tensors), `operations` (the table of aten's operations), `tie_rules`,
`aten`, `aten_inverses`, `aten_orders`, `aten_tensors` and `own_operators` (its rows), `narrow_integers` (8 and 16 bits),
`recording` (the captures and params of one trace), `contents` (what tensors hold), `indexing` (`tensor[index]`), `modes`
(torch's modes under which a mod runs), `kept` (expressions and when they serve again).
"""
