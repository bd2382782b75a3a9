"""The description of the JSON API, as OpenAPI 3.1. It is written by hand; tests compare it with the views."""

from __future__ import annotations

from typing import Any

MAX_LIMIT = 100  # notifications of a page
MAX_IDS = 1000  # of a change


def _json(description: str, schema: str, **headers: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
        "headers": {name: {"schema": {"type": "string"}, "description": headers[name]} for name in headers},
    }


def _error(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/responses/{name}"}


def _get(id: str, summary: str, schema: str, parameters: list[Any], errors: dict[str, Any]) -> dict[str, Any]:
    return {
        "operationId": id,
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": _json(summary, schema, ETag="Send it as If-None-Match with the next request."),
            "304": {"description": "Nothing has changed since the ETag."},
            **errors,
            "401": _error("Anonymous"),
        },
    }


def _change(id: str, summary: str) -> dict[str, Any]:
    return {
        "operationId": id,
        "summary": summary,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Choice"}}},
        },
        "responses": {
            "200": _json("How many changed, and the built-in counts as they are now.", "Changed"),
            "400": _error("Invalid"),
            "401": _error("Anonymous"),
            "403": _error("Forbidden"),
            "413": _error("TooLarge"),
            "415": _error("NotJSON"),
        },
        "security": [{"session": [], "csrf": []}],
    }


def _parameter(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_TIME = {"type": "string", "format": "date-time"}
_COUNT = {"type": "integer", "minimum": 0}
_UNSEEN = {**_COUNT, "description": "Neither seen nor read. Missing if the site does not count them."}
_BY_KIND = {
    "type": "object",
    "additionalProperties": {"type": "integer", "minimum": 1},
    "description": "How many are unread of each kind that has any. Missing if the site does not count them.",
}
_TEXT = {"type": "string"}
_KIND = {"type": "string", "maxLength": 64, "pattern": "^[^\\u0000]*$", "description": "Empty for every kind."}
_COUNTS = {"unread": _COUNT, "unseen": _UNSEEN, "unread_by_kind": _BY_KIND}
_SWITCHED = ("unseen", "unread_by_kind")  # on by the site, or off
_CURSOR = {"type": "string", "pattern": r"^(-?[0-9]{1,16}_[0-9]{1,18})?$"}


def _object(optional: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def document(server: str) -> dict[str, Any]:
    """Return the description. ``server`` is where the app's URLs begin."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Notifications",
            "version": "1",
            "description": "The notifications of the user who is logged in, and their counts.",
        },
        "servers": [{"url": server.rstrip("/") or "/"}],
        "security": [{"session": []}],
        "paths": PATHS,
        "components": COMPONENTS,
    }


PATHS: dict[str, Any] = {
    "/counts/": {
        "get": _get(
            "counts",
            "What the badges of a page show, by name.",
            "Counts",
            [_parameter("badge", "Another badge of the page, by its data-badge.", type="array", items=_TEXT)],
            {"400": _error("Invalid")},
        )
    },
    "/api/": {
        "get": _get(
            "list",
            "A page of notifications, newest first.",
            "Page",
            [
                _parameter("unread", "True: only unread notifications. False: only read ones.", type="boolean"),
                _parameter("kind", "Only notifications of this kind; empty for every kind.", **_TEXT),
                _parameter("since", "Only those created at this time or later.", **_TIME),
                _parameter("limit", "How many.", type="integer", minimum=1, maximum=MAX_LIMIT, default=20),
                _parameter("before", "The “older” of another page: the page after it.", **_CURSOR),
                _parameter("after", "The “newer” of another page: the page before it. Overrides “before”.", **_CURSOR),
            ],
            {"400": _error("Invalid")},
        )
    },
    "/api/{id}/": {
        "get": _get(
            "one",
            "One notification.",
            "Notification",
            [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
            {"404": _error("Missing")},
        )
    },
    "/api/mark-as-seen/": {"post": _change("mark-as-seen", "Mark notifications as seen.")},
    "/api/mark-as-read/": {"post": _change("mark-as-read", "Mark notifications as read.")},
    "/api/mark-as-unread/": {"post": _change("mark-as-unread", "Mark notifications as unread.")},
    "/api/delete/": {"post": _change("delete", "Delete notifications.")},
}

COMPONENTS: dict[str, Any] = {
    "securitySchemes": {
        "session": {"type": "apiKey", "in": "cookie", "name": "sessionid", "description": "Django's session."},
        "csrf": {
            "type": "apiKey",
            "in": "header",
            "name": "X-CSRFToken",
            "description": "The value of the cookie “csrftoken”, which comes with the list.",
        },
    },
    "responses": {
        "Invalid": _json("The request is not valid.", "Error"),
        "Anonymous": _json("Nobody is logged in.", "Error", **{"WWW-Authenticate": "Session"}),
        "Forbidden": _json("The CSRF token is missing or wrong.", "Error"),
        "Missing": _json("The user has no such notification.", "Error"),
        "TooLarge": _json("The body is larger than the site accepts.", "Error"),
        "NotJSON": _json("The body is not declared as JSON.", "Error"),
    },
    "schemas": {
        "Notification": _object(
            id={"type": "integer"},
            kind=_TEXT,
            title=_TEXT,
            body=_TEXT,
            url={"type": "string", "description": "Safe to use as a link; empty if there is none."},
            data={"description": "Whatever the site has stored, usually an object."},
            created_at=_TIME,
            seen_at={"type": ["string", "null"], "format": "date-time", "description": "Null until it is seen."},
            read_at={"type": ["string", "null"], "format": "date-time", "description": "Null while it is unread."},
        ),
        "Page": _object(
            notifications={"type": "array", "items": {"$ref": "#/components/schemas/Notification"}},
            newer={"type": "string", "description": "Send it as “after” for the newer page; empty if there is none."},
            older={"type": "string", "description": "Send it as “before” for the older page; empty if there is none."},
        ),
        "Choice": {
            "oneOf": [
                _object(ids={"type": "array", "items": {"type": "integer"}, "maxItems": MAX_IDS}),
                _object(("kind",), which={"enum": ["all", "read"]}, kind=_KIND),
            ]
        },
        "Changed": _object(_SWITCHED, changed=_COUNT, **_COUNTS),
        "Counts": {**_object(_SWITCHED, **_COUNTS), "additionalProperties": _COUNT},
        "Error": _object(detail={"type": "string", "description": "What to do."}),
    },
}
