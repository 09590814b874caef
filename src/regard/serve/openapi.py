"""The OpenAPI document of a served model: its inputs, the fields of its results, and its errors."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Union, get_args, get_origin, get_type_hints

from ..data.json_values import JsonValue
from ..tasks.results import Result
from .inputs import EXAMPLES, Modality
from .limits import ServingLimits

Schema = dict[str, JsonValue]
SIMPLE: dict[object, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    types.NoneType: {"type": "null"},
}
ERRORS = {
    400: "The body is no JSON.",
    401: "The bearer token is missing or wrong.",
    413: "The body, a text or an image is too large, or there are too many inputs.",
    415: "The content type is not supported.",
    422: "The input cannot be read.",
    429: "Too many inputs are waiting.",
    503: "The answer took too long, or the server is shutting down.",
}


def describe_server(
    name: str, modality: Modality, example: Result | None, limits: ServingLimits, token: bool
) -> Schema:
    """The OpenAPI 3.1 document."""
    result = result_schema(type(example)) if example is not None else {"type": "object"}
    error = {"type": "object", "properties": {"error": {"type": "object"}}}
    item = input_schema(modality, limits)
    body = {
        "oneOf": [
            object_schema({"input": item}, ["input"]),
            object_schema({"inputs": {"type": "array", "items": item, "maxItems": limits.items}}, ["inputs"]),
        ]
    }
    single = {"result": {"$ref": "#/components/schemas/Result"}}
    many = {"results": {"type": "array", "items": {"oneOf": [{"$ref": "#/components/schemas/Result"}, error]}}}
    answer = {"oneOf": [object_schema(single, ["result"]), object_schema(many, ["results"])]}
    content: Schema = {"application/json": {"schema": body, "example": {"input": EXAMPLES[modality]}}}
    if modality != "text":
        media = "image/*" if modality == "image" else "audio/*"
        content[media] = {"schema": {"type": "string", "format": "binary"}}
    answers: Schema = {"schema": answer}
    if example is not None:
        answers["example"] = {"result": example.to_dict()}
    predict: Schema = {
        "operationId": "predict",
        "summary": "Predictions for one input or many",
        "requestBody": {"required": True, "content": content},
        "responses": {
            "200": {
                "description": "Results in the order of the inputs.",
                "content": {"application/json": answers},
            },
            **{str(status): error_response(text) for status, text in ERRORS.items() if token or status != 401},
        },
    }
    if token:
        predict["security"] = [{"token": []}]
    components: Schema = {"schemas": {"Result": result, "Error": error}}
    if token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    health = {
        "operationId": "health",
        "summary": "Whether the server answers, and its counters",
        "responses": {"200": {"description": "The server answers."}},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Regard: {name}", "version": version()},
        "paths": {"/predict": {"post": predict}, "/health": {"get": health}},
        "components": components,
    }


def error_response(text: str) -> Schema:
    return {
        "description": text,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }


def input_schema(modality: Modality, limits: ServingLimits) -> Schema:
    if modality == "text":
        text = {"type": "string", "maxLength": limits.characters}
        return {"oneOf": [text, {"type": "object", "description": "The fields of one input."}]}
    if modality == "image":
        return object_schema({"image": {"type": "string", "contentEncoding": "base64"}}, ["image"])
    samples = {"type": "array", "items": {"type": "number"}, "maxItems": limits.samples}
    return {
        "oneOf": [
            object_schema({"audio": {"type": "string", "contentEncoding": "base64"}}, ["audio"]),
            object_schema({"samples": samples, "sample_rate": {"type": "integer"}}, ["samples", "sample_rate"]),
        ]
    }


def object_schema(properties: Mapping[str, JsonValue], required: list[str]) -> Schema:
    return {"type": "object", "properties": properties, "required": required}


def result_schema(result: type[Result]) -> Schema:
    """The JSON schema of a result's fields.

    >>> from ..tasks.results import Transcript
    >>> result_schema(Transcript)["properties"]
    {'file': {'type': 'string'}, 'text': {'type': 'string'}}
    """
    hints = get_type_hints(result)
    properties = {field.name: type_schema(hints[field.name]) for field in fields(result)}
    return {"type": "object", "title": result.__name__, "description": result.__doc__, "properties": properties}


def type_schema(hint: object) -> Schema:
    """The JSON schema of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Result):
        return result_schema(hint)
    if origin in (Union, types.UnionType):
        return {"oneOf": [type_schema(argument) for argument in arguments]}
    if origin is tuple:
        return {"type": "array", "items": type_schema(arguments[0])}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": type_schema(arguments[1])}
    return SIMPLE.get(hint, {})


def version() -> str:
    from .. import __version__

    return __version__
