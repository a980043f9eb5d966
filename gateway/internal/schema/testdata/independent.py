"""Checks claims about texts with Python's jsonschema: a line {schema, claims: [{text, valid, how}]} in, a line for each wrong claim out."""

import decimal
import json
import sys

import regex
from jsonschema import validators
from jsonschema.exceptions import SchemaError

decimal.getcontext().prec = 400
decimal.getcontext().Emax = decimal.MAX_EMAX
decimal.getcontext().Emin = decimal.MIN_EMIN
sys.setrecursionlimit(20000)


class Skip(Exception):
    """What this oracle cannot say."""


def number(text):
    try:
        value = decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise Skip from None
    if value and abs(value.adjusted()) > 300:
        raise Skip
    return int(value) if value == value.to_integral_value() else value


def expression(source):
    """A pattern of ECMA-262 with the flag u, in the terms of the regex module."""
    out, i, inside = [], 0, False
    while i < len(source):
        c = source[i]
        if c == "\\":
            pair = source[i : i + 2]
            known = {"\\d": "0-9", "\\w": "A-Za-z0-9_", "\\s": r"\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"}
            if pair.lower() in known:
                text = known[pair.lower()]
                if pair[1].isupper():
                    if inside:
                        raise Skip
                    out.append(f"[^{text}]")
                else:
                    out.append(text if inside else f"[{text}]")
            elif pair == "\\/" or pair == "\\-":
                out.append("\\" + pair[1])
            else:
                out.append(pair)
            i += 2
            continue
        if inside:
            if c == "]":
                inside = False
            out.append("\\[" if c == "[" else c)
        elif c == "[":
            inside = True
            out.append(c)
            if source[i + 1 : i + 2] == "^":
                out.append("^")
                i += 1
            if source[i + 1 : i + 2] == "]":
                raise Skip
        elif c == "$":
            out.append(r"\Z")
        elif c == ".":
            out.append(r"[^\n\r\u2028\u2029]")
        else:
            out.append(c)
        i += 1
    return "".join(out)


def translated(schema):
    if isinstance(schema, list):
        return [translated(v) for v in schema]
    if not isinstance(schema, dict):
        return schema
    out = {}
    for key, value in schema.items():
        if key == "pattern" and isinstance(value, str):
            value = expression(value)
        elif key == "patternProperties" and isinstance(value, dict):
            value = {expression(k): translated(v) for k, v in value.items()}
        elif key not in ("enum", "const", "default", "examples"):
            value = translated(value)
        out[key] = value
    return out


class Search:
    """The regex module in the place of re."""

    error = regex.error

    @staticmethod
    def search(pattern, text):
        try:
            return regex.search(pattern, text, regex.V0, timeout=5)
        except (regex.error, TimeoutError):
            raise Skip


import jsonschema._keywords
import jsonschema._legacy_keywords
import jsonschema._utils

for module in (jsonschema._keywords, jsonschema._legacy_keywords, jsonschema._utils):
    module.re = Search

EXACT_FORMATS = ("date", "ipv4", "ipv6", "uuid")


def loose(schema):
    """Whether a format is asserted here that this oracle takes for less than it is."""
    if isinstance(schema, list):
        return any(map(loose, schema))
    if not isinstance(schema, dict):
        return False
    return isinstance(schema.get("format"), str) and schema["format"] not in EXACT_FORMATS or any(map(loose, schema.values()))


def main():
    for line in sys.stdin:
        try:
            row = json.loads(line, parse_float=number)
            schema = translated(row["schema"])
        except Skip:
            continue
        cls = validators.validator_for(schema, default=validators.Draft202012Validator)
        if cls in (validators.Draft201909Validator, validators.Draft202012Validator):
            cls = validators.extend(cls, {"dependencies": jsonschema._legacy_keywords.dependencies_draft4_draft6_draft7})
        checker = validators.Draft202012Validator.FORMAT_CHECKER
        try:
            validator = cls(schema, format_checker=checker)
        except Exception:
            continue
        inexact = loose(row["schema"])
        if inexact and any(f'"{keyword}"' in line for keyword in ("not", "if", "oneOf", "contains")):
            continue
        for claim in row["claims"]:
            try:
                value = json.loads(claim["text"], parse_float=number)
            except (Skip, RecursionError):
                continue
            except ValueError as e:
                print(json.dumps({"claim": claim, "no JSON": str(e), "schema": row["schema"]}, default=str))
                continue
            try:
                errors = [e.message[:200] + " " + "/".join(map(str, e.schema_path)) for e in validator.iter_errors(value)]
            except Exception as e:
                if "--errors" in sys.argv:
                    print(type(e), str(e)[:200], file=sys.stderr)
                continue
            if (not errors) != claim["valid"] and (errors or not inexact):
                print(json.dumps({"claim": claim, "errors": errors[:3], "schema": row["schema"]}, default=str, ensure_ascii=False)[:3000], flush=True)


main()
