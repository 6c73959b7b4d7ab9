"""The command that starts a Slurm of one node: its help, which starts nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hpc.slurm_node import main


def test_help_is_printed_and_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, status in ((["--help"], 0), ([], 2), (["--folder"], 2)):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == status
    assert "usage: python -m tests.hpc.slurm_node" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
