"""Readings as hypothesis draws them: every source, every kind of failure, real log lines."""

from pathlib import Path

from hypothesis import strategies as st

from insight.scenes import CHANGE, record
from specdash.core.changes import ApplyKind, ApplyOutcome
from specdash.core.proxy_events import ProxyEvents, RequestEvent
from specdash.core.readings import (
    Counters,
    FailureKind,
    Gpu,
    Gpus,
    Health,
    HealthStatus,
    Host,
    Props,
    Slot,
    Slots,
    Source,
)
from specdash.llama.log.parser import LogParser

DATA = Path(__file__).parents[1] / "data"

numbers = st.one_of(st.none(), st.floats(0, 1e12))
counters = st.builds(
    Counters,
    prompt_tokens=numbers,
    prompt_seconds=numbers,
    predicted_tokens=numbers,
    predicted_seconds=numbers,
    decode_calls=numbers,
    draft_tokens=numbers,
    accepted_tokens=numbers,
    verification_steps=numbers,
    accepted_per_position=st.one_of(st.none(), st.lists(st.integers(0, 10**9), max_size=8).map(tuple)),
    requests_processing=numbers,
    busy_slots_per_decode=numbers,
)
whole = st.one_of(st.none(), st.integers(-1, 10**9))
slots = st.builds(
    Slots,
    st.lists(
        st.builds(
            Slot,
            id=st.integers(0, 8),
            is_processing=st.booleans(),
            n_decoded=whole,
            n_remain=whole,
            task=whole,
            speculative=st.one_of(st.none(), st.booleans()),
            n_prompt_tokens_processed=whole,
        ),
        max_size=4,
    ).map(tuple),
)
log_text = st.lists(
    st.sampled_from((DATA / "logs" / "mamba_draft75_lv5.log").read_bytes().splitlines(keepends=True)), max_size=30
).map(b"".join)
times = st.floats(1e9 - 3000, 1e9)
applies = st.lists(
    st.builds(
        record,
        st.integers(1, 9),
        times,
        ended_at=times,
        outcome=st.sampled_from(ApplyOutcome),
        kind=st.sampled_from(ApplyKind),
        changes=st.sampled_from([(), (CHANGE,)]),
        step_seconds=st.dictionaries(st.sampled_from(["hold", "drain", "restart"]), st.floats(0, 1e6)),
    ),
    max_size=4,
).map(tuple)
events = st.builds(
    lambda at, duration, tokens, rate: ProxyEvents(
        (RequestEvent(at, "s", "r", duration_s=duration, completion_tokens=tokens, decode_rate=rate, ttft_s=rate),)
    ),
    times,
    numbers,
    whole,
    numbers,
)
values: st.SearchStrategy[tuple[Source, object]] = st.one_of(
    st.tuples(st.just(Source.METRICS), counters),
    st.tuples(st.just(Source.SLOTS), slots),
    st.tuples(st.just(Source.LOG), log_text.map(lambda text: LogParser().feed(text))),
    st.tuples(st.just(Source.HEALTH), st.builds(Health, st.sampled_from(HealthStatus))),
    st.tuples(st.just(Source.PROPS), st.builds(Props, build_info=st.one_of(st.none(), st.text(max_size=9)))),
    st.tuples(st.just(Source.GPU), st.builds(lambda u: Gpus((Gpu(0, utilisation=u),)), numbers)),
    st.tuples(st.just(Source.APPLIES), applies),
    st.tuples(st.just(Source.PROXY_EVENTS), events),
    st.tuples(st.just(Source.HOST), st.builds(Host, cpu_utilisation=numbers)),
    st.tuples(st.sampled_from(Source), st.sampled_from(FailureKind)),
)
"""A source with a value of it, or with the reason why there is none."""
