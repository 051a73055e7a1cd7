"""A SQLite file with one writer: transactions, JSON values by key, and the writer's lock."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from ablate.errors import Failure, UserError
from ablate.sweep.lock import LockHolder

_VERSION = 1
_KV = "CREATE TABLE IF NOT EXISTS kv (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"


class Store:
    """An open file; make one with `open`."""

    schema: ClassVar[str] = ""

    def __init__(self, path: Path, connection: sqlite3.Connection, *, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self._db = connection
        self._held: LockHolder | None = None
        self.failure: Failure | None = None
        """What kept an entry from being written."""

    @classmethod
    def open(cls, path: str | Path, *, read_only: bool = False) -> Self:
        """Open a ledger, and make it first unless `read_only`.

        Raises:
            UserError: there is no ledger to read, or the file is not one of this version.
        """
        path = Path(path)
        if read_only and not path.is_file():
            raise UserError(f"no ledger at {path}: nothing has been run yet, start `ablate run`.")
        try:
            if not read_only:
                path.parent.mkdir(parents=True, exist_ok=True)
            store = cls(path, _connect(path, read_only), read_only=read_only)
            store._prepare()
        except (sqlite3.DatabaseError, OSError) as error:
            raise UserError(f"cannot open the ledger {path}: {error}") from error
        return store

    @classmethod
    def begun(cls, path: Path) -> bool:
        """Tell whether there is a ledger: more than the empty file of a process killed at once.

        Raises:
            UserError: the file is no database.
        """
        if not path.is_file():
            return False
        try:
            with closing(_connect(path, read_only=True)) as database:
                return _has_tables(database)
        except sqlite3.DatabaseError as error:
            raise UserError(f"cannot open the ledger {path}: {error}") from error

    def close(self) -> None:
        """Release the lock if it is held, and close the file."""
        if self._held is not None:
            self.release_lock()
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except sqlite3.DatabaseError as trouble:
            error = error or trouble
        if isinstance(error, sqlite3.DatabaseError):
            raise Failure(f"the ledger {self.path} cannot be used: {error}") from error

    def get(self, key: str, default: Any = None) -> Any:
        """Return the JSON value kept under `key`, such as ``tracker_state``."""
        row = self._db.execute("SELECT value FROM kv WHERE key = ?", (key,)).fetchone()
        if row is None:
            return default
        try:
            return json.loads(row[0])
        except json.JSONDecodeError as error:
            raise sqlite3.DatabaseError(f"its {key} is damaged") from error

    def set(self, key: str, value: Any) -> None:
        """Keep a JSON value under `key`."""
        with self._write():
            self._put(key, value)

    @property
    def holds_lock(self) -> bool:
        """Tell whether this object holds the lock."""
        return self._held is not None

    def lock_holder(self) -> LockHolder | None:
        """Return who holds the study's lock, dead or alive."""
        found = self.get("lock")
        return LockHolder(**found) if found else None

    def acquire_lock(self, owner: str, *, force: bool = False) -> None:
        """Become the one driver of the study; a dead owner's lock is taken over.

        Args:
            owner: what to call this driver in messages.
            force: take the lock even from a living owner, which the user says is gone.

        Raises:
            UserError: another process drives the study now.
        """
        mine = LockHolder.this_process(owner)
        with self._write():
            holder = self.lock_holder()
            if holder is not None and not force and holder.alive():
                raise UserError(
                    f"the study is being run by {holder.describe()}. Wait for it or stop it; "
                    f"if it is surely gone, use --take-over. Ledger: {self.path}"
                )
            self._put("lock", mine.to_json())
        self._held = mine

    def release_lock(self) -> None:
        """Give the lock back, if this object still holds it."""
        held, self._held = self._held, None
        with self._write():
            if held is not None and self.lock_holder() == held:
                self._db.execute("DELETE FROM kv WHERE key = 'lock'")

    def _put(self, key: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO kv VALUES (?, ?)", (key, dump(value)))

    def _prepare(self) -> None:
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version == 0 and (self.read_only or _has_tables(self._db)):
            raise UserError(f"{self.path} is no ledger, but some other database: move it away.")
        if version > _VERSION:
            raise UserError(
                f"the ledger {self.path} has version {version}; this Ablate reads {_VERSION}."
            )
        if self.read_only or version == _VERSION:
            return
        with self._write():
            for statement in (_KV, *self.schema.split(";")):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {_VERSION}")

    @contextmanager
    def _write(self) -> Iterator[None]:
        """Run the body as one transaction; it is undone if the body raises."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError) and _is_full(error):
                self.failure = Failure(
                    f"no room left on the disk of the ledger {self.path} ({error}): this entry is "
                    "not in it, all earlier ones are. Free some room, then run the same command."
                )
                raise self.failure from error
            raise


def dump(value: Any) -> str:
    """Write JSON; infinities and NaN are kept as Python's json spells them."""
    return json.dumps(value, separators=(",", ":"), default=str)


def _connect(path: Path, read_only: bool) -> sqlite3.Connection:
    uri = path.absolute().as_uri()
    if not read_only:
        connection = _open(uri)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection
    connection = _open(f"{uri}?mode=ro")
    try:
        connection.execute("PRAGMA user_version")
        return connection
    except sqlite3.OperationalError:
        # A write-ahead file cannot be joined in a folder that we may not write to; nobody writes.
        connection.close()
        return _open(f"{uri}?mode=ro&immutable=1")


def _is_full(error: sqlite3.OperationalError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL


def _has_tables(database: sqlite3.Connection) -> bool:
    return database.execute("SELECT 1 FROM sqlite_master").fetchone() is not None


def _open(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(
        uri, uri=True, timeout=30.0, isolation_level=None, check_same_thread=False
    )
