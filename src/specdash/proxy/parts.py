"""Content blocks rendered for a chat completion: runs of text, and images as `image_url` parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from specdash.proxy.messages import Block

Part = str | dict[str, Any]
"""A text, or an `image_url` part."""

JOINT = "\n\n"
"""Between two texts that become one."""

_NAMED_BY = {"base64": "media_type", "url": "url"}


def parts_of(blocks: Iterable[Block]) -> Iterator[Part]:
    """What text, image, document and search result blocks show, in order; other blocks show nothing."""
    for block in blocks:
        match block["type"]:
            case "text":
                yield block["text"]
            case "image":
                yield _image(block["source"])
            case "document":
                yield from _document(block)
            case "search_result":
                yield _search_result(block)


def result_parts(block: Block) -> list[Part]:
    """What a tool result shows; a failed one says that it is an error."""
    content = block.get("content") or ""
    parts: list[Part] = [content] if isinstance(content, str) else list(parts_of(content))
    if not block.get("is_error"):
        return parts
    first = parts[0] if parts and isinstance(parts[0], str) else None
    if first is None:
        return ["Error", *parts]
    return parts if _says_error(first) else [f"Error: {first}" if first else "Error", *parts[1:]]


def content_of(parts: Iterable[Part]) -> str | list[dict[str, Any]]:
    """A chat message's `content`: one string, or a list of parts when there is an image."""
    found: list[dict[str, Any]] = []
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            if part:
                texts.append(part)
        else:
            _add_text(found, texts)
            found.append(part)
    if not found:
        return JOINT.join(texts)
    _add_text(found, texts)
    return found


def _add_text(found: list[dict[str, Any]], texts: list[str]) -> None:
    if texts:
        found.append({"type": "text", "text": JOINT.join(texts)})
        texts.clear()


def _says_error(text: str) -> bool:
    return text.lstrip()[:24].lower().lstrip("<[(*# ").startswith(("error", "tool_use_error"))


def _image(source: dict[str, Any]) -> Part:
    match source["type"]:
        case "base64":
            url = f"data:{source['media_type']};base64,{source['data']}"
        case "url":
            url = source["url"]
        case _:
            return "[An image that was uploaded elsewhere: it cannot be read here]"
    return {"type": "image_url", "image_url": {"url": url}}


def _document(block: Block) -> Iterator[Part]:
    source = block["source"]
    title = block.get("title") or ""
    match source["type"]:
        case "text":
            inner: Iterable[Part] = (source["data"],)
        case "content" if isinstance(source["content"], str):
            inner = (source["content"],)
        case "content":
            inner = parts_of(source["content"])
        case kind:
            what = source.get(_NAMED_BY.get(kind, "")) or "a file"
            name = f" {title!r}" if title else ""
            yield f"[A document{name} ({what}): it cannot be read here]"
            return
    yield "\n".join(filter(None, ["<document>", title and f"<title>{title}</title>", block.get("context") or ""]))
    yield from inner
    yield "</document>"


def _search_result(block: Block) -> str:
    heading = " ".join(filter(None, [block.get("title") or "", f"({block['source']})" if block.get("source") else ""]))
    return "\n".join(filter(None, [heading, *(inner["text"] for inner in block["content"])]))
