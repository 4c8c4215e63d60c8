"""All server tests: python3 tests/serve/run.py [MODULE [CASE]]. Environment: TANDEM (the program), TANDEM_MODEL (the model folder)."""
import importlib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness

MODULES = ["transport", "fields", "answers", "load", "failure", "sdk"]


def main():
    names = [sys.argv[1]] if len(sys.argv) > 1 else MODULES
    if not os.path.isfile(os.path.join(harness.MODEL, "model.safetensors")):
        print(f"skipped: no model in {harness.MODEL}")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    passed = failed = 0
    for name in names:
        print(f"--- {name}", flush=True)
        module = importlib.import_module(name)
        p, f = harness.run(name, getattr(module, "SERVER", ()), sys.argv[2] if len(sys.argv) > 2 else None)
        passed, failed = passed + p, failed + f
    print(f"{passed} passed, {failed} failed")
    return failed > 0


sys.exit(main())
