"""`ablate report`: the tables, effects and curves of a study, from its ledger."""

from __future__ import annotations

from pathlib import Path

from ablate.analysis.frame import StudyResults, load_results
from ablate.commands.ledgers import open_ledger, study_name
from ablate.commands.terminal import OK, console
from ablate.errors import UserError
from ablate.home import study_home
from ablate.sweep.ledger import Ledger


def report_command(
    study: str, *, format: str = "html", output: Path | None = None, quiet: bool = False
) -> int:
    """Write the page and print its path, or print another format."""
    from ablate.dashboards.report import report_text

    with open_ledger(study) as ledger:
        results = results_of(ledger)
    text = report_text(results, format)
    if format == "html" and output is None:
        output = report_path(study_name(study))
    if output is None:
        print(text, end="" if text.endswith("\n") else "\n")
        return OK
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}.") from error
    console(quiet=quiet).print(str(output), markup=False, soft_wrap=True)
    return OK


def report_path(study: str) -> Path:
    """Return where the page of a study lies."""
    return study_home(study) / "report.html"


def results_of(ledger: Ledger) -> StudyResults:
    """Read the results of a ledger that has a plan.

    Raises:
        UserError: it has none.
    """
    if ledger.plan() is None:
        raise UserError(f"the ledger {ledger.path} holds no plan: run the study first.")
    return load_results(ledger)
