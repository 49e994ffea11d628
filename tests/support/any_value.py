"""Values of any type that its hints allow, as hypothesis draws them."""

import enum
import typing
from typing import Any

import msgspec
import msgspec.structs
from hypothesis import strategies as st

from specdash.core.readings import Failure, FailureKind, Reading, ReadingStatus, Source
from specdash.core.sources import SOURCES

texts = st.text(max_size=8) | st.sampled_from(["", "slot 0", "a" * 40])
floats = (
    st.floats(allow_nan=False) | st.floats(0, 1000).map(lambda value: round(value, 3)) | st.sampled_from([0.0, -0.0])
)
wholes = st.integers(-(2**70), 2**70) | st.integers(0, 100) | st.integers(10**9, 10**9 + 50)
json_values = st.recursive(
    st.none() | st.booleans() | wholes | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=4,
)


def of_hint(hint: Any) -> st.SearchStrategy[Any]:
    """Values that the hint allows."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return json_values
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return st.lists(of_hint(arguments[0]), max_size=4).map(tuple)
        return st.tuples(*map(of_hint, arguments))
    if origin is dict:
        return st.dictionaries(texts, of_hint(arguments[1]), max_size=3)
    if arguments:
        return st.one_of([of_hint(argument) for argument in arguments])
    if hint is type(None):
        return st.none()
    if issubclass(hint, enum.Enum):
        return st.sampled_from(list(hint))
    if issubclass(hint, msgspec.Struct):
        drawn = {field.name: of_hint(field.type) for field in msgspec.structs.fields(hint)}
        return st.builds(typing.cast("type[Any]", hint), **drawn)
    return {bool: st.booleans(), int: wholes, float: floats, str: texts}[hint]


def reading_of(source: Source, at: st.SearchStrategy[float] = floats) -> st.SearchStrategy[Reading[Any]]:
    """Readings of one source."""
    known = st.builds(
        Reading,
        st.just(source),
        at,
        st.sampled_from([ReadingStatus.KNOWN, ReadingStatus.STALE]),
        of_hint(SOURCES[source].value),
    )
    failure = st.builds(Failure, st.sampled_from(list(FailureKind)), texts)
    return known | st.builds(Reading, st.just(source), at, st.just(ReadingStatus.UNKNOWN), st.none(), failure)


readings = st.sampled_from(list(Source)).flatmap(reading_of)
