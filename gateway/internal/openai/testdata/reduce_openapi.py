"""Reduces OpenAI's published OpenAPI document to the schemas of the answers that this server gives.

    python3 reduce_openapi.py openapi.json > openapi_answers.json

The document is openai/openai-openapi's, version 2.3.0, as JSON; its licence is MIT, (c) OpenAI, which is named in the result. Descriptions and examples are left
out. `nullable`, which the document still uses though OpenAPI 3.1 has no such keyword, becomes a type, else every correct chunk of a stream would be refused; NULLS are the other
places where the document refuses what OpenAI sends.
"""

import json
import sys

ROOTS = [
    "CreateChatCompletionResponse", "CreateChatCompletionStreamResponse", "CreateCompletionResponse", "ListModelsResponse", "Model", "ErrorResponse",
    "Response", "ResponseStreamEvent", "ResponseItemList", "TokenCountsResource",
]
# What OpenAI's own responses have as null (the document's own example, and every stream before its end), though the document does not say so.
NULLS = {"ModelResponseProperties": ["user"], "Response": ["usage"]}
PREFIX = "#/components/schemas/"
# Keywords that say nothing about validity.
PROSE = {"description", "title", "example", "examples", "default", "deprecated", "externalDocs", "discriminator"}


def reduce(value, names=False):
    """Drops prose and nullable. names: the keys are names of properties, not keywords."""
    if isinstance(value, list):
        return [reduce(v) for v in value]
    if not isinstance(value, dict):
        return value
    if names:
        return {k: reduce(v) for k, v in value.items()}
    out = {k: reduce(v, names=k in ("properties", "$defs")) for k, v in value.items() if k not in PROSE and k != "nullable" and not k.startswith("x-")}
    if value.get("nullable") is True:
        if isinstance(out.get("type"), str):
            out["type"] = [out["type"], "null"]
        if "enum" in out and None not in out["enum"]:
            out["enum"] = out["enum"] + [None]
        if {"$ref", "anyOf", "oneOf", "allOf"} & out.keys():
            out = {"anyOf": [out, {"type": "null"}]}
    return out


def references(value):
    if isinstance(value, dict):
        for k, v in value.items():
            if k == "$ref" and isinstance(v, str):
                yield v.removeprefix(PREFIX)
            else:
                yield from references(v)
    elif isinstance(value, list):
        for v in value:
            yield from references(v)


def main():
    with open(sys.argv[1]) as f:
        document = json.load(f)
    kept, todo = {}, list(ROOTS)
    while todo:
        name = todo.pop()
        if name not in kept:
            kept[name] = reduce(document["components"]["schemas"][name])
            todo += references(kept[name])
    for name, members in NULLS.items():
        for part in [kept[name]] + kept[name].get("allOf", []):
            for member in members:
                if member in part.get("properties", {}):
                    part["properties"][member] = {"anyOf": [part["properties"][member], {"type": "null"}]}
    info = document["info"]
    source = f"Reduced by reduce_openapi.py from the OpenAPI document of OpenAI (openai/openai-openapi), version {info['version']}, (c) OpenAI, licence {info['license']['name']}."
    lines = [f"{json.dumps(name)}: {json.dumps(kept[name], ensure_ascii=False)}" for name in sorted(kept)]
    print('{"$comment": ' + json.dumps(source, ensure_ascii=False) + ',\n"components": {"schemas": {\n' + ",\n".join(lines) + "\n}}}")


main()
