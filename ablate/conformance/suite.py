"""All checks in order, and how a preset becomes small enough for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ablate.conformance import learning, packing, running, sequence
from ablate.conformance.subject import Check, Result, Subject, check_builds
from ablate.trial.space import GROUPS, ConfigDirs, Model, resolve

CHECKS: tuple[Check, ...] = (
    sequence.check_future,
    sequence.check_batch_rows,
    sequence.check_split,
    sequence.check_decode,
    sequence.check_lengths,
    sequence.check_modes,
    sequence.check_state,
    sequence.check_meta,
    packing.check_packed,
    packing.check_padded,
    learning.check_gradients,
    learning.check_parameters,
    learning.check_autocast,
    running.check_precision,
    learning.check_extremes,
    learning.check_deterministic,
    learning.check_trains,
    running.check_compiled,
)

# Largest values that a check needs: several chunks, windows and segments in a few tokens.
SMALL = {
    "backbone.dim": 8,
    "backbone.heads": 2,
    "backbone.layers": 1,
    "backbone.head_dim": 4,
    "backbone.mlp_ratio": 1.0,
    "hybrid.window": 5,
    "hybrid.segment": 5,
    "hybrid.persistent": 2,
    "memory.expansion": 2,
    "feature_map.span": 5,
    "window.length": 3,
}


def shrink(
    model: Model, *, config_dirs: ConfigDirs = (), allow: Sequence[str] = (), where: str = ""
) -> Model:
    """The same model, resolved, with widths, chunks and windows as small as the checks like them.

    Options keep their values where they are smaller already.

    Raises:
        UserError: anything that `resolve` refuses.
    """
    small = resolve(model, config_dirs=config_dirs, allow=allow, where=where)
    if small["chunk"] is not None:
        small["chunk"] = min(small["chunk"], 4)
    for group in GROUPS:
        component = small[group] or {}
        for option, value in component.items():
            limit = SMALL.get(f"{group}.{option}")
            if limit is not None and isinstance(value, (int, float)) and value > limit:
                component[option] = limit
    small["backbone"]["layers"] = max(small["backbone"]["layers"], small["hybrid"].get("period", 1))
    return small


def run_checks(subject: Subject, checks: Sequence[Check] = CHECKS) -> Iterator[Result]:
    """Whether the model builds, and if it does, every check."""
    built = check_builds(subject)
    yield built
    if built.passed:
        yield from (one(subject) for one in checks)
