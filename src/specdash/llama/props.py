"""GET /props to `Props`. Its `speculative.types` always says none and is left alone."""

from __future__ import annotations

from specdash.core.observations import Props
from specdash.llama.bodies import flag, load_object, mapping, natural, text


def parse_props(body: bytes | str) -> Props:
    """What the server says of itself; every field is optional. Raises ParseError when the body is no JSON object."""
    answer = load_object(body)
    context = natural(mapping(answer.get("default_generation_settings")).get("n_ctx"))
    return Props(
        model_alias=text(answer.get("model_alias")),
        model_path=text(answer.get("model_path")),
        model_ftype=text(answer.get("model_ftype")),
        build_info=text(answer.get("build_info")),
        total_slots=natural(answer.get("total_slots")),
        n_ctx=context if context is not None else natural(answer.get("n_ctx")),
        is_sleeping=flag(answer.get("is_sleeping")),
        endpoint_slots=flag(answer.get("endpoint_slots")),
        endpoint_metrics=flag(answer.get("endpoint_metrics")),
        endpoint_props=flag(answer.get("endpoint_props")),
        supports_tools=flag(mapping(answer.get("chat_template_caps")).get("supports_tools")),
        role=text(answer.get("role")),
    )
