"""Prints the JSON schema of `PageView`, from which the script's TypeScript types are made."""

import json
import sys

from sfumato.schemas.views import PageView

if __name__ == "__main__":
    schema = PageView.model_json_schema(mode="serialization")
    sys.stdout.write(json.dumps(schema, indent=1, ensure_ascii=False) + "\n")
