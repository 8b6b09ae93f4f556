"""The parts of tools/compare_kernels.py."""
