"""The JSON Schema of study files, with which editors complete and check them.

``python -m ablate.study.json_schema > docs/study.schema.json`` writes it anew.
"""

from __future__ import annotations

import json
from typing import Any

from ablate.study.schema import Study

TITLE = "Ablate study"


def study_schema() -> dict[str, Any]:
    """What a study file may hold, as JSON Schema."""
    schema: dict[str, Any] = Study.model_json_schema(mode="validation", by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = TITLE
    schema["required"] = []
    schema["properties"]["defaults"] = {
        "description": "Files that this one is laid over: [/language/quickstart, _self_].",
        "type": "array",
    }
    return schema


def schema_text() -> str:
    """The schema as it stands in the file."""
    return json.dumps(study_schema(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
