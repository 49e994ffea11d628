"""Warning classes of single requests: cancelled, refused, failed."""

from __future__ import annotations

from specdash.core.log_facts import LogFact, TaskCancelled, TaskFailed
from specdash.llama.log_grammar.captures import text
from specdash.llama.log_grammar.forms import Context, Form, Groups, LineClass, Severity, anywhere, in_slot

ANY = Context.ANY
ERROR, WARNING, NOTICE = Severity.ERROR, Severity.WARNING, Severity.NOTICE
Id = int | None
Seconds = float | None


def _cancelled(_slot: Id, _task: Id, g: Groups, at: Seconds, origin: Id) -> LogFact:
    return TaskCancelled(int(g[0]), at, origin)


def _failed(_slot: Id, _task: Id, g: Groups, at: Seconds, origin: Id) -> LogFact:
    return TaskFailed(int(g[0]), text(g[1]), at, origin)


def _failed_because(reason: str) -> Form:
    """The server's answer to a task with an error that begins with these words (`…` for a number)."""

    def make(_slot: Id, _task: Id, g: Groups, at: Seconds, origin: Id) -> LogFact:
        return TaskFailed(int(g[0]), reason, at, origin)

    return Form(ANY, f"task id = {{id:d}}, error: {reason}{{:rest}}", make)


REQUEST_TROUBLE: tuple[LineClass, ...] = (
    LineClass(
        "request_cancelled",
        "a client went away before its request was done",
        (
            Form(ANY, "cancel task, id_task = {task:d}", _cancelled),
            Form(ANY, "request for conv_id={:s} cancelled while model name={:rest}"),
        ),
        NOTICE,
        "Normal when a user interrupts; many mean that clients time out.",
    ),
    LineClass(
        "context_exceeded",
        "a request does not fit the context",
        (
            _failed_because("Context size has been exceeded"),
            Form(
                ANY,
                "task id = {task:d}, error: request ({:d} tokens) exceeds the available context size{:rest}",
                lambda _slot, _task, g, at, origin: TaskFailed(
                    int(g[0]), "request exceeds the available context size", at, origin
                ),
            ),
            _failed_because("the request exceeds the available context size"),
            *anywhere(
                "Context size has been exceeded.{:rest}",
                "request ({:d} tokens) exceeds the available context size{:rest}",
            ),
        ),
        ERROR,
        "The client gets an error. Shorten the prompt or raise the context per slot.",
    ),
    LineClass(
        "compute_error",
        "the computation of a batch failed",
        (
            _failed_because("Compute error."),
            _failed_because("Invalid input batch."),
            *anywhere(
                "Compute error.{:rest}",
                "Invalid input batch.{:rest}",
                "failed to decode, ret = {:d}",
                "failed to encode, ret = {:d}",
                "llama_process() failed: {:d}",
                "llama_decode() failed: {:d}",
                "failed to compute graph, compute status: {:d}",
                "ggml_backend_sched_graph_compute failed with error {:d}",
                "ggml_backend_sched_graph_compute_async failed with error {:d}",
                "compute failed while preparing batch of size {:d}",
                "could not reserve space for batch with {:d} outputs",
                "failed to apply memory context",
                "failed to initialize batch",
                "could not initialize batch",
                "failed to initialize graph",
            ),
        ),
        ERROR,
        "The requests in that batch end with an error.",
    ),
    LineClass(
        "decode_failed",
        "the server's loop failed on a batch",
        anywhere(
            "decode() failed: {:rest}",
            "pre_decode() failed: {:rest}",
            "post_decode() failed: {:rest}",
            "fatal error - please provide logs and repro in {:rest}",
        ),
        ERROR,
        "The requests in that batch end with an error; the line says why. /health stays ok all the while.",
    ),
    LineClass(
        "launch_failed",
        "a slot could not begin a request",
        anywhere(
            "failed to launch slot with task, id_task = {:d}",
            "failed to launch slot with parent task, id_task = {:d}",
            "failed to launch slot with child task, id_task = {:d}",
        ),
        ERROR,
        "The request ends with an error; the line before says why.",
    ),
    LineClass(
        "media_failed",
        "an image or audio part of a prompt could not be read",
        (
            *in_slot(
                "failed to decode mtmd chunk, idx = {:d}, res = {:d}",
                "failed to encode mtmd batch for chunk idx = {:d}, res = {:d}",
                "failed to process mtmd chunk, res = {:d}",
            ),
            *anywhere(
                "failed to encode image",
                "failed to preprocess audio",
                "failed to decode buffer as either image/audio/video",
                "failed to start ffmpeg {:rest}",
                "failed to process mtmd chunk",
                "error: empty audio data",
                "error: invalid bitmap dimensions: nx = {:d}, ny = {:d}",
                "error: model does not support audio input",
                "error: model does not support vision input",
                "error: number of bitmaps ({:d}) does not match number of markers ({:d})",
            ),
        ),
        ERROR,
        "The request ends with an error.",
    ),
    LineClass(
        "batch_index_error",
        "a speculative batch was split in the wrong place",
        (
            _failed_because("speculative batch index"),
            *anywhere(
                "got exception: speculative batch index {:rest}", "speculative batch index {:d} is not inside {:rest}"
            ),
        ),
        ERROR,
        "A known fault (llama.cpp #24840) when a unified KV cache is nearly full while speculating. The request fails.",
    ),
    LineClass(
        "request_failed",
        "a request ended with an error",
        (
            Form(ANY, "task id = {task:d}, error: {error:s}", _failed),
            *anywhere("got exception: {:rest}", "got another exception: {:rest}"),
            *in_slot("got exception: {:rest}", "failed to get embeddings, token = {:d}, seq_id = {:d}"),
        ),
        ERROR,
        "The line says why.",
    ),
    LineClass(
        "unauthorized",
        "a request came without the right API key",
        anywhere("unauthorized: Invalid API Key", "Unauthorized: Invalid API Key"),
        WARNING,
        "A client, or a monitor, does not send the key.",
    ),
    LineClass(
        "control_unknown_completion",
        "a control request named no running completion",
        anywhere(
            "control {:w} on unknown completion id={:rest}",
            "stop on unknown stream session, conv_id={:rest}",
            "router stop for unknown conv_id={:rest}",
        ),
        NOTICE,
        "The completion had ended already.",
    ),
    LineClass(
        "request_part_ignored",
        "the server ignored part of what a request asks for",
        (
            *anywhere(
                "unsupported Responses tool type '{:s}' skipped",
                "embd_normalize is not supported by pooling type {:d}, ignoring it",
            ),
            *in_slot(
                "alora {:d} requested, but not found. deactivating",
                "cache reuse is not supported - ignoring n_cache_reuse = {:d}",
            ),
        ),
        NOTICE,
        "The line names it; the rest of the request is served.",
    ),
    LineClass(
        "origin_refused",
        "a web page of another host called the server",
        anywhere("(CORS) skip non-localhost origin: {:rest}"),
        NOTICE,
        "The page's browser hides the answer from it. Allow a page of yours with --cors-origins.",
    ),
)
