"""A head that says a row again goes with tasks that ask for it, and with no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ablate.errors import UserError
from ablate.study.plan import make_plan

STUDY: dict[str, Any] = {
    "question": "?",
    "model": "deltanet",
    "model_args": {"backbone.dim": 8, "backbone.heads": 2, "backbone.layers": 1},
    "task": "mad",
    "task_args": {"variant": "compression", "length": 8, "train_rows": 32, "tokens": 512},
    "seeds": 2,
    "design": {"kind": "one_factor", "factors": {"chunk": [4, 2]}},
    "measure": {"primary": "val/accuracy", "goal": "max"},
}


def plan(tmp_path: Path, *overrides: str) -> Any:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False))
    return make_plan(tmp_path / "s.yaml", overrides)


def test_an_auto_encoder_is_planned_for_compression(tmp_path: Path) -> None:
    made = plan(tmp_path, "model_args.backbone=autoencoder")
    target = made.cells[0].config["model"]["backbone"]["_target_"]
    assert target == "ablate.components.autoencoder.AutoEncoderBackbone"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((), r"s\.yaml: mad asks for the row .* set model_args\.backbone: autoencoder"),
        (
            ("model_args.backbone=autoencoder", "task_args.variant=memorization"),
            r"s\.yaml: backbone AutoEncoderBackbone says a row from its end",
        ),
    ],
)
def test_other_pairs_of_head_and_task_are_refused(
    tmp_path: Path, overrides: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        plan(tmp_path, *overrides)
