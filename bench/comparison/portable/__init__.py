"""The portable families beside what else runs on every NVIDIA GPU; bench/compare.py --family portable is the program."""
