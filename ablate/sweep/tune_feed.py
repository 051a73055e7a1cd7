"""What Ray Tune is given to choose and to stop jobs by: our queue of jobs, its own schedulers.

Tune's `OptunaSearch` is left out on purpose: it knows one number for each Tune trial, so it can
neither wait for the mean over a configuration's seeds, nor be told of what the ledger has, nor see
conditions and exclusions. Its optimiser, Optuna's TPE, is that of `ablate.sweep.search`, behind
Tune's `Searcher`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ablate.sweep.execution import Burst, Job

TIME, OBJECTIVE = "tokens", "objective"


@dataclass(frozen=True)
class Pruning:
    """When trials are stopped early.

    Args:
        kind: ``asha`` stops all but the best 1/`reduction` at each of the checkpoints that are
            `reduction` times apart; ``median`` stops what is worse than the median so far.
        metric: what is compared, over trials that have read as many tokens.
        goal: ``min`` or ``max``.
        grace: tokens that every trial may read.
        tokens: those that a whole trial reads.
        reduction: of ``asha``.
    """

    kind: Literal["asha", "median"]
    metric: str
    goal: str
    grace: int
    tokens: int
    reduction: float = 4.0

    def scheduler(self) -> Any:
        """The scheduler of Ray Tune."""
        from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule

        common: dict[str, Any] = {"time_attr": TIME, "metric": OBJECTIVE, "mode": self.goal}
        if self.kind == "median":
            # A time slice that never ends: else Tune pauses trials, which would begin anew.
            return MedianStoppingRule(
                **common, grace_period=self.grace, min_samples_required=3, min_time_slice=1 << 62
            )
        return ASHAScheduler(
            **common,
            max_t=max(self.tokens, self.grace),
            grace_period=self.grace,
            reduction_factor=self.reduction,
            stop_last_trials=False,
        )

    def result(self, burst: Burst) -> dict[str, float]:
        """What the scheduler compares, of the messages of a lone trial; nothing of other ones."""
        if len(burst) != 1:
            return {}
        (message,) = burst.values()
        value = (message.get("metrics") or {}).get(self.metric)
        if message["kind"] != "row" or value is None:
            return {}
        return {TIME: message["tokens"], OBJECTIVE: value}


def pruned_message(row: dict[str, Any] | None) -> dict[str, Any]:
    """The end of a trial that was stopped after `row`: with its last values."""
    summary = {}
    if row is not None:
        summary = {**row["metrics"], "tokens": row["tokens"], "seconds": row["seconds"]}
    said = f"stopped early after {row['tokens']:,} tokens" if row else "stopped early"
    return {"kind": "end", "state": "pruned", "error": said, "traceback": None, "summary": summary}


def slots(cpus: float, gpus: float) -> int:
    """How many jobs Ray can run at once, if each takes so much."""
    import ray

    have = ray.cluster_resources()
    shares = [have.get("CPU", 0.0) / cpus] if cpus else []
    shares += [have.get("GPU", 0.0) / gpus] if gpus else []
    return max(1, int(min(shares, default=1.0)))


def feed_searcher(feed: Iterator[Job], handed: list[Job], *, most: int) -> Any:
    """A Tune searcher that takes the next job of `feed` when one of `most` workers is free.

    Tune alone would take far more at once, before anything is known of those that run.

    Args:
        feed: jobs, of which a later one may depend on how earlier ones ended.
        handed: gets every job that was taken; Tune's configuration is its place there, and its
            text.
        most: how many jobs may be under way.
    """
    from ray.tune.search import Searcher

    class Feed(Searcher):
        def __init__(self, feed: Iterator[Job], handed: list[Job]) -> None:
            super().__init__()
            self.feed, self.handed = feed, handed
            self.running: set[str] = set()

        def __getstate__(self) -> dict[str, Any]:
            # Tune pickles its searchers to restore them later, which is never done here.
            return {}

        def set_search_properties(
            self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
        ) -> bool:
            return True

        def suggest(self, trial_id: str) -> Any:
            if len(self.running) >= most:
                return None
            job = next(self.feed, None)
            if job is None:
                return Searcher.FINISHED
            self.handed.append(job)
            self.running.add(trial_id)
            return {"index": len(self.handed) - 1, "job": json.dumps(job)}

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            """Have room for the next job; the recorder has told the search how this one ended."""
            self.running.discard(trial_id)

        def save(self, checkpoint_path: str) -> None:
            """Nothing: the ledger keeps the search."""

        def restore(self, checkpoint_path: str) -> None:
            """Nothing is ever restored."""

    return Feed(feed, handed)
