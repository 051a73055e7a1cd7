"""Pruning: which trials may be stopped early, and what that costs a comparison."""

from __future__ import annotations

from typing import Any

from ablate.errors import UserError
from ablate.study.cells import Laid
from ablate.study.schema import Study

CHECKPOINTS = 3  # of asha, where the task does not say how many tokens a trial reads


def plan_pruning(study: Study, laid: Laid, file: str) -> dict[str, Any]:
    """When trials are stopped early, in tokens; empty if they are not.

    Raises:
        UserError: several tasks, whose metrics cannot be compared, or a grace that no trial
            reaches.
    """
    found = study.pruning
    if found is None:
        return {}
    if len(study.task_names) > 1:
        raise UserError(f"{file}: pruning compares trials of one task, but tasks names several.")
    budgets = {int(getattr(task, "tokens", 0) or 0) for task in laid.tasks.values()}
    tokens, grace = max(budgets), found.grace
    if grace is None:
        if not tokens:
            raise UserError(f"{file}: pruning.grace is missing; this task has no budget of tokens.")
        grace = max(1, int(tokens / found.reduction**2))
    if tokens and grace >= tokens:
        raise UserError(
            f"{file}: pruning.grace is {grace:,} tokens, but a trial reads {tokens:,}: nothing "
            "would be stopped."
        )
    return {
        "kind": found.kind,
        "grace": grace,
        "reduction": found.reduction,
        "tokens": tokens or int(grace * found.reduction**CHECKPOINTS),
    }


def pruning_notes(pruning: dict[str, Any], laid: Laid) -> list[str]:
    """What to know before trials are stopped early."""
    if not pruning:
        return []
    when = f"pruning: {pruning['kind']} may stop trials from {pruning['grace']:,} tokens on"
    if any(one.design.kind == "search" for one in laid.designs):
        return [f"{when}; a configuration with a stopped seed has no mean"]
    return [
        f"{when}; a stopped trial has no final value, so its cell is not comparable by that seed, "
        "and a cell that lost all of them not at all: for effects of all cells, leave pruning out"
    ]
