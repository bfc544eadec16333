"""Prints the JSON schema of `PageView` and `NightMap`, from which the script's TypeScript types are made."""

import json
import sys

from sfumato.schemas.views import NightMap, PageView

if __name__ == "__main__":
    schema = PageView.model_json_schema(mode="serialization")
    night = NightMap.model_json_schema(mode="serialization")
    schema["$defs"] |= night.pop("$defs") | {"NightMap": night}
    sys.stdout.write(json.dumps(schema, indent=1, ensure_ascii=False) + "\n")
