"""The cache of machine code on disk keeps no entries of changed sources."""

from __future__ import annotations

import os
from pathlib import Path

from tests.machine_code import drop_stale


def test_stale_machine_code_is_deleted(tmp_path: Path) -> None:
    package = tmp_path / "package"
    folder, cache = package / "part", package / "part" / "__pycache__"
    cache.mkdir(parents=True)
    texts = {
        "inner": "log = 1\n",
        "middle": "from package.part.inner import log\n",
        "outer": "def f():\n    from package.part import middle\n",
        "other": "import numpy\nfrom elsewhere.inner import log\n",
    }
    for at, (name, text) in enumerate(texts.items()):
        (folder / f"{name}.py").write_text(text)
        (cache / f"{name}.f-3.py312.1.nbc").touch()
        os.utime(folder / f"{name}.py", (at, at))
        os.utime(cache / f"{name}.f-3.py312.1.nbc", (100, 100))
    assert drop_stale(package) == []
    os.utime(folder / "inner.py", (200, 200))
    stale = [f"{name}.f-3.py312.1.nbc" for name in ("inner", "middle", "outer")]
    assert drop_stale(package) == stale
    assert [path.name for path in cache.iterdir()] == ["other.f-3.py312.1.nbc"]
