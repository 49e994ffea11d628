"""The upstream's models under names that Claude Code accepts, and the way back from any name to the upstream's."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

from specdash.core.router import most_recent_resident
from specdash.proxy.errors import ApiError, InvalidRequestError
from specdash.proxy.responses import send_json

if TYPE_CHECKING:
    from specdash.proxy.app import Proxy
    from specdash.proxy.responses import Receive, Scope, Send
    from specdash.proxy.window import Window

_ACCEPTED = ("claude", "anthropic")
"""Claude Code uses only ids that begin so."""
_NOT_SLUG = re.compile(r"[^a-z0-9._-]+")
ANY = "any"
"""Of a router's models whichever is in memory. A model that really has this name is meant before."""
_VARIANT = re.compile(r"\[[^\]]*\]$")
"""What Claude Code adds to a model's name for itself, as `[1m]`."""
_MOST = 1000


def display_name(model: str) -> str:
    """The upstream's id as people read it: a file path becomes the file's stem."""
    if model.lower().endswith(".gguf"):
        return re.split(r"[/\\]", model)[-1][: -len(".gguf")] or model
    return model


def listed_name(model: str) -> str:
    """The id under which an upstream's model is offered."""
    name = display_name(model)
    if name.lower().startswith(_ACCEPTED):
        return name
    return f"claude-{_slug(name)}"


def upstream_model(requested: str, window: Window) -> str:
    """The upstream's id for a client's model name.

    An exact or listed name means that model; `any` of a router the resident model that was used last, else the only
    model there is; any other name (as claude-sonnet-4-5) means the model that is loaded, and is passed on as it is
    while the upstream's models are not known. Raises `ApiError` 400 for `any` while no model is resident.
    """
    found = find_model(requested, window.models)
    if found is None and requested == ANY and window.router:
        return _resident(window)
    return found or window.model_id or requested


async def learn_models(requested: str, window: Window) -> None:
    """See to it that the upstream's models are known well enough to tell what a client's model name means."""
    # What is in memory may be another model after any request, of this proxy or of somebody else.
    await window.refresh(force=requested == ANY and bool(window.router))


def _resident(window: Window) -> str:
    best = most_recent_resident(window.resident_models())
    if best is not None:
        return best.id
    names = ", ".join(one.id for one in window.router[:8])
    raise ApiError(400, f"model '{ANY}': the router has no model in memory; name one of: {names}")


def find_model(requested: str, models: tuple[str, ...]) -> str | None:
    """The upstream's id that a name means exactly or by its slug, None when it means none."""
    name = _VARIANT.sub("", requested)
    if name in models:
        return name
    slug = _slug(name)
    by_name = {listed: model for model, listed in zip(models, _listed(models), strict=True)}
    for listed, model in by_name.items():
        if slug in {_slug(listed), _slug(display_name(model)), _slug(model)}:
            return model
    return None


async def handle_list(proxy: Proxy, scope: Scope, _receive: Receive, send: Send) -> None:
    """GET /v1/models, in the words of both APIs."""
    await proxy.window.refresh()
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    rows = _rows(proxy.window.models, proxy.started)
    chosen = _page(rows, query)
    await send_json(
        send,
        {
            "object": "list",
            "data": chosen,
            "has_more": bool(chosen) and _more(rows, chosen, query),
            "first_id": chosen[0]["id"] if chosen else None,
            "last_id": chosen[-1]["id"] if chosen else None,
        },
    )


async def handle_one(proxy: Proxy, scope: Scope, _receive: Receive, send: Send) -> None:
    """GET /v1/models/{id}; `id` is the listed name or the upstream's own."""
    await proxy.window.refresh()
    raw = scope.get("raw_path") or scope["path"].encode()
    requested = unquote(raw.decode("latin-1").split("/v1/models/", 1)[-1])
    models = proxy.window.models
    model = find_model(requested, models)
    if model is None:
        raise ApiError(404, f"model: {requested[:200]}")
    await send_json(send, _rows(models, proxy.started)[models.index(model)])


def _slug(name: str) -> str:
    return _NOT_SLUG.sub("-", name.lower()).strip("-") or "model"


def _listed(models: tuple[str, ...]) -> list[str]:
    """Listed names in order; a name that two models share gets a number."""
    found: list[str] = []
    for model in models:
        name = base = listed_name(model)
        count = 1
        while name in found:
            count += 1
            name = f"{base}-{count}"
        found.append(name)
    return found


def _rows(models: tuple[str, ...], created: float) -> list[dict[str, Any]]:
    moment = dt.datetime.fromtimestamp(int(created), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        {
            "type": "model",
            "id": listed,
            "display_name": display_name(model),
            "created_at": moment,
            "object": "model",
            "created": int(created),
            "owned_by": "llama.cpp",
        }
        for model, listed in zip(models, _listed(models), strict=True)
    ]


def _page(rows: list[dict[str, Any]], query: dict[str, list[str]]) -> list[dict[str, Any]]:
    text = query.get("limit", [str(_MOST)])[0]
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _MOST):
        raise InvalidRequestError("limit", f"must be a whole number from 1 to {_MOST}")
    limit = int(text)
    ids = [row["id"] for row in rows]
    if (after := query.get("after_id", [""])[0]) in ids:
        return rows[ids.index(after) + 1 :][:limit]
    if (before := query.get("before_id", [""])[0]) in ids:
        return rows[: ids.index(before)][-limit:]
    return rows[:limit]


def _more(rows: list[dict[str, Any]], chosen: list[dict[str, Any]], query: dict[str, list[str]]) -> bool:
    """True when there are rows beyond the page, in the direction the client goes."""
    return chosen[0] is not rows[0] if "before_id" in query else chosen[-1] is not rows[-1]
