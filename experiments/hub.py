"""One way to data sets of the Hugging Face hub: folder, caches, hub, sample; the source is said.

Everything in the product that reads rows of a published data set calls `open_rows`:

    rows = open_rows(Dataset("ybisk/piqa", split="validation"), where=self.data, sample=SAMPLE)
    for row in rows: ...          # plain dictionaries, from the start each time
    facts = rows.facts()          # log it: {"data_source": ..., "data_is_sample": "no"}
    identity = rows.digest()      # for data_identity, of a set that is small

`where` is a task's argument. It names one source, or leaves the choice to the order below:

| where | source |
|---|---|
| ``auto`` | the first of the caches, the hub and the packaged sample that has it |
| ``cache`` | ``$ABLATE_HOME/datasets/OWNER--NAME``, or Hugging Face's own caches; no network |
| ``hub`` | the hub, by ``datasets`` streaming |
| ``sample`` | the few rows that come with Ablate |
| anything else | the path of a folder or file; nothing else is tried |

``HF_HUB_OFFLINE=1`` or ``HF_DATASETS_OFFLINE=1`` keep it off the network. Rows of a sample say so
in `Rows.source`, in `Rows.facts` and by `Rows.is_sample`, which a task has to pass on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ablate.errors import Failure, UserError
from ablate.experiments.hub_client import ask_revision, stream_rows, why_not
from ablate.experiments.row_files import Row, find_files, listing, read_rows
from ablate.home import home

AUTO, CACHE, HUB, SAMPLE = "auto", "cache", "hub", "sample"


@dataclass(frozen=True)
class Dataset:
    """A published data set, as the hub knows it.

    Args:
        name: ``owner/name``.
        config: its configuration, such as ``sample-10BT``.
        split: ``train``, ``validation`` or ``test``.
        revision: a branch, tag or commit; None is the newest.
        columns: what is read of each row; empty is all.
        files: glob of the split's files in the hub's repository, for copies of it; needed only
            where folder and file names do not tell.
    """

    name: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    columns: tuple[str, ...] = ()
    files: str | None = None

    @property
    def label(self) -> str:
        """Name and configuration, for messages and tables."""
        return f"{self.name}:{self.config}" if self.config else self.name


@dataclass(frozen=True)
class Rows:
    """Rows of a data set, and where they are from. Iterating starts from the first row each time.

    Args:
        dataset: what was asked for.
        source: ``folder PATH``, ``cache NAME``, ``hub NAME@revision`` or ``packaged sample``.
        is_sample: whether they only stand in for the data set.
        key: changes when the data may have changed; cheap, no row is read for it.
        start: gives the rows from the first one.
    """

    dataset: Dataset
    source: str
    is_sample: bool
    key: str
    start: Callable[[], Iterator[Row]]

    def __iter__(self) -> Iterator[Row]:
        return self.start()

    def facts(self) -> dict[str, float | str]:
        """What a run has to log about its data."""
        return {
            "dataset": self.dataset.label,
            "data_source": self.source,
            "data_is_sample": "yes" if self.is_sample else "no",
        }

    def refuse_ours(self, row: Row) -> None:
        """Refuse a row that comes with Ablate, which says so, in what is taken for the real set.

        Raises:
            UserError: names the source.
        """
        if row.get(SAMPLE) and not self.is_sample:
            raise UserError(
                f"{self.dataset.label}: {self.source} holds rows that come with Ablate, which may "
                "not pass for the real set: ask for them by task_args.data=sample."
            )

    def digest(self) -> str:
        """Short hash of all rows and of whether they are a sample; reads them all."""
        found = hashlib.sha256(b"sample" if self.is_sample else b"")
        for row in self:
            found.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
        return found.hexdigest()[:12]


def datasets_folder() -> Path:
    """Where data sets are looked for first: ``$ABLATE_DATASETS``, else in Ablate's home."""
    return _shared("ABLATE_DATASETS", "datasets")


def corpora_folder() -> Path:
    """Where packed text is kept: ``$ABLATE_CORPORA``, else in Ablate's home."""
    return _shared("ABLATE_CORPORA", "corpora")


def _shared(variable: str, name: str) -> Path:
    given = os.environ.get(variable)
    return Path(given).expanduser().absolute() if given else home() / name


def open_rows(
    dataset: Dataset,
    *,
    where: str = AUTO,
    sample: Path | Iterable[Row] | None = None,
    instead: str | None = None,
) -> Rows:
    """Find the rows of a data set; see the module's text for the order.

    Args:
        dataset: what is wanted.
        where: ``auto``, ``cache``, ``hub``, ``sample``, or the path of a folder or file.
        sample: rows that come with Ablate, or their file, in the data set's columns. Taken only
            where nothing else is had, or where they are asked for.
        instead: what is to be done where it is not had, as a sentence; by default `how_to_get`.

    Raises:
        UserError: it is nowhere, in one line that says where it was looked for and what to do.
        Failure: the hub did not answer.
    """
    if not where.strip():
        raise UserError(
            f"{dataset.label}: no place is given ({where!r}). "
            f"Give a path, or one of {AUTO}, {CACHE}, {HUB}, {SAMPLE}."
        )
    if instead is None:
        instead = how_to_get(dataset, "task_args.data=sample" if sample is not None else "")
    if where == SAMPLE:
        if sample is None:
            raise UserError(f"{dataset.label} has no packaged sample.")
        return _of_sample(dataset, sample)
    if where not in (AUTO, CACHE, HUB):
        return _of_folder(dataset, where)
    looked = []
    if where != HUB:
        if (cached := _of_cache(dataset)) is not None:
            return cached
        looked.append(
            f"not in {datasets_folder() / _folder_name(dataset)} nor Hugging Face's caches"
        )
    if where != CACHE:
        if not (reason := why_not()):
            return _of_hub(dataset, instead)
        looked.append(f"the hub is not used: {reason}")
    if where == AUTO and sample is not None:
        return _of_sample(dataset, sample)
    raise UserError(
        f"{dataset.label} ({dataset.split}) is not available: {'; '.join(looked)}. {instead}"
    )


def how_to_get(dataset: Dataset, sample: str = "") -> str:
    """What to do where a data set is not had, as a sentence.

    Args:
        dataset: which.
        sample: the settings that take rows of ours in its place; empty if there are none.
    """
    place = shlex.quote(str(datasets_folder() / _folder_name(dataset)))
    ours = f"; or {sample} for the few packaged rows that only show how it works" if sample else ""
    return (
        f"Where there is a network: hf download {dataset.name} --repo-type dataset --local-dir "
        f"{place}; or give the path of a folder with its parquet or JSON-lines files{ours}."
    )


def part_of(where: str, name: str) -> str:
    """The place of one set among several: in a folder it is the folder or file of that name.

    Raises:
        UserError: the folder has none.
    """
    folder = Path(where).expanduser()
    if where.strip() in ("", AUTO, CACHE, HUB, SAMPLE) or not folder.is_dir():
        return where
    found = sorted(path for path in folder.iterdir() if path.name.partition(".")[0] == name)
    if not found:
        raise UserError(
            f"{where} has no {name} (a folder {name}, or {name}.jsonl or .parquet). "
            f"Other places: {AUTO}, {CACHE}, {HUB}, {SAMPLE}."
        )
    return str(found[0])


def keep_rows(rows: Rows) -> Rows:
    """Write rows from the hub into Ablate's folder of data sets, and give those; others as given.

    For sets that are small: the next time, and on machines without a network that share the
    folder, they are a cache.

    Raises:
        Failure: the hub did not answer, or the folder cannot be written.
    """
    if not rows.source.startswith(HUB):
        return rows
    dataset = rows.dataset
    revision = rows.source.rpartition("@")[2]
    folder = datasets_folder() / _folder_name(dataset) / (dataset.config or "default")
    target = folder / f"{dataset.split}@{revision}.jsonl"
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(fresh, "w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, default=str) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, target)
    except OSError as error:
        raise Failure(f"{dataset.label} could not be kept in {folder}: {error}") from error
    finally:
        with suppress(OSError):
            fresh.unlink()
    return Rows(dataset, rows.source, False, rows.key, lambda: read_rows([target], dataset.columns))


def _of_folder(dataset: Dataset, given: str) -> Rows:
    path = Path(given).expanduser()
    if not path.exists():
        raise UserError(
            f"{dataset.label}: no such file or folder {given!r} (looked at {path.absolute()}). "
            f"Give a path, or one of {AUTO}, {CACHE}, {HUB}, {SAMPLE}."
        )
    files = _files(dataset, path)
    if not files:
        raise UserError(f"{dataset.label}: {given} has no parquet, JSON, Arrow or text file.")
    return _of_files(dataset, files, f"folder {given}")


def _of_cache(dataset: Dataset) -> Rows | None:
    own = datasets_folder() / _folder_name(dataset)
    for folder in (own, *_snapshots(dataset), *_prepared(dataset)):
        try:
            files = _files(dataset, folder) if folder.is_dir() else []
        except UserError:  # other splits only
            continue
        if files:
            return _of_files(dataset, files, f"cache {dataset.label}{_revision_of(folder, files)}")
    return None


def _of_files(dataset: Dataset, files: list[Path], source: str) -> Rows:
    key = hashlib.sha256(repr((dataset, listing(files))).encode()).hexdigest()[:16]
    return Rows(dataset, source, False, key, lambda: read_rows(files, dataset.columns))


def _of_sample(dataset: Dataset, sample: Path | Iterable[Row]) -> Rows:
    if isinstance(sample, Path):
        path = sample
        key = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        return Rows(
            dataset, "packaged sample", True, key, lambda: read_rows([path], dataset.columns)
        )
    kept = list(sample)
    key = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]
    return Rows(dataset, "packaged sample", True, key, lambda: iter(kept))


def _of_hub(dataset: Dataset, instead: str) -> Rows:
    label = dataset.label
    revision = ask_revision("dataset", dataset.name, dataset.revision, label=label, instead=instead)
    source = f"hub {label}@{revision}"
    key = hashlib.sha256(repr((dataset, revision)).encode()).hexdigest()[:16]

    def start() -> Iterator[Row]:
        name, config, split = dataset.name, dataset.config, dataset.split
        return stream_rows(
            name, config, split, revision, dataset.columns, label=label, instead=instead
        )

    return Rows(dataset, source, False, key, start)


def _files(dataset: Dataset, folder: Path) -> list[Path]:
    return find_files(folder, split=dataset.split, config=dataset.config, pattern=dataset.files)


def _folder_name(dataset: Dataset) -> str:
    return dataset.name.replace("/", "--")


def _hugging_face() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("HF_HOME") or f"{cache}/huggingface").expanduser()


def _snapshots(dataset: Dataset) -> list[Path]:
    """Copies of the repository made by ``hf download``, the wanted or newest revision first."""
    cache = Path(os.environ.get("HF_HUB_CACHE") or _hugging_face() / "hub").expanduser()
    folder = cache / f"datasets--{_folder_name(dataset)}"
    wanted = dataset.revision or "main"
    reference = folder / "refs" / wanted
    if reference.is_file():
        return [folder / "snapshots" / reference.read_text().strip()]
    return [folder / "snapshots" / wanted]


def _prepared(dataset: Dataset) -> list[Path]:
    """What ``load_dataset`` has written as Arrow files, the newest first."""
    cache = Path(os.environ.get("HF_DATASETS_CACHE") or _hugging_face() / "datasets").expanduser()
    folder = cache / dataset.name.replace("/", "___")
    if dataset.config:
        folder /= dataset.config
    whole = [path.parent for path in folder.rglob("dataset_info.json")]
    return sorted(
        (path for path in whole if dataset.revision in (None, path.name)),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )


def _revision_of(folder: Path, files: list[Path]) -> str:
    if folder.parent.name == "snapshots":
        return f"@{folder.name}"
    revisions = {path.name.partition("@")[2].partition(".")[0] for path in files}
    return f"@{revisions.pop()}" if len(revisions) == 1 and "" not in revisions else ""
