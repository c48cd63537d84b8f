"""Print the tests of test/lit that only lit can run; test_pyc_opt.py runs the others."""

from opt_harness import LIT_ROOT, run_lines

for path in sorted(LIT_ROOT.rglob("*.mlir")):
    if None in run_lines(path):
        print(path)
