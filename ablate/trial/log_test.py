from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from ablate.trial.log import CUT, TrialLog, captured, log_path, tail


def test_what_is_printed_and_logged_is_in_the_file_and_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = log_path(tmp_path, "c-s0")
    log = TrialLog(path)
    with captured(log):
        print("hello")
        print("trouble", file=sys.stderr)
        logging.getLogger("x").warning("careful")
    print("outside")
    log.line("done")
    log.close()
    lines = tail(path, 0)
    assert lines[:3] == ["hello", "trouble", "WARNING x: careful"]
    assert lines[-1].endswith("  done")
    assert "outside" not in lines
    assert capsys.readouterr().out == "hello\noutside\n"
    assert tail(path, 1) == lines[-1:]
    assert tail(tmp_path / "none", 3) == []


def test_a_log_keeps_its_end_and_stays_below_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    log = TrialLog(path, most=1000)
    for number in range(500):
        log.write(f"line {number}\n")
        assert path.stat().st_size <= 1000
    log.close()
    lines = path.read_text().splitlines()
    assert lines[0] + "\n" == CUT
    assert lines[-1] == "line 499"
    assert [int(line.split()[1]) for line in lines[1:]] == list(range(500))[-len(lines) + 1 :]
    again = TrialLog(path, most=1000)
    again.write("more\n")
    again.close()
    assert path.read_text().endswith("line 499\nmore\n")


def test_a_log_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = TrialLog(tmp_path / "file" / "x.log")
    log.line("lost")
    log.close()
    with captured(None):
        print("fine")
