"""Files the settings name: there, readable, and what they must be."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.control.preflight.models import cached_facts
from specdash.llama.gguf import GgufError, GgufFacts
from specdash.llama.model_facts import refusal_of

if TYPE_CHECKING:
    from specdash.control.preflight.context import Findings
    from specdash.control.preflight.subject import Subject

_PLAIN = ("chat-template-file", "api-key-file", "lookup-cache-static")
_NATIVE = ("LLAMA_ARG_SSL_KEY_FILE", "LLAMA_ARG_SSL_CERT_FILE", "LLAMA_ARG_MODELS_PRESET", "LLAMA_ARG_UI_CONFIG_FILE")


def check(subject: Subject, out: Findings) -> Subject:
    """Add what is to be said of the files; the subject with the facts of its models."""
    settings = subject.settings
    for name in _PLAIN:
        path = settings.text(name)
        if path is not None:
            _plain(subject.source(name), path, out)
    for key in _NATIVE:
        if settings.native.get(key):
            _plain(key, settings.native[key], out)
    folder = settings.text("slot-save-path")
    if folder is not None and ("\0" in folder or not os.access(_path(folder), os.W_OK | os.X_OK)):
        said = f"{subject.named('slot-save-path')}: is no directory that can be written"
        out.error("file", said, key=subject.source("slot-save-path"), fix="create it, or name another")
    _gguf(subject, "mmproj", out)
    return replace(subject, model=_gguf(subject, "model", out), draft=_gguf(subject, "spec-draft-model", out))


def _path(text: str) -> str:
    return os.path.expanduser(text)  # noqa: PTH111 - the path stays as the user spelled it


def _plain(key: str, path: str, out: Findings) -> None:
    reason = None
    try:
        file = Path(_path(path))
        if file.is_dir():
            reason = "is a directory"
        else:
            with file.open("rb") as opened:
                reason = None if opened.read(1) else "is empty"
    except FileNotFoundError:
        reason = "no such file"
    except (OSError, ValueError) as error:
        reason = f"cannot be read ({getattr(error, 'strerror', None) or error})"
    if reason is not None:
        out.error("file", f"{key}={path}: {reason}", key=key, fix=f"correct the path, or unset {key}")


def _gguf(subject: Subject, name: str, out: Findings) -> GgufFacts | None:
    path = subject.settings.text(name)
    key = subject.source(name)
    if path is None or key in subject.dropped:
        return None
    try:
        facts = cached_facts(_path(path))
    except GgufError as error:
        said, _, fix = str(error).partition("; ")
        said = said.removeprefix("model ")
        out.error("file", f"{key}: {said}", key=key, fix=fix or f"correct the path in {key}")
        return None
    refused = refusal_of(facts, name)
    if refused is None:
        return facts
    said, _, fix = refused.partition("; ")
    out.error("file-kind", f"{key}={path}: {said}", key=key, fix=fix)
    return None
