"""Searches: an optimiser chooses configurations, every one of which becomes trials in the ledger.

The optimiser is Optuna's TPE through its ask and tell, here in the driver. Executors only pull the
next job when a worker is free, so the same search runs in this process, on Ray Tune and on a
cluster; and since the ledger remembers what was asked and measured, a killed one goes on.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ablate.sweep.execution import Event, Job, Spec, one_each
from ablate.sweep.ledger import Ledger
from ablate.sweep.records import FINISHED

ASKED = "search"
"""Key of the ledger under which a search keeps what it has asked."""
TRIES = 200
"""How often the optimiser is asked for a configuration that is new and allowed."""
STARTUP = (4, 10)

Point = dict[str, Any]
Suggest = Callable[[Any], Point]
"""Chooses a point by the ``suggest_...`` methods of an Optuna trial."""


@dataclass(frozen=True)
class Asked:
    """One configuration that a search has chosen.

    Args:
        number: from 1.
        params: what Optuna calls it by.
        cell: the id of its cell.
        specs: its trials, one for each seed.
    """

    number: int
    params: dict[str, Any]
    cell: str
    specs: list[Spec]


class Optimiser:
    """TPE whose every choice follows from the seed, the number asked for, and what it was told.

    So a search that is taken up again chooses as one that was never stopped, given the same results
    in the same order.
    """

    def __init__(self, *, seed: str, goal: str, trials: int, suggest: Suggest) -> None:
        """Begin with nothing known.

        Args:
            seed: any text, such as the study's name.
            goal: ``min`` or ``max``.
            trials: how many configurations it will be asked for; a third of them, at least 4 and
                at most 10, are drawn at random.
            suggest: the space.
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(direction="minimize" if goal == "min" else "maximize")
        self._seed, self._suggest = seed, suggest
        self._startup = min(max(trials // 3, STARTUP[0]), STARTUP[1])
        self._open: dict[int, int] = {}

    def ask(
        self, number: int, accept: Callable[[Point, dict[str, Any]], Asked | None]
    ) -> Asked | None:
        """Return what `accept` makes of the next point that it takes; None if it takes none."""
        for attempt in range(TRIES):
            self._study.sampler = self._sampler(number, attempt)
            trial = self._study.ask()
            made = accept(self._suggest(trial), dict(trial.params))
            if made is not None:
                self._open[number] = trial.number
                return made
            self._close(trial.number, None)
        return None

    def remember(self, number: int, params: dict[str, Any]) -> None:
        """Know of a point that was asked for before; `tell` says how it went."""
        from optuna.trial import FixedTrial, TrialState, create_trial

        fixed = FixedTrial(params)
        self._suggest(fixed)
        trial = create_trial(
            state=TrialState.RUNNING, params=fixed.params, distributions=fixed.distributions
        )
        self._study.add_trial(trial)
        self._open[number] = len(self._study.trials) - 1

    def tell(self, number: int, value: float | None, *, pruned: bool = False) -> None:
        """Say how good a point is; None means that it failed, which is no number at all."""
        self._close(self._open.pop(number), value, pruned=pruned)

    def _close(self, trial: int, value: float | None, *, pruned: bool = False) -> None:
        from optuna.trial import TrialState

        if value is not None:
            self._study.tell(trial, value)
        else:
            self._study.tell(trial, state=TrialState.PRUNED if pruned else TrialState.FAIL)

    def _sampler(self, number: int, attempt: int) -> Any:
        from optuna.samplers import TPESampler

        digest = hashlib.sha256(f"{self._seed}/{number}/{attempt}".encode()).digest()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constant_liar is marked as experimental
            return TPESampler(
                seed=int.from_bytes(digest[:4], "little"),
                n_startup_trials=self._startup,
                constant_liar=True,
            )


@dataclass
class _Open:
    asked: Asked
    waiting: set[str]
    values: list[float] = field(default_factory=list)
    states: set[str] = field(default_factory=set)


class Search:
    """Feeds an executor with the trials of one configuration after another."""

    def __init__(
        self,
        optimiser: Optimiser,
        ledger: Ledger,
        *,
        trials: int,
        primary: str,
        identity: str,
        make: Callable[[int, Point, dict[str, Any]], Asked | None],
        jobs_of: Callable[[list[Spec]], list[Job]] = one_each,
    ) -> None:
        """Keep the settings.

        Args:
            optimiser: chooses points.
            ledger: what is asked is kept there before it runs.
            trials: how many configurations there are to be in all.
            primary: the metric whose mean over seeds is optimised.
            identity: names the space; what another space has asked is forgotten.
            make: turns a point into its trials, which it adds to the plan; None if the point is
                not allowed, cannot be built, or is there already.
            jobs_of: puts trials that are to share a worker together.
        """
        self._optimiser, self._ledger = optimiser, ledger
        self._trials, self._primary, self._identity = trials, primary, identity
        self._make, self._jobs_of = make, jobs_of
        self._asked: list[Asked] = []
        self._open: dict[str, _Open] = {}

    @staticmethod
    def kept(ledger: Ledger, identity: str) -> list[dict[str, Any]]:
        """Return what a search of that identity has asked: ``number`` and ``params`` of each."""
        found = ledger.get(ASKED, {})
        asked: list[dict[str, Any]] = found["asked"] if found.get("identity") == identity else []
        return asked

    def resume(self, asked: Iterable[Asked]) -> None:
        """Take up what was asked before; what has all its results is told to the optimiser."""
        records = {record.trial_id: record for record in self._ledger.trials()}
        for one in asked:
            self._optimiser.remember(one.number, one.params)
            self._add(one)
            for spec in one.specs:
                record = records.get(spec["id"])
                if record is not None and record.state in FINISHED:
                    self._ended(spec["id"], record.state, record.summary)

    def jobs(self) -> Iterator[Job]:
        """Ask for one configuration after another; pulled when a worker is free."""
        while len(self._asked) < self._trials:
            number = len(self._asked) + 1
            one = self._optimiser.ask(
                number,
                lambda point, params, n=number: self._make(n, point, params),  # type: ignore[misc]
            )
            if one is None:
                return
            self._add(one)
            yield from self._jobs_of(one.specs)

    def event(self, event: Event) -> None:
        """Hear of every message; the end of a configuration's last trial is told on."""
        if event.kind == "end":
            summary = event.message.get("summary") or {}
            self._ended(event.trial_id, event.message["state"], summary)

    def _add(self, one: Asked) -> None:
        self._asked.append(one)
        opened = _Open(one, {spec["id"] for spec in one.specs})
        self._open |= dict.fromkeys(opened.waiting, opened)
        asked = [{"number": a.number, "params": a.params, "cell": a.cell} for a in self._asked]
        self._ledger.set(ASKED, {"identity": self._identity, "asked": asked})

    def _ended(self, trial_id: str, state: str, summary: dict[str, float]) -> None:
        one = self._open.pop(trial_id, None)
        if one is None:  # the baseline's, or another run's
            return
        one.waiting.discard(trial_id)
        value = summary.get(self._primary)
        good = state == "done" and value is not None and math.isfinite(value)
        one.states.add(state if good or state == "pruned" else "failed")
        if good and value is not None:
            one.values.append(value)
        if not one.waiting:
            mean = statistics.fmean(one.values) if one.states == {"done"} else None
            pruned = "failed" not in one.states
            self._optimiser.tell(one.asked.number, mean, pruned=pruned)
