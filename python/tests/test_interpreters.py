"""heddle in subinterpreters: its types and caches are the process's, so the import is refused, and harms nobody."""

import subprocess
import sys

CODE = """
import sys
FIRST = sys.argv[1] == "first"
try:
    import _interpreters
    create, run = (lambda: _interpreters.create("legacy")), (lambda i, code: _interpreters.exec(i, code))
except ImportError:
    import _xxsubinterpreters as _interpreters
    create, run = (lambda: _interpreters.create(isolated=False)), _interpreters.run_string
import numpy as np
if not FIRST:
    import heddle
    call = lambda: heddle.attention(*[np.ones((1, 2, 6, 4), np.float32)] * 3)
    call()
for _ in range(2):
    one = create()
    run(one, '''
try:
    import heddle._core
    print("imported")
except ImportError as error:
    print(error)
''')
    if not FIRST:
        call()
    _interpreters.destroy(one)
if FIRST:
    import heddle
    call = lambda: heddle.attention(*[np.ones((1, 2, 6, 4), np.float32)] * 3)
call()
print("done")
"""


def test_subinterpreters_are_refused():
    for order in ("first", "later"):
        run = subprocess.run([sys.executable, "-c", CODE, order], capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, (order, run.stderr)
        *said, last = run.stdout.splitlines()
        assert last == "done" and len(said) == 2, run.stdout
        # NumPy may refuse before heddle does.
        assert all("interpreter" in line or "more than once per process" in line for line in said), said
