"""The packages that ``--allow`` admits: they must be there, installed or in the current folder."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from ablate.errors import UserError


def admit(packages: Iterable[str]) -> None:
    """Find each package, in the current folder too, which joins Python's path if it is needed.

    Raises:
        UserError: a name that no package can have, Python's own, or one that is not there.
    """
    here = Path.cwd()
    for name in packages:
        place = f"--allow {name}"
        if not name.isidentifier():
            raise UserError(
                f"{place}: not the name of a package; give the first part of _target_ alone, as "
                "my_package for my_package.memory.MyMemory."
            )
        if name in sys.stdlib_module_names:
            raise UserError(f"{place}: it is Python's own and holds no components.")
        if find_spec(name) is not None:
            continue
        if not ((here / name).is_dir() or (here / f"{name}.py").is_file()):
            raise UserError(
                f"{place}: no such package. It must be installed beside Ablate, or lie in the "
                f"folder that ablate is called from ({here})."
            )
        if str(here) not in sys.path:
            sys.path.append(str(here))
