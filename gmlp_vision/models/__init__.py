"""One architecture, one file: `ls` is the zoo. Importing this package registers every model with timm."""

import pkgutil
from importlib import import_module

for _family in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_family.name}")
