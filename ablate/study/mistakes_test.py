from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablate.errors import UserError
from ablate.study.plan_test import plan

MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "unknown axis": (
        {"widow": [4, 1]},
        {},
        "s.yaml: design.factors: 'widow' is no factor. Did you mean 'window'? Valid: backbone, bia",
    ),
    "unknown level": (
        {"memory": ["mlp", "matrx"]},
        {},
        "s.yaml: design.factors.memory: 'matrx' is no choice of memory. Did you mean 'matrix'? Val",
    ),
    "unknown option": (
        {"window.lenght": [4, 1]},
        {},
        "s.yaml: design.factors.window.lenght: 'lenght' is no key of window (OmegaWindow). Did you",
    ),
    "inactive everywhere": (
        {"newton_schulz.steps": [5, 1]},
        {"model": "titans_lmm"},
        "s.yaml: design.factors.newton_schulz.steps: newton_schulz is not active in any cell.",
    ),
    "unknown preset": (
        {},
        {"model": "atlsa"},
        "s.yaml: model: 'atlsa' is no preset. Did you mean 'atlas'? Valid: atlas, ",
    ),
    "unknown task": (
        {},
        {"task": "mqa"},
        "s.yaml: task: 'mqa' is no task. Did you mean 'mqar'? Valid: ",
    ),
    "negative window": (
        {"window": [4, -4]},
        {},
        "s.yaml: cell window=-4: window: OmegaWindow.length=-4: must be >= 1",
    ),
    "none of several kinds": (
        {},
        {"resources": {"packing": "banana"}},
        "s.yaml: resources.packing is 'banana': must be 'auto' or 'off' or a whole number.",
    ),
    "text for a number": (
        {"window.length": [4, "long"]},
        {},
        "s.yaml: window.length is 'long': must be a whole number.",
    ),
    "null for a choice": (
        {"retention": ["scalar", None]},
        {},
        "s.yaml: design.factors.retention: retention is None; it must be the name of a choice. Wri",
    ),
    "number for a choice without one": (
        {"bias": [1, 2]},
        {},
        "s.yaml: design.factors.bias: bias is 1, but L2 has no principal option that takes a numbe",
    ),
    "unknown argument": (
        {},
        {"task_args": {"lenght": 3}},
        "s.yaml: 'lenght' is no argument of task mqar. Did you mean 'length'?",
    ),
    "wrong argument": (
        {},
        {"task_args": {"pairs": "few"}},
        "s.yaml: task_args.pairs is 'few': must be a whole number.",
    ),
    "refused argument": ({}, {"task_args": {"pairs": 100}}, "s.yaml: "),
    "unknown setting of training": (
        {},
        {"train": {"lrr": 1}},
        "s.yaml: 'lrr' is no key of train. Did you mean 'lr'?",
    ),
    "unknown metric": (
        {},
        {"measure": {"primary": "val/acuracy"}},
        "s.yaml: measure.primary: 'val/acuracy' is no metric of mqar. Did you mean 'val/accuracy'?",
    ),
    "bad setting of training": (
        {"train.lr": [0.1, -1]},
        {},
        "s.yaml: train.lr is -1.0; it must be above 0.",
    ),
    "two sources": (
        {"chunk": [4, 2]},
        {},
        "s.yaml: design.factors: chunk is also set outside the design, to 4. The first level is th",
    ),
    "idle argument": (
        {},
        {"model": "deltanet"},
        "s.yaml: model_args.memory.expansion: 'expansion' is no key of memory (MatrixMemory). Vali",
    ),
    "no model": ({}, {"model": None}, "s.yaml: model is None; mqar needs a model."),
    "a model too many": (
        {},
        {"task": "learnability", "task_args": {}},
        "s.yaml: model is 'atlas'; learnability brings its own learner, so no model.",
    ),
    "a factor of no model": (
        {"window": [4, 1]},
        {"task": "learnability", "task_args": {}, "model": None, "model_args": None},
        "s.yaml: design.factors: 'window' belongs to a model, but learnability has none. Factors h",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_told_by_file_and_key(case: str, tmp_path: Path) -> None:
    factors, changes, message = MISTAKES[case]
    with pytest.raises(UserError) as caught:
        plan(tmp_path, factors, **changes)
    assert str(caught.value).startswith(message)
