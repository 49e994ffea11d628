"""Commands, options, settings and alert rules of earlier versions, each with what to use instead.

A removed command or option ends the program with that line (exit code 2). A removed setting in config.toml or the
environment, or an alert rule in rules.toml, is ignored, with that line as a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EVERY_COMMAND = ""
"""In the place of a command's name: the option is removed from all of them."""

_ENV_CHANGE = "`specdash apply KEY=VALUE` or `--unset KEY` changes and verifies; or edit the file"
_FLEET = "`specdash fleet --json` has every server with its state, verdict and worst alert; --url names one"
_FLEET_HISTORY = (
    "charts over days are in Grafana (contrib/grafana); `specdash history query` has what was recorded on this machine"
)
_MANAGER = (
    "what may be changed is the backend or proxy that runs, with `specdash up`, as a service of systemd or by hand; "
    "backend_env_file and proxy_env_file name one of several; containers and Deployments are only watched"
)

_ANONYMISE = "look through a bundle before it leaves: host names, paths and session ids are in it"
_ASCII = "the screen needs a UTF-8 terminal (LANG=C.UTF-8); NO_COLOR=1 draws without colours"
_EXPECT = "the env file as the plan read it is what is changed: one that was edited meanwhile is refused (exit code 8)"
_LAYOUT = "the dashboard begins with the overview; keys 1 to 9 show and hide its panels"
_MEMORY = (
    "`specdash up --model FILE` writes an env file with the context that fits, and `specdash preflight --env-file F` "
    "says of any env file what it takes in memory and which context fits"
)
_ON = "`specdash COMMAND --on USER@HOST` runs the command on another machine through ssh"
_OWN_SERVER = "`specdash backend run --env-file F` starts a server, and --url names it"
_TUNE_QUIET = "`specdash tune` wants the server for itself: run it when no client is at work"

REMOVED_COMMANDS: Mapping[str, str] = {
    "agent": _ON,
    "bench apply-storm": "it tested specdash itself; `specdash apply` verifies each change and undoes it on failure",
    "baseline forget": "`specdash baseline record` replaces one; lines of baselines.jsonl may be removed by hand",
    "env set": _ENV_CHANGE,
    "env unset": _ENV_CHANGE,
    "env get": "`specdash env show` prints every key; a secret is in the file itself",
    "env diff": "`specdash env history` lists what changed; `specdash apply KEY=VALUE --dry-run` shows what would",
    "history vacuum": "the recorder gives the space of deleted entries back by itself, bit by bit",
    "keys": "`?` shows the keys of each screen, and docs/keys.md the ids by which config.toml changes them",
    "recover": "nothing is left to recover: the backend finishes or undoes what was cut short by itself, at its next "
    "start at the latest; `specdash applies` lists what became of it",
    "profile save": "copy the lines of your env files into profiles/NAME.env beside config.toml (docs/env-files.md)",
    "profile diff": "`specdash apply --profile NAME --dry-run` shows what it would change",
    "web": "`ttyd specdash --read-only` or `textual serve specdash` shows the dashboard in a browser",
    "services reload": "`specdash apply` changes settings and takes them over; after an edit of the file, `specdash "
    "services restart`",
    "schema": "the JSON that commands print stays as it is; `specdash config schema` prints the schema of config.toml",
}
"""By name, with the action where only that is removed (`profile save`)."""

REMOVED_OPTIONS: Mapping[tuple[str, str], str] = {
    (EVERY_COMMAND, "--ascii"): _ASCII,
    (EVERY_COMMAND, "--layout"): _LAYOUT,
    (EVERY_COMMAND, "--manager"): _MANAGER,
    (EVERY_COMMAND, "--backend-service"): _MANAGER,
    (EVERY_COMMAND, "--proxy-service"): _MANAGER,
    ("demo", "--tour"): "`specdash demo` changes its load by itself; `?` shows the keys of each screen",
    (
        "demo",
        "--spec-type",
    ): "`e` in its dashboard changes LLAMA_SPEC_TYPE",
    ("fleet", "--group-by"): "`/` filters the rows by name, address, model or state",
    ("fleet", "--since"): _FLEET_HISTORY,
    ("fleet", "--until"): _FLEET_HISTORY,
    ("fleet", "--step"): _FLEET_HISTORY,
    ("fleet", "--server"): _FLEET_HISTORY,
    ("incident", "--anonymise"): _ANONYMISE,
    **{
        ("gguf", option): _MEMORY
        for option in (
            *("--fit", "--free-mib", "--gpu", "--cpu", "--ctx-size", "--parallel", "--cache-type-k", "--cache-type-v"),
            *("--gpu-layers", "--ubatch-size", "--env-file"),
        )
    },
    ("incident", "--all"): "`specdash incident --url URL` writes the bundle of one server",
    ("apply", "--expect"): _EXPECT,
    ("rollback", "--expect"): _EXPECT,
    ("check", "--all"): _FLEET,
    ("snapshot", "--all"): _FLEET,
    ("record", "--all"): "`specdash record --url URL` records one server; run one for each",
    ("baseline", "--in-place"): "`--url URL` measures on the running server, by completions of two tokens",
    ("bench", "--verify"): "`specdash verify --set KEY=VALUE` checks that a configuration gives the same text",
    ("bench", "--spec-type"): "`--grid LLAMA_SPEC_TYPE=TYPE` sets it for all of the grid",
    **{
        (command, option): _OWN_SERVER
        for command in ("repro-empty", "bench replay")
        for option in ("--env-file", "--engine", "--force")
    },
    ("tune", "--abort"): "a run that is killed has nothing to end: the backend puts the original back by itself",
    (
        "tune",
        "--allow-warnings",
    ): "new warnings in the log are no limit any more: the log panel and the alerts show them",
    ("tune", "--no-check"): "texts are not compared any more: `specdash verify --set KEY=VALUE` does that",
    ("tune", "--resume"): "a run that was cut short has left the original in force; begin a new one",
    ("tune", "--while-serving"): _TUNE_QUIET,
    ("tune", "--workload"): "`--transcript FILE` or `--prompts FILE` measures your own requests",
    ("tune", "--objective"): "tokens per second are what is tuned for; `--ttft` bounds the time to the first token",
}
"""By command and option."""

_IN_FRONT = "the proxy listens on loopback; where it is opened, Caddy or nginx in front bounds clients and their time"
_LOG = "the log goes to standard error: `journalctl --user -u specdash-proxy` shows it, or send it where you want it"
_FIXED = "the value is fixed now: {}"

REMOVED_SETTINGS: Mapping[str, str] = {
    "ascii": _ASCII,
    "gpu_host": _ON,
    "layout": _LAYOUT,
    "manager": _MANAGER,
    "backend_service": _MANAGER,
    "proxy_service": _MANAGER,
    "PROXY_ALLOWED_ORIGINS": "Caddy or nginx in front of the proxy can let web pages ask, and add CORS headers",
    "PROXY_BODY_TIMEOUT": _IN_FRONT,
    "PROXY_CONNECT_TIMEOUT": _FIXED.format("10 s"),
    "PROXY_CONTEXT_REFRESH": _FIXED.format("60 s, and after each restart of the upstream"),
    "PROXY_EMPTY_RESPONSE_RETRY_MAX": _FIXED.format("one retry"),
    "PROXY_EVENTS_MAX_MIB": _FIXED.format("16 MiB, one former file is kept"),
    "PROXY_FORCE_NON_STREAM": "PROXY_MALFORMED_TOOL_STREAM_STRICT holds streamed tool turns back",
    "PROXY_HEADER_TIMEOUT": _IN_FRONT,
    "PROXY_LOG_FILE": _LOG,
    "PROXY_LOG_MAX_MIB": _LOG,
    "PROXY_MAX_BLOCKS": _FIXED.format("10,000; PROXY_MAX_BODY_MIB bounds a request's size"),
    "PROXY_MAX_CLIENTS": _IN_FRONT,
    "PROXY_MAX_HEADER_KIB": _FIXED.format("64 KiB where other machines can connect"),
    "PROXY_MAX_SESSIONS": _FIXED.format("512, the longest idle is forgotten first"),
    "PROXY_MAX_TOKENS_CAP": "llama-server ends an answer itself where the context is full",
    "PROXY_REPETITION_CHARS": _FIXED.format("10,000 characters; PROXY_REPETITION_CUT turns it off"),
    "PROXY_SESSION_TTL_SECS": _FIXED.format("2 hours without a request"),
    "ssh": "~/.ssh/config says how a machine is reached; specdash there is on the PATH or linked into ~/.local/bin",
    "PROXY_OTEL": "`specdash export` and the proxy's /metrics give the figures to Prometheus",
}
"""By key of config.toml or of the proxy's env file (`PROXY_*`)."""


REMOVED_RULES: Mapping[str, str] = {
    "acceptance_collapse limits.least_before": "acceptance_collapse (limits.before)",
    "acceptance_collapse limits.recent_requests": "acceptance_collapse (limits.drafts)",
    "acceptance_collapse limits.sigma": "acceptance_collapse (limits.share)",
    "busy_too_long": "server_hung (limits.busy_s)",
    "checkpoint_thrash": "prompt_cache_lost",
    "clock_jumped": "",
    "clients_leaving": "proxy_errors (limits.left)",
    "compute_buffer_failed": "out_of_memory",
    "contamination_storm": "malformed_storm (limits.cut)",
    "context_nearly_full": "context_overflow (limits.warning)",
    "context_overflow limits.cut": "",
    "context_overflow limits.share": "",
    "context_shift": "context_overflow (limits.shifts_per_minute)",
    "counters_reset": "",
    "crash_loop limits.seconds": "crash_loop (limits.window_s)",
    "drafts_never_made": "zero_acceptance (limits.tokens)",
    "disk_full": "",
    "empty_answers limits.found": "",
    "empty_answers limits.found_share": "",
    "gpu_memory_pressure": "memory_pressure (limits.gpu_mib)",
    "gpu_shared": "",
    "gpu_unused": "gpu_lost (limits.idle_share)",
    "host_memory_pressure": "memory_pressure (limits.left_share)",
    "health_error": "endpoint_unusable",
    "kv_full": "context_overflow (limits.no_room_per_minute)",
    "log_silent": "",
    "loop_storm": "session_looping",
    "malformed_shown": "malformed_storm (limits.shown)",
    "metrics_disabled": "endpoint_unusable",
    "metrics_unreadable": "endpoint_unusable",
    "port_closed": "backend_down",
    "prompt_cache_lost limits.takeovers": "",
    "prompt_cache_lost limits.takeovers_share": "",
    "proxy_held": "requests_waiting (limits.held_s)",
    "proxy_settings": "",
    "prune_storm": "context_overflow",
    "recording_fault": "",
    "repeating_answer": "",
    "replay_thrash": "speculation_hurting",
    "requests_waiting limits.longest_s": "slot_hung",
    "restarted": "",
    "server_starved": "cpu_starved",
    "server_hung limits.cpu_wait": "",
    "server_hung limits.passing_s": "",
    "session_looping limits.looped": "",
    "session_looping limits.share": "",
    "session_looping limits.window_s": "",
    "slot_nearly_full": "context_overflow (limits.slot)",
    "slot_thrash": "prompt_cache_lost",
    "slots_disabled": "endpoint_unusable",
    "slots_unreadable": "endpoint_unusable",
    "speculation_hurting limits.share": "",
    "speculation_hurting limits.steps": "",
    "speculation_hurting limits.window_s": "",
    "specdash_starved": "cpu_starved (limits.late_s)",
    "step_repeats": "slot_hung",
    "swapping": "memory_pressure (limits.swap_mib_per_s)",
    "unauthorized": "endpoint_unusable",
}
"""By alert rule, or limit of one, what took it over, if any."""


def removed_rule(rule: str) -> str | None:
    """What became of a removed alert rule, or a removed limit of one; None for any other."""
    if rule not in REMOVED_RULES:
        return None
    heir = REMOVED_RULES[rule] or "no rule"
    return f"the rule {rule} was removed and is ignored: {heir} took it over"


def removed_command(words: Sequence[str]) -> str | None:
    """What to use instead of a command line that names a removed command or option; None for any other."""
    name = words[0] if words else ""
    for called in (name, " ".join(words[:2])):
        if called in REMOVED_COMMANDS:
            return f"`specdash {called}` was removed: {REMOVED_COMMANDS[called]}"
    for word in words[1:]:
        if word == "--":
            break
        option = word.partition("=")[0]
        for called in (name, " ".join(words[:2]), EVERY_COMMAND):
            if (called, option) in REMOVED_OPTIONS:
                return f"{option} was removed: {REMOVED_OPTIONS[called, option]}"
    return None


def removed_setting(key: str) -> str | None:
    """What to use instead of a removed setting; None for any other."""
    remedy = REMOVED_SETTINGS.get(key)
    return f"{key} was removed and is ignored: {remedy}" if remedy is not None else None
