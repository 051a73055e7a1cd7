"""Lay the five top-level folders out as one installed package, ``ablate``.

``components/`` installs as ``ablate.components`` and so on, so that nothing as general as
``components`` or ``experiments`` lands in site-packages. Subpackages are found, not listed.
"""

from setuptools import find_packages, setup

ROOTS = {
    "ablate": "ablate",
    "ablate.components": "components",
    "ablate.search_spaces": "search_spaces",
    "ablate.experiments": "experiments",
    "ablate.dashboards": "dashboards",
}

packages = [
    name
    for package, folder in ROOTS.items()
    for name in [package, *(f"{package}.{sub}" for sub in find_packages(folder))]
]

setup(packages=packages, package_dir=ROOTS)
