"""Heddle's backward beside the backward kernels of its peers; bench/compare.py --backward is the program."""
