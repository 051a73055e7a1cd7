"""The wheel: one top-level name, YAML inside, no tests, and it works away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of what the repository holds."""
    folder = tmp_path_factory.mktemp("wheel")
    checkout = folder / "checkout"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        source = ROOT / name
        if source.is_file():
            target = checkout / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(folder), str(checkout)], check=True)
    return next(folder.glob("ablate-*.whl"))


def test_wheel_holds_one_package_with_its_yaml(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ablate"}
    assert "ablate/search_spaces/model/atlas.yaml" in names
    assert "ablate/experiments/language/quickstart.yaml" in names
    assert "ablate/py.typed" in names
    assert not [name for name in names if name.endswith("_test.py")]


def test_installed_wheel_plans_a_study_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True)
    code = (
        "import ablate.components, sys; print(ablate.components.__file__);"
        "from ablate.cli import main; sys.argv = ['ablate', 'plan', 'quickstart', '--no-probe'];"
        "main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(site), "ABLATE_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == str(site / "ablate" / "components" / "__init__.py")
    assert "baseline" in done.stdout
