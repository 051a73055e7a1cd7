"""`ablate dash`: the report of a study that is still running, as a page that keeps up with it."""

from __future__ import annotations

from ablate.commands.ledgers import open_ledger
from ablate.commands.report import results_of
from ablate.commands.terminal import OK, console, stopped_by_sigterm
from ablate.errors import UserError


def dash_command(study: str, *, port: int | None = None, paper: str | None = None) -> int:
    """Serve the page on this machine alone, until Ctrl-C; print its address."""
    from ablate.analysis.published import load_published
    from ablate.dashboards.live import HOST, LivePage, live_server

    with open_ledger(study) as ledger:
        results_of(ledger)
    page = LivePage(lambda: open_ledger(study), load_published(paper) if paper else None)
    try:
        server = live_server(page, port or 0)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"port {port} cannot be used: {reason}") from error
    out = console()
    out.print(f"http://{HOST}:{server.server_address[1]}/", markup=False, soft_wrap=True)
    out.print("The page keeps up with the study. Ctrl-C ends it.", style="dim")
    try:
        with stopped_by_sigterm(), server:
            server.serve_forever()
    except KeyboardInterrupt:
        pass
    return OK
