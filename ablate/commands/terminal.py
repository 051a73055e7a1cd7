"""How commands speak: a console, JSON, and the one place where errors become exit codes."""

from __future__ import annotations

import functools
import json
import math
import os
import shlex
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import typer
from rich.console import Console

from ablate.commands.allowed import admit
from ablate.errors import Failure, UserError

OK, FAILED, BAD_INPUT, LIMIT, INTERRUPTED = 0, 1, 2, 3, 130

Command = TypeVar("Command", bound=Callable[..., int])


def guarded(command: Command) -> Command:
    """Make of a function that returns an exit code a command that never shows a traceback.

    ABLATE_DEBUG=1 shows it. The packages of ``--allow`` are found first.
    """

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> NoReturn:
        try:
            admit(kwargs.get("allow") or ())
            code = command(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise
        except UserError as error:
            code = complain(error, BAD_INPUT)
        except Failure as error:
            code = complain(error, FAILED)
        except KeyboardInterrupt as error:
            code = complain(error, INTERRUPTED, "interrupted")
        except Exception as error:
            code = complain(error, FAILED, f"{type(error).__name__}: {error}")
        raise typer.Exit(code)

    return run  # type: ignore[return-value]


def complain(error: BaseException, code: int, text: str | None = None) -> int:
    """Write an error to standard error, and return `code`."""
    if os.environ.get("ABLATE_DEBUG"):
        traceback.print_exception(error)
    print(f"error: {text or error}", file=sys.stderr)
    return code


def first_line(text: object) -> str:
    """Return the first line of an error's text; the rest of a long one is for ``--json``."""
    return str(text).partition("\n")[0]


def console(*, quiet: bool = False) -> Console:
    """Return a console on standard output as it is now; plain lines when it is no terminal.

    COLUMNS sets the width of both.
    """
    stream = sys.stdout
    given = os.environ.get("COLUMNS", "")
    wide = None if stream.isatty() else int(given) if given.isdecimal() and int(given) else 200
    return Console(file=stream, quiet=quiet, highlight=False, width=wide)


def print_json(value: Any) -> None:
    """Print a value as JSON that every reader takes."""
    print(to_json(value, indent=2))


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return JSON that every reader takes: no infinity, no NaN."""
    return json.dumps(_strict(value), indent=indent, default=str)


def program() -> str:
    """Return how the user called this program, to be typed again."""
    called = Path(sys.argv[0])
    if called.name != "ablate" or shutil.which("ablate") == str(called):
        return "ablate"
    try:
        return shlex.quote(str(called.relative_to(Path.cwd())))
    except ValueError:
        return shlex.quote(str(called))


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return value


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Let a polite kill end the body as Ctrl-C does: cleanly, and a study can be resumed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
