"""Searches: the points that an optimiser may choose, and the cell that each becomes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from ablate.errors import UserError
from ablate.study.cells import Bench, Cell
from ablate.study.configure import Workshop
from ablate.study.designs import rules_of
from ablate.study.expand import all_factors, expand
from ablate.study.factors import Factor, Levels
from ablate.study.plan import Plan
from ablate.study.space import Space

UNIT = " + "


class SearchSpace:
    """The space of a study of ``kind: search``; its plan grows by a cell for every point taken."""

    def __init__(self, workshop: Workshop, plan: Plan) -> None:
        """Read the design again, and begin with the baseline.

        Args:
            workshop: of the study.
            plan: of the study, with its baseline alone.
        """
        self._workshop, self.plan = workshop, plan
        (self._one,) = expand(workshop)
        self._factors = all_factors([self._one])
        self._space = Space(self._one.design, self._factors, self._one.where)
        self._rules = rules_of(self._one.design, self._one.where)
        self._bench = Bench(workshop, self._factors, expected=1)
        start = workshop.configure(self._space.baseline)
        self._bench.add(start, None)
        self._start = start.id

    @property
    def identity(self) -> str:
        """A hash of what makes earlier choices choices of this search: space, baseline, measure."""
        said = [self.plan.search["space"], self.plan.baseline, self.plan.measure]
        design = self._one.design
        said += [design.exclude, design.constraints, design.zip]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]

    def suggest(self, trial: Any) -> Levels:
        """A point of the space, chosen by an Optuna trial; conditions leave factors out."""
        levels: Levels = {}
        for unit in self._space.units:
            here = [factor for factor in unit if factor.applies(levels)]
            if len(unit) > 1:
                name = UNIT.join(factor.key for factor in unit)
                step = trial.suggest_int(name, 0, len(unit[0].levels) - 1)
                levels |= {factor.key: factor.levels[step] for factor in here}
            elif here:
                levels[unit[0].key] = self._choose(trial, unit[0])
        return levels

    def _choose(self, trial: Any, factor: Factor) -> Any:
        spec = self._one.design.factors[factor.key]
        if spec.low is None or spec.high is None:
            return trial.suggest_categorical(factor.key, list(factor.levels))
        if isinstance(spec.low, int) and isinstance(spec.high, int):
            return trial.suggest_int(factor.key, spec.low, spec.high, log=spec.log)
        return trial.suggest_float(factor.key, spec.low, spec.high, log=spec.log)

    def take(self, number: int, levels: Levels) -> Cell | None:
        """Add the cell of a point to the plan; None if it is there already or not allowed.

        A point that no model can be built for is not allowed either.
        """
        if not all(holds(levels) for holds in self._rules.values()):
            return None
        try:
            one = self._workshop.configure(levels)
            if one.id in self._bench.cells:
                return None
            self._bench.add(one, self._start)
        except UserError:
            return None
        made = list(self._bench.cells.values())[-1]  # matching may have given it another id
        if any(cell.id == made.id for cell in self.plan.cells):
            return None
        cell = dataclasses.replace(made, label=f"search #{number}")
        self.plan = dataclasses.replace(self.plan, cells=(*self.plan.cells, cell))
        return cell

    def again(self, number: int, params: dict[str, Any]) -> Cell | None:
        """Add the cell of a point that an earlier run has taken, by Optuna's name for it."""
        from optuna.trial import FixedTrial

        try:
            levels = self.suggest(FixedTrial(params))
        except ValueError:  # the space has changed under the same identity: not possible by hand
            return None
        return self.take(number, levels)

    def specs(self, cell: Cell) -> list[dict[str, Any]]:
        """The trials of one cell."""
        return [spec for spec in self.plan.trials() if spec["cell"] == cell.id]
