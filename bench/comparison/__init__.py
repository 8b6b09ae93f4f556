"""The parts of bench/compare.py: one module an idea, and PyTorch only where it is needed."""
