"""What `ablate run` does for a study of kind: search: the plan grows while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.sweep.driver import Stale, missing_trials
from ablate.sweep.execution import Event, Job
from ablate.sweep.ledger import Ledger
from ablate.sweep.search import Asked, Optimiser, Search

if TYPE_CHECKING:
    from ablate.commands.progress import RunProgress
    from ablate.study.plan import Cell, Plan
    from ablate.study.schema import Study


class RunningSearch:
    """A search, its plan and its ledger, kept together."""

    def __init__(
        self,
        declared: Study,
        file: Path,
        plan: Plan,
        ledger: Ledger,
        *,
        config_dirs: Sequence[Path] = (),
        allow: Sequence[str] = (),
        stale: Stale = "rerun",
    ) -> None:
        """Take up what the ledger has of this search.

        Raises:
            UserError: results of other code, and `stale` is ``abort``.
        """
        from ablate.study.configure import Workshop
        from ablate.study.search import SearchSpace

        workshop = Workshop(declared, file.name, config_dirs, tuple(allow))
        self._space = SearchSpace(workshop, plan)
        self._ledger = ledger
        self.progress: RunProgress | None = None
        """Is told the labels of new cells, once it is there."""
        trials = int(plan.search["trials"])
        self._search = Search(
            Optimiser(
                seed=plan.study, goal=plan.measure["goal"], trials=trials,
                suggest=self._space.suggest,
            ),
            ledger,
            trials=trials,
            primary=plan.measure["primary"],
            identity=self._space.identity,
            make=self._make,
        )  # fmt: skip
        self._resume(stale)

    @property
    def plan(self) -> Plan:
        """The plan with all cells so far."""
        return self._space.plan

    def jobs(self) -> Iterator[Job]:
        """New configurations' trials, one configuration after another."""
        return self._search.jobs()

    def event(self, event: Event) -> None:
        """Hear how trials end."""
        self._search.event(event)

    def _resume(self, stale: Stale) -> None:
        asked = []
        for kept in self._search.kept(self._ledger, self._space.identity):
            cell = self._space.again(kept["number"], kept["params"])
            if cell is not None:
                asked.append(self._asked(kept["number"], kept["params"], cell))
        self._ledger.save_plan(self.plan.to_json())
        self._ledger.add_trials(self.plan.trials())
        missing_trials(self.plan.trials(), self._ledger, stale)  # which marks stale results
        self._search.resume(asked)

    def _make(self, number: int, point: dict[str, Any], params: dict[str, Any]) -> Asked | None:
        cell = self._space.take(number, point)
        if cell is None:
            return None
        self._ledger.save_plan(self.plan.to_json())
        self._ledger.add_trials(self._space.specs(cell))
        if self.progress is not None:
            self.progress.name(cell.id, cell.label, self.plan.seeds)
        return self._asked(number, params, cell)

    def _asked(self, number: int, params: dict[str, Any], cell: Cell) -> Asked:
        return Asked(number, params, cell.id, self._space.specs(cell))
