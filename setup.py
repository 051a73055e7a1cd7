"""Lay the five top-level folders out as one installed package, ``ablate``.

``components/`` installs as ``ablate.components`` and so on, so that nothing as general as
``components`` or ``experiments`` lands in site-packages. Subpackages are found, not listed.
"""

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOTS = {
    "ablate": "ablate",
    "ablate.components": "components",
    "ablate.search_spaces": "search_spaces",
    "ablate.experiments": "experiments",
    "ablate.dashboards": "dashboards",
}


class WithoutTests(build_py):
    """Leave the tests, which lie beside the code, out of the wheel."""

    def find_package_modules(self, package, package_dir):
        """List the modules of `package` that are not tests."""
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if not module[1].endswith("_test")]


packages = [
    name
    for package, folder in ROOTS.items()
    for name in [package, *(f"{package}.{sub}" for sub in find_packages(folder))]
]

setup(packages=packages, package_dir=ROOTS, cmdclass={"build_py": WithoutTests})
