"""Steps of decoding beside a plain read of the same keys and values; bench/compare.py --decode is the program."""
