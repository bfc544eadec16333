"""Prints the JSON schema of `PageView` and `NightMap`, from which the script's TypeScript types are made."""

import json
import sys
from typing import Any

from sfumato.schemas.views import PageView
from sfumato.schemas.views.flow_views import NightMap


def schema() -> dict[str, Any]:
    """The schema of both classes and of all that they hold."""
    page = PageView.model_json_schema(mode="serialization")
    night = NightMap.model_json_schema(mode="serialization")
    page["$defs"] |= night.pop("$defs") | {"NightMap": night}
    return page


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=1, ensure_ascii=False) + "\n")
