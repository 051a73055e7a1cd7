"""`ablate report`: tables, effects and curves of a study, or of two, from their ledgers."""

from __future__ import annotations

import hashlib
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import relpath
from pathlib import Path

from ablate.analysis.frame import StudyResults, load_results
from ablate.commands.ledgers import open_ledger, study_name
from ablate.commands.terminal import FAILED, OK, console
from ablate.errors import UserError
from ablate.home import study_home
from ablate.sweep.ledger import Ledger

_FILES = {"html": "html", "parquet": "parquet"}
"""Formats that are written to a file of the study, with its ending; the others are printed."""


@dataclass(frozen=True)
class ReportOptions:
    """What `ablate report` was told beside the studies.

    `check` says that the exit code is 1 unless every claim of the study is supported, `figures`
    where its figures are written as PNG.
    """

    format: str = "html"
    output: Path | None = None
    paper: str | None = None
    check: bool = False
    quiet: bool = False
    figures: Path | None = None


def report_command(studies: Sequence[str], options: ReportOptions) -> int:
    """Write the page and print its path, or print another format."""
    if len(studies) > 2:
        raise UserError(f"report takes one study, or two to compare; {len(studies)} were given.")
    results = [_read(study) for study in studies]
    if len(results) == 2:
        if options.paper or options.check or options.figures:
            raise UserError("--paper, --check and --figures need one study; two were given.")
        content = _both(results[0], results[1], options.format)
        file = f"against-{results[1].study}"
    else:
        content, file = _one(results[0], options), "report"
        if options.figures:
            content += _shown(_write_figures(results[0], options.figures), options)
    _write(content, study_home(study_name(studies[0])) / file, options)
    return _checked(results[0]) if options.check else OK


def keep_page(study: str, last: Sequence[str], now: Sequence[str]) -> Path | None:
    """Copy a study's page out of the way of a run that has other overrides than the last one.

    Returns:
        Where it is kept, one file for all runs with the same overrides; None if it need not be.
    """
    page = study_home(study) / "report.html"
    if list(last) == list(now) or not page.is_file():
        return None
    mark = hashlib.sha256(shlex.join(last).encode()).hexdigest()[:8] if last else "as_declared"
    kept = page.with_name(f"report_{mark}.html")
    shutil.copyfile(page, kept)
    return kept


def write_files(results: StudyResults) -> list[Path]:
    """Write what a study's run in MLflow carries: the page first, then tables and pictures."""
    from ablate.dashboards.report import report_bytes
    from ablate.dashboards.static_image import images

    folder = study_home(results.study)
    formats = {"report.html": "html", "table.csv": "csv", "tables.tex": "latex"}
    files = {name: report_bytes(results, format) for name, format in formats.items()}
    files |= {f"figures/{name}": image for name, image in images(results).items()}
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def _write_figures(results: StudyResults, folder: Path) -> list[Path]:
    from ablate.dashboards.static_image import images

    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, image in images(results).items():
            written.append(folder / f"{results.study}_{name}")
            written[-1].write_bytes(image)
    except OSError as error:
        raise UserError(f"--figures: cannot write to {folder}: {error.strerror}.") from error
    return written


def _shown(pictures: Sequence[Path], options: ReportOptions) -> bytes:
    """Markdown that shows the pictures, where it is written to a file that can point at them."""
    if options.format != "md" or options.output is None:
        return b""
    home = options.output.parent
    return "".join(f"\n![{p.stem}]({relpath(p, home)})\n" for p in pictures).encode()


def results_of(ledger: Ledger) -> StudyResults:
    """Read the results of a ledger that has a plan.

    Raises:
        UserError: it has none.
    """
    if ledger.plan() is None:
        raise UserError(f"the ledger {ledger.path} holds no plan: run the study first.")
    return load_results(ledger)


def _read(study: str) -> StudyResults:
    with open_ledger(study) as ledger:
        return results_of(ledger)


def _one(results: StudyResults, options: ReportOptions) -> bytes:
    from ablate.analysis.published import load_published
    from ablate.dashboards.report import report_bytes

    paper = load_published(options.paper) if options.paper else None
    return report_bytes(results, options.format, paper=paper)


def _both(first: StudyResults, second: StudyResults, format: str) -> bytes:
    from ablate.analysis.two_studies import side_by_side
    from ablate.dashboards.two_studies import two_studies_bytes

    return two_studies_bytes(side_by_side(first, second), format)


def _write(content: bytes, default: Path, options: ReportOptions) -> None:
    """Write to the file that was asked for, else to the format's own place."""
    output = options.output
    if output is None and options.format in _FILES:
        output = default.parent / f"{default.name}.{_FILES[options.format]}"
    if output is None:
        text = content.decode()
        print(text, end="" if text.endswith("\n") else "\n")
        return
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(content)
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}.") from error
    console(quiet=options.quiet).print(str(output), markup=False, soft_wrap=True)


def _checked(results: StudyResults) -> int:
    """Print every claim that is not supported; return the exit code for a script."""
    from ablate.analysis.claim_results import judge_claims
    from ablate.analysis.claims import exit_code

    judged = judge_claims(results)
    if not judged:
        raise UserError(f"{results.study} makes no claims: --check has nothing to check.")
    for one in judged:
        if one.verdict != "supported":
            print(f"{one.verdict}: {one.claim.text}", file=sys.stderr)
    return FAILED if exit_code([one.verdict for one in judged]) else OK
