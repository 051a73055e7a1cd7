from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ablate.experiments.catalogue import study_names, study_path
from ablate.study.designs import KINDS
from ablate.study.json_schema import schema_text, study_schema
from ablate.study.schema import KIND_NAMES, Design, Study

FILE = Path(__file__).resolve().parents[2] / "docs" / "study.schema.json"


@pytest.mark.skipif(not FILE.parent.is_dir(), reason="only the repository has docs/")
def test_the_published_schema_is_current() -> None:
    assert FILE.read_text() == schema_text(), "python -m ablate.study.json_schema > " + str(FILE)


@pytest.mark.parametrize("name", study_names())
def test_every_shipped_study_meets_it(name: str) -> None:
    jsonschema.validate(yaml.safe_load(study_path(name).read_text()), study_schema())


@pytest.mark.parametrize(
    "content",
    [
        {"sede": 3},
        {"design": {"kind": "ful"}},
        {"design": {"factors": {"window": {"level": [1]}}}},
        {"measure": {"goal": "lower"}},
        {"seeds": "three"},
        {"match": {"on": "width"}},
    ],
)
def test_it_refuses_what_the_plan_refuses(content: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"task": "language", **content}, study_schema())


def test_every_key_is_described_and_every_kind_is_there() -> None:
    assert tuple(KINDS) == KIND_NAMES
    for section in (Study, Design):
        for name, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{name}"
    assert json.loads(schema_text())["properties"]["defaults"]["type"] == "array"
