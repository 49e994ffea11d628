"""A server and its proxy at their busiest, made up second by second: readings as the collectors publish them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from specdash.core.log_facts import LogBatch
from specdash.core.proxy_events import SESSIONS_SHOWN, ActiveView, ProxyEvents, ProxyStatus, RequestEvent, SessionView
from specdash.core.readings import Counters, Health, HealthStatus, Host, Reading, Slot, Slots, Source
from specdash.llama.log.parser import LogParser

SLOTS = 8
CONTEXT = 131072
LINES = """\
{at} I slot launch_slot_: id {slot:2d} | task {task} | processing task, is_child = 0
{at} I slot update_slots: id {slot:2d} | task {task} | new prompt, n_ctx_slot = 4096, n_keep = 0, task.n_tokens = {prompt}
{at} I slot print_timing: id {slot:2d} | task {task} | prompt eval time =     {ms}.07 ms /   {prompt} tokens (    0.36 ms per token,  2797.72 tokens per second)
{at} I slot print_timing: id {slot:2d} | task {task} |        eval time =     {ms}.21 ms /   {tokens} tokens (    0.48 ms per token,  2099.67 tokens per second)
{at} I slot print_timing: id {slot:2d} | task {task} | draft acceptance = 0.61212 (  {accepted} accepted /   {drafted} generated), mean len =  3.24
{at} I slot      release: id {slot:2d} | task {task} | stop processing: n_tokens = {prompt}, truncated = 0
"""  # noqa: E501 - as llama-server writes them


@dataclass
class BusyServer:
    """`sessions` conversations take turns on `SLOTS` slots; `requests` of them end in every second."""

    sessions: int
    requests: int
    seed: int = 1
    at: float = 1000.0
    wall: float = 1.8e9
    _tasks: int = 0
    _seen: dict[int, SessionView] = field(default_factory=dict)
    _totals: Counters = field(default_factory=lambda: Counters(0.0, 0.0, 0.0, 0.0))
    _parser: LogParser = field(default_factory=LogParser)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def seconds(self, count: int) -> Iterator[list[Reading[Any]]]:
        """The readings of so many seconds, each in the order of their time."""
        for _ in range(count):
            yield self._second()
            self.at += 1.0
            self.wall += 1.0

    def _second(self) -> list[Reading[Any]]:
        draw = self._random
        text, events = [], []
        for _ in range(self.requests):
            self._tasks += 1
            session = self._tasks * 7919 % self.sessions
            tokens, prompt = draw.randrange(20, 400), draw.randrange(99, 999)
            drafted = tokens * 4
            accepted = int(drafted * draw.random())
            minutes, seconds = divmod(int(self.at - 1000.0), 60)
            text.append(
                LINES.format(
                    at=f"{minutes}.{seconds:02d}.{draw.randrange(1000):03d}.{draw.randrange(1000):03d}",
                    slot=self._tasks % SLOTS, task=self._tasks, prompt=prompt, tokens=tokens, ms=draw.randrange(9, 999),
                    drafted=drafted, accepted=accepted,
                )
            )  # fmt: skip
            self._turn(session, prompt + tokens)
            events.append(
                RequestEvent(
                    self.wall, f"hdr:session-{session}", f"r{self._tasks}", duration_s=draw.random() * 9,
                    ttft_s=draw.random(), prefill_s=draw.random(), decode_s=draw.random() * 8, prompt_tokens=prompt,
                    cached_tokens=prompt // 2, completion_tokens=tokens, decode_rate=draw.random() * 300,
                    draft_tokens=drafted, accepted_tokens=accepted, tools=12, tool_calls=("Read",),
                )
            )  # fmt: skip
            self._count(prompt, tokens, drafted, accepted)
        known = Reading.known
        return [
            known(Source.HEALTH, self.at, Health(HealthStatus.OK, latency_s=draw.random() / 99)),
            known(Source.METRICS, self.at + 0.1, self._totals),
            known(Source.SLOTS, self.at + 0.2, self._slots()),
            known(Source.HOST, self.at + 0.3, Host(cpu_utilisation=draw.random())),
            known(Source.PROXY, self.at + 0.4, self._proxy()),
            known(Source.PROXY_EVENTS, self.at + 0.5, ProxyEvents(tuple(events))),
            known(Source.LOG, self.at + 0.6, self._log("".join(text))),
        ]

    def _log(self, text: str) -> LogBatch:
        return self._parser.feed(text.encode())

    def _turn(self, number: int, tokens: int) -> None:
        known = self._seen.pop(number, SessionView(f"hdr:session-{number}", self.wall, context_window=CONTEXT))
        used = ((known.context_tokens or 0) + tokens) % CONTEXT
        self._seen[number] = replace(
            known, last_seen=self.wall + self._random.random(), requests=known.requests + 1, context_tokens=used,
            peak_tokens=max(used, known.peak_tokens or 0), turns_remaining=(CONTEXT - used) // 900,
            output_tokens=(known.output_tokens or 0) + tokens,
        )  # fmt: skip

    def _count(self, prompt: int, tokens: int, drafted: int, accepted: int) -> None:
        before = self._totals
        self._totals = replace(
            before,
            prompt_tokens=(before.prompt_tokens or 0.0) + prompt,
            prompt_seconds=(before.prompt_seconds or 0.0) + prompt / 3000,
            predicted_tokens=(before.predicted_tokens or 0.0) + tokens,
            predicted_seconds=(before.predicted_seconds or 0.0) + tokens / 300,
            decode_calls=(before.decode_calls or 0.0) + tokens,
            draft_tokens=(before.draft_tokens or 0.0) + drafted,
            accepted_tokens=(before.accepted_tokens or 0.0) + accepted,
            requests_processing=float(min(SLOTS, self.requests)),
        )

    def _slots(self) -> Slots:
        draw = self._random.randrange
        return Slots(
            tuple(
                Slot(number, is_processing=True, n_decoded=draw(400), n_remain=draw(400), task=self._tasks - number)
                for number in range(SLOTS)
            )
        )

    def _proxy(self) -> ProxyStatus:
        latest = tuple(reversed(self._seen.values()))[:SESSIONS_SHOWN]
        active = tuple(
            ActiveView(f"r{self._tasks + number}", f"hdr:session-{number}", self.wall, ttft_s=self._random.random())
            for number in range(SLOTS)
        )
        return ProxyStatus(
            requests=self._tasks, sessions=latest, session_count=len(self._seen), active=active,
            counters={"narrowing:narrowed": self._tasks},
        )  # fmt: skip
