"""Backend settings as a llama-server command line and environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.backend.extra_args import SOURCE as EXTRA_ARGS
from specdash.core.parameter_catalogue import BY_NAME, ENGINE
from specdash.core.parameters import Kind, Parameter, Scalar

if TYPE_CHECKING:
    from specdash.backend.settings import BackendSettings


def arguments(settings: BackendSettings) -> list[str]:
    """The arguments after the program's name, without secrets: what keys set, then what LLAMA_EXTRA_ARGS set."""
    first: list[str] = []
    last: list[str] = []
    for parameter in ENGINE:
        assigned = settings.parameters.get(parameter.name)
        if assigned is not None:
            into = last if assigned.source == EXTRA_ARGS else first
            into += _rendered(parameter, assigned.value)
    if settings.spec_types:
        into = last if settings.spec_source == EXTRA_ARGS else first
        into += ["--spec-type", ",".join(settings.spec_types)]
    return [*first, *last, *settings.extra_args]


def environment(settings: BackendSettings) -> dict[str, str]:
    """Variables llama-server needs beside its arguments. Holds secrets: never print it unmasked."""
    secrets = {
        variable: value.get_secret_value()
        for name, value in settings.secrets.items()
        if (variable := BY_NAME[name].environment) is not None
    }
    return {**settings.environment, **settings.native, **secrets}


def _rendered(parameter: Parameter, value: Scalar) -> list[str]:
    if parameter.kind is not Kind.SWITCH:
        return [parameter.flags[0], parameter.text(value)]
    if value:
        return [parameter.flags[0]]
    return [parameter.off_flags[0]] if parameter.off_flags else []
