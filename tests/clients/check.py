"""The OpenAPI document is valid, and each example in it is valid by the schema beside it."""

import json
import sys

from jsonschema import Draft202012Validator, FormatChecker
from openapi_spec_validator import validate

with open(sys.argv[1]) as file:
    document = json.load(file)
validate(document)

checked = 0
problems = []


def check(place, schema, example):
    global checked
    checked += 1
    schema = {**schema, "components": document["components"]}
    for error in Draft202012Validator(schema, format_checker=FormatChecker()).iter_errors(example):
        # The deepest cause says more than "is not valid under any of the given schemas".
        cause = max([error, *(error.context or [])], key=lambda one: len(one.absolute_path))
        problems.append(f"{place}: {'.'.join(map(str, cause.absolute_path))}: {cause.message}")


def walk(place, value):
    """Checks the example of each object that has one with its schema: contents, parameters and headers."""
    if isinstance(value, dict):
        if "schema" in value and "example" in value:
            check(place, value["schema"], value["example"])
        elif "type" in value and "example" in value:
            check(place, {key: part for key, part in value.items() if key != "example"}, value["example"])
        for key, part in value.items():
            if key not in ("example", "default"):
                walk(f"{place} {key}" if len(place) < 200 else place, part)
    elif isinstance(value, list):
        for part in value:
            walk(f"{place} {part.get('name', '')}" if isinstance(part, dict) else place, part)


walk("", {key: document[key] for key in ("paths", "components")})
for problem in problems:
    print(problem, file=sys.stderr)
print(f"{checked} examples")
sys.exit(bool(problems) or checked < 100)
