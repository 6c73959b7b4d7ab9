"""What is released: the wheel, the source distribution, and how both are cited."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _do(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=cwd, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_citation_is_of_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    named = dict(re.findall(r"^([\w-]+): (.+)$", text, re.MULTILINE))
    assert named["version"] == PROJECT["version"]
    assert named["license"] == PROJECT["license"]


@pytest.mark.slow
def test_the_wheel_installs_and_contains_only_the_package(tmp_path: Path) -> None:
    """The wheel is built from the source distribution, which has no tests and benchmarks."""
    venv = tmp_path / "venv"
    _do(sys.executable, "-m", "venv", venv, cwd=tmp_path)
    python = venv / "bin" / "python"
    _do(python, "-m", "pip", "install", "-q", "hatchling>=1.27", cwd=tmp_path)
    _do(python, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    (source,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        inside = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"CITATION.cff", "LICENSE", "pyproject.toml"} <= inside
    build = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path]
    _do(python, "-m", "pip", *build, source, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert tops == {"daskml_dist", f"daskml_dist-{PROJECT['version']}.dist-info"}
    _do(python, "-m", "pip", "install", "-q", "--no-deps", wheel, cwd=tmp_path)
    # The fresh environment has the package alone; its dependencies are this one's.
    script = (
        "import sys; sys.path.append(sys.argv[1]); import daskml_dist, daskml_dist.linear_model; "
        "print(daskml_dist.__version__, daskml_dist.__file__)"
    )
    root = str(Path(pytest.__file__).resolve().parents[1])
    version, file = _do(python, "-I", "-c", script, root, cwd=tmp_path).split()
    assert version == PROJECT["version"]
    assert Path(file).is_relative_to(venv)
