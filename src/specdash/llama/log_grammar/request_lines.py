"""What a slot prints about the requests it serves: start, prefill, decode, timings, end."""

from __future__ import annotations

from specdash.core.log_facts import (
    DecodeProgress,
    DecodeTiming,
    LogFact,
    PrefillProgress,
    PromptReused,
    PromptStarted,
    PromptTiming,
    SlotSelected,
    TaskLaunched,
    TaskReleased,
    TotalTiming,
)
from specdash.llama.log_grammar.captures import event
from specdash.llama.log_grammar.forms import Context, Form, Groups, LineClass, Maker

SLOT, ANY, BARE = Context.SLOT, Context.ANY, Context.BARE
Id = int | None
Seconds = float | None


def _launched(slot: int, task: int, _g: Groups, at: Seconds, origin: Id) -> LogFact:
    return TaskLaunched(slot, task, at, origin)


def _released(slot: int, task: int, g: Groups, at: Seconds, origin: Id) -> LogFact:
    return TaskReleased(slot, task, int(g[0]), g[1] != b"0", at, origin)


def _selected(how: str) -> Maker:
    def make(slot: int, _task: int, g: Groups, at: Seconds, origin: Id) -> LogFact:
        return SlotSelected(slot, how, float(g[0]) if g else None, at, origin)

    return make


def _prompt_started(slot: int, task: int, g: Groups, at: Seconds, origin: Id) -> LogFact:
    return PromptStarted(slot, task, int(g[0]), int(g[1]), at, origin)


def _prompt_reused(slot: int, task: int, g: Groups, at: Seconds, origin: Id) -> LogFact:
    return PromptReused(slot, task, int(g[0]), at, origin)


def _prefill(slot: int, task: int, g: Groups, at: Seconds, origin: Id) -> LogFact:
    return PrefillProgress(slot, task, int(g[0]), float(g[1]), None, None, at, origin)


def _prefill_timed(slot: int, task: int, g: Groups, at: Seconds, origin: Id) -> LogFact:
    n_tokens, progress, seconds, rate = g
    return PrefillProgress(slot, task, int(n_tokens), float(progress), float(seconds), float(rate), at, origin)


def _prefill_done(slot: int, task: int, g: Groups, at: Seconds, origin: Id) -> LogFact:
    return PrefillProgress(slot, task, int(g[0]), 1.0, None, None, at, origin)


def _decode(slot: int, task: int, g: Groups, at: Seconds, origin: Id) -> LogFact:
    recent = float(g[2]) if len(g) > 2 else None
    return DecodeProgress(slot, task, int(g[0]), float(g[1]), recent, at, origin)


def _prompt_timing(slot: Id, task: Id, g: Groups, at: Seconds, origin: Id) -> LogFact:
    return PromptTiming(slot, task, float(g[0]), int(g[1]), at, origin)


def _decode_timing(slot: Id, task: Id, g: Groups, at: Seconds, origin: Id) -> LogFact:
    return DecodeTiming(slot, task, float(g[0]), int(g[1]), at, origin)


def _total_timing(slot: Id, task: Id, g: Groups, at: Seconds, origin: Id) -> LogFact:
    return TotalTiming(slot, task, float(g[0]), int(g[1]), at, origin)


def both(template: str, make: Maker | None = None) -> tuple[Form, Form]:
    """A form that stands after the slot prefix in current builds, and on a line of its own in older ones."""
    return Form(SLOT, template, make), Form(BARE, template, make)


_PLACES = (
    ' | tid="{:w}" timestamp={:d} id_slot={slot:d} id_task={task:d}',
    ' | tid="{:w}" timestamp={:d} slot_id={slot:d} task_id={task:d}',
    '","id_slot":{slot:d},"id_task":{task:d}',
    '","slot_id":{slot:d},"task_id":{task:d}',
)
"""How builds until September 2024, and ik_llama.cpp, name slot and task behind the message."""


def with_place(template: str, make: Maker | None = None, behind: str = "{:rest}") -> tuple[Form, ...]:
    """A form whose slot and task stand behind it; `behind` is what follows them."""

    def placed(_slot: Id, _task: Id, g: Groups, at: Seconds, origin: Id) -> LogFact:
        assert make is not None  # noqa: S101 - for the type checker
        values = [*g]
        place = [values.pop(where), values.pop(where)]
        return make(int(place[0]), int(place[1]), values, at, origin)

    where = template.count("{") - template.count("{:")
    return tuple(Form(BARE, f"{template}{place}{behind}", placed if make is not None else None) for place in _PLACES)


def _released_early(slot: int, task: int, g: Groups, at: Seconds, origin: Id) -> LogFact:
    return TaskReleased(slot, task, int(g[0]), g[1] == b"true", at, origin)


_SPEED = "( {:w} ms per token, {:w} tokens per second)"
_LEFT = " n_ctx={:d} n_past={n:d} n_system_tokens={:d} n_cache_tokens={:d} truncated={truncated:w}"
_LEFT_JSON = ',"n_ctx":{:d},"n_past":{n:d},"n_system_tokens":{:d},"n_cache_tokens":{:d},"truncated":{truncated:w}'

REQUEST_LINES: tuple[LineClass, ...] = (
    LineClass(
        "slot_selected",
        "a slot was picked for a request",
        (
            Form(
                SLOT,
                "selected slot by LCP similarity, f_sim_best = {similarity:f} (> {:f} thold), f_keep = {:f}",
                _selected("lcp"),
            ),
            Form(
                SLOT,
                "selected slot by LCP similarity, sim_best = {similarity:f} (> {:f} thold), f_keep = {:f}",
                _selected("lcp"),
            ),
            Form(
                SLOT, "selected slot by lcp similarity, lcp_len = {:d}, similarity = {similarity:f}", _selected("lcp")
            ),
            Form(SLOT, "selected slot by LRU, t_last = {:d}", _selected("lru")),
            Form(SLOT, "selected slot by lru, t_last = {:d}", _selected("lru")),
            Form(SLOT, "selected slot by id ({:d})", _selected("id")),
        ),
    ),
    LineClass(
        "slot_considered",
        "a slot was looked at for a request",
        (
            Form(SLOT, "- skipping, slot is empty"),
            Form(SLOT, "- skipping, is_processing = {:d}"),
            Form(SLOT, "- checking sim = {:f} ({:d}/{:d}) > {:f}"),
        ),
    ),
    LineClass(
        "task_launched",
        "a slot began a request",
        (
            *with_place("slot is processing task", _launched),
            Form(SLOT, "processing task, is_child = {:d}", _launched),
            Form(SLOT, "processing task", _launched),
        ),
    ),
    LineClass(
        "task_released",
        "a slot ended a request",
        (
            *with_place("slot released", _released_early, _LEFT)[:2],
            *with_place("slot released", _released_early, _LEFT_JSON)[2:],
            Form(SLOT, "stop processing: n_tokens = {n_tokens:d}, truncated = {truncated:d}", _released),
            Form(SLOT, "stop processing: n_past = {n_tokens:d}, truncated = {truncated:d}", _released),
        ),
    ),
    LineClass(
        "prompt_started",
        "a prompt of known length began",
        (
            Form(SLOT, "new prompt, n_ctx_slot = {n_ctx:d}, n_keep = {:d}, task.n_tokens = {n:d}", _prompt_started),
            Form(SLOT, "new prompt, n_ctx_slot = {n_ctx:d}, n_keep = {:d}, n_prompt_tokens = {n:d}", _prompt_started),
        ),
    ),
    LineClass(
        "prompt_reused",
        "how much of the prompt the slot already held",
        (
            Form(SLOT, "cached n_tokens = {cached:d}, memory_seq_rm [{:d}, end)", _prompt_reused),
            Form(SLOT, "n_tokens = {cached:d}, memory_seq_rm [{:d}, end)", _prompt_reused),
            Form(SLOT, "kv cache rm [{cached:d}, end)", _prompt_reused),
            # Printed for every batch of a prompt, not for what was reused alone.
            *with_place("kv cache rm [p0, end)"),
        ),
    ),
    LineClass(
        "prefill_progress",
        "prefill under way",
        (
            Form(
                SLOT,
                "prompt processing, n_tokens = {n:d}, progress = {p:f}, t = {t:f} s / {r:f} tokens per second",
                _prefill_timed,
            ),
            Form(
                SLOT,
                "prompt processing progress, n_tokens = {n:d}, batch.n_tokens = {:d}, progress = {p:f}",
                _prefill,
            ),
            Form(SLOT, "prompt processing progress, n_past = {n:d}, n_tokens = {:d}, progress = {p:f}", _prefill),
            Form(SLOT, "prompt processing done, n_tokens = {n:d}, batch.n_tokens = {:d}", _prefill_done),
            Form(SLOT, "prompt done, n_past = {n:d}, n_tokens = {:d}", _prefill_done),
            Form(SLOT, "prompt done, n_tokens = {n:d}, batch.n_tokens = {:d}", _prefill_done),
        ),
    ),
    LineClass(
        "decode_progress",
        "decode under way",
        (
            Form(SLOT, "n_gen = {n:d}, tg = {r:f} t/s, tg_3s = {recent:f} t/s", _decode),
            Form(SLOT, "n_gen = {n:d}, tg = {r:f} t/s", _decode),
            Form(SLOT, "n_decoded = {n:d}, tg = {r:f} t/s, tg_3s = {recent:f} t/s", _decode),
            Form(SLOT, "n_decoded = {n:d}, tg = {r:f} t/s, tg(last {:d}s) = {recent:f} t/s", _decode),
            Form(SLOT, "n_decoded = {n:d}, tg = {r:f} t/s", _decode),
        ),
    ),
    LineClass("timing_header", "the header of a timing block (builds until 2026-05)", (Form(SLOT, ""),)),
    LineClass(
        "prompt_timing",
        "prefill time of a finished request",
        (
            *with_place(f"prompt eval time = {{ms:f}} ms / {{tokens:d}} tokens {_SPEED}", _prompt_timing),
            *both("prompt eval time = {ms:f} ms / {tokens:d} tokens ({:rest}", _prompt_timing),
        ),
    ),
    LineClass(
        "decode_timing",
        "decode time of a finished request",
        (
            *with_place(f"generation eval time = {{ms:f}} ms / {{tokens:d}} runs {_SPEED}", _decode_timing),
            *both("eval time = {ms:f} ms / {tokens:d} tokens ({:rest}", _decode_timing),
        ),
    ),
    LineClass(
        "total_timing",
        "total time of a finished request",
        (*both("total time = {ms:f} ms / {tokens:d} tokens", _total_timing), *with_place("total time = {:f} ms")),
    ),
    LineClass("graphs_reused", "compute graphs reused so far", both("graphs reused = {:d}")),
    LineClass(
        "sampler",
        "sampler set-up of a request",
        (
            Form(SLOT, "init sampler, took {:f} ms, tokens: text = {:d}, total = {:d}"),
            Form(SLOT, "sampler chain: {:rest}"),
            Form(SLOT, "sampler params: {:rest}"),
            Form(BARE, "repeat_last_n = {:d}, repeat_penalty = {:f}, {:rest}"),
            Form(BARE, "dry_multiplier = {:f}, dry_base = {:f}, {:rest}"),
            Form(BARE, "top_k = {:d}, top_p = {:f}, min_p = {:f}, {:rest}"),
            Form(BARE, "mirostat = {:d}, mirostat_lr = {:f}, mirostat_ent = {:f}{:rest}"),
        ),
    ),
    LineClass(
        "slot_setup",
        "a slot was made or put aside",
        (
            Form(SLOT, "new slot, n_ctx = {:d}"),
            Form(SLOT, "new slot n_ctx_slot = {:d}"),
            Form(BARE, 'new slot | tid="{:rest}'),
            Form(BARE, 'new slot","{:rest}'),
            Form(SLOT, "saving idle slot to prompt cache"),
            Form(SLOT, "clearing slot with {:d} tokens"),
        ),
    ),
    LineClass(
        "image_processing",
        "an image or audio part of a prompt was encoded",
        tuple(
            Form(ANY, template, event("image_processing"))
            for template in (
                "processing image...",
                "processing mtmd chunk{:rest}",
                "image processed in {:d} ms",
                "encoding image slice...",
                "encoding image or slice...",
                "image slice encoded in {:d} ms",
                "image/slice encoded in {:d} ms",
                "decoding image batch {:d}/{:d}, n_tokens_batch = {:d}",
                "image decoded (batch {:d}/{:d}) in {:d} ms",
                "encoding audio slice...",
                "audio slice encoded in {:d} ms",
            )
        ),
    ),
    LineClass(
        "http_request",
        "an HTTP request was logged",
        (
            Form(ANY, "request: {:rest}"),
            Form(ANY, "done request: {:rest}"),
            Form(BARE, 'request | tid="{:rest}'),
            Form(BARE, 'request","remote_addr":{:rest}'),
            Form(ANY, "conv_id={:s} (empty={:d})"),
            Form(ANY, "conv_id= (empty={:d})"),
            Form(ANY, "chat format: {:s}"),
            Form(ANY, "Chat format: {:s}"),
            Form(ANY, "proxying request to model {:s} on port {:d}"),
            Form(ANY, "proxying {:s} request to model {:s} on port {:d}"),
            Form(ANY, "reasoning-budget: {:rest}"),
            Form(ANY, "Request converted: {:rest}"),
            Form(ANY, "serve nocache for {:rest}"),
        ),
    ),
    LineClass(
        "idle",
        "all slots are idle",
        (Form(ANY, "all slots are idle"), Form(ANY, "all slots are idle{:rest}")),
    ),
)
