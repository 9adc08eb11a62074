"""Prints the options of a timm train.py as YAML: the name in a --config file, and the type of its value.

Usage: python tests/data/list_train_options.py CHECKOUT/train.py VERSION > tests/data/train_options.yaml
"""

import runpy
import sys


def kind(action) -> str:
    if action.nargs == 0:
        return "bool"
    if action.dest.endswith("_kwargs"):
        return "dict"
    name = (action.type or str).__name__
    return f"list[{name}]" if action.nargs in (3, "+") else name


if __name__ == "__main__":
    train, version = sys.argv[1:]
    print(f"# The options of train.py of timm {version}, by tests/data/list_train_options.py")
    for action in sorted(runpy.run_path(train)["parser"]._actions, key=lambda action: action.dest):
        if action.dest != "help":
            print(f"{action.dest}: {kind(action)}")
