"""How models write tool calls as text: every dialect declared once, as data.

Sources: the chat templates and model cards of the models named. The reader (`markup`) takes any payload inside any
dialect's opening, since models mix them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way of writing calls. `opens` and `closes` are the literals around a call; `sample` calls Read with /a."""

    name: str
    models: str
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    sample: str


_JSON = '{"name": "Read", "arguments": {"file_path": "/a"}}'
_PARAMETERS = '{"name": "Read", "parameters": {"file_path": "/a"}}'
_ARGUMENTS = '{"file_path": "/a"}'
_FUNCTION = "<function=Read>\n<parameter=file_path>\n/a\n</parameter>\n</function>"
_INVOKE = '<invoke name="Read">\n<parameter name="file_path">/a</parameter>\n</invoke>'
_CLAUDE = "antml:"

DIALECTS: tuple[Dialect, ...] = (
    Dialect("hermes", "Hermes, Qwen 2.5 and 3, Granite 3, ERNIE", ("<tool_call>",), ("</tool_call>",),
            f"<tool_call>\n{_JSON}\n</tool_call>"),
    Dialect("qwen3-coder", "Qwen3-Coder, Nemotron 3, Step 3.5", ("<tool_call>", "<function="),
            ("</parameter>", "</function>", "</tool_call>"), f"<tool_call>\n{_FUNCTION}\n</tool_call>"),
    Dialect("llama-function", "Llama 3.x, Functionary 3.1", ("<function=",), ("</function>",),
            f"<function=Read>{_ARGUMENTS}</function>"),
    Dialect("llama-python-tag", "Llama 3.1 to 3.3", ("<|python_tag|>",), ("<|eom_id|>", "<|eot_id|>"),
            f"<|python_tag|>{_PARAMETERS}"),
    Dialect("claude", "the Claude prompt format", (f"<{_CLAUDE}function_calls>", f"<{_CLAUDE}invoke name=",
            "<function_calls>", "<invoke name="),
            (f"</{_CLAUDE}parameter>", f"</{_CLAUDE}invoke>", f"</{_CLAUDE}function_calls>",
             "</invoke>", "</function_calls>"),
            f"<function_calls>\n{_INVOKE}\n</function_calls>"),
    Dialect("minimax", "MiniMax M2", ("<minimax:tool_call>",), ("</minimax:tool_call>",),
            f"<minimax:tool_call>\n{_INVOKE}\n</minimax:tool_call>"),
    Dialect("tool-calls", "MiniMax M1, Jamba, Hunyuan", ("<tool_calls>",), ("</tool_calls>",),
            f"<tool_calls>\n{_JSON}\n</tool_calls>"),
    Dialect("function-call", "fine-tunes", ("<function_call>", "<|function_call|>", "<tool_use>"),
            ("</function_call>", "</tool_use>"), f"<function_call>{_JSON}</function_call>"),
    Dialect("seed", "Seed-OSS", ("<seed:tool_call>",), ("</seed:tool_call>",),
            f"<seed:tool_call>\n{_FUNCTION}\n</seed:tool_call>"),
    Dialect("nemotron", "Nemotron", ("<TOOLCALL>",), ("</TOOLCALL>",), f"<TOOLCALL>[{_JSON}]</TOOLCALL>"),
    Dialect("glm", "GLM 4.5 and later", ("<tool_call>",), ("</tool_call>",),
            "<tool_call>Read\n<arg_key>file_path</arg_key>\n<arg_value>/a</arg_value>\n</tool_call>"),
    Dialect("kimi", "Kimi K2", ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
            ("<|tool_call_end|>", "<|tool_calls_section_end|>"),
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.Read:0<|tool_call_argument_begin|>"
            f"{_ARGUMENTS}<|tool_call_end|><|tool_calls_section_end|>"),
    Dialect("deepseek", "DeepSeek V3 and R1", ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>",
            "<｜tool_calls_begin｜>", "<｜tool_call_begin｜>"),
            ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<｜tool_call_end｜>", "<｜tool_calls_end｜>"),
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>Read\n```json\n"
            f"{_ARGUMENTS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
    Dialect("deepseek-dsml", "DeepSeek V3.2", ("<｜DSML｜function_calls>", "<｜DSML｜invoke name="),
            ("</｜DSML｜parameter>", "</｜DSML｜invoke>", "</｜DSML｜function_calls>"),
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="Read">\n'
            '<｜DSML｜parameter name="file_path" string="true">/a'
            "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"),
    Dialect("mistral", "Mistral, Magistral, Devstral", ("[TOOL_CALLS]",), ("[/TOOL_CALLS]",),
            f"[TOOL_CALLS]Read[ARGS]{_ARGUMENTS}"),
    Dialect("harmony", "gpt-oss", ("<|start|>assistant", "<|channel|>commentary", "<|channel|>analysis",
            "assistantcommentary to=", "assistantanalysis to=", "commentary to=", "analysis to=", "assistant to=",
            "to=functions."), ("<|call|>", "<|end|>"),
            "<|start|>assistant<|channel|>commentary to=functions.Read <|constrain|>json<|message|>"
            f"{_ARGUMENTS}<|call|>"),
    Dialect("gemma-tool-code", "Gemma 3", ("```tool_code", "``` tool_code", "<tool_code>"), ("```", "</tool_code>"),
            '```tool_code\nprint(Read(file_path="/a"))\n```'),
    Dialect("fenced", "Gemma 3, Cohere, fine-tunes", ("```tool_call", "```tool_calls", "```tool_use",
            "```function_call"), ("```",), f"```tool_call\n{_JSON}\n```"),
    Dialect("gemma-4", "Gemma 4", ("<|tool_call>",), ("<tool_call|>",),
            '<|tool_call>call:Read{file_path:<|"|>/a<|"|>}<tool_call|>'),
    Dialect("phi", "Phi 4, Granite", ("<|tool_call|>",), ("<|/tool_call|>",), f"<|tool_call|>[{_JSON}]<|/tool_call|>"),
    Dialect("lfm2", "LFM2", ("<|tool_call_start|>",), ("<|tool_call_end|>",),
            '<|tool_call_start|>[Read(file_path="/a")]<|tool_call_end|>'),
    Dialect("command", "Command R7B and A", ("<|START_ACTION|>",), ("<|END_ACTION|>",),
            '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "Read", "parameters": {"file_path": "/a"}}]'
            "<|END_ACTION|>"),
    Dialect("apertus", "Apertus", ("<|tools_prefix|>",), ("<|tools_suffix|>",),
            f'<|tools_prefix|>[{{"Read": {_ARGUMENTS}}}]<|tools_suffix|>'),
    Dialect("internlm", "InternLM 2.5", ("<|action_start|><|plugin|>", "<|action_start|><|interpreter|>"),
            ("<|action_end|>",), f"<|action_start|><|plugin|>{_PARAMETERS}<|action_end|>"),
    Dialect("firefunction", "Firefunction 2", ("functools[",), ("]",), f"functools[{_JSON}]"),
)  # fmt: skip

OPENS: tuple[str, ...] = tuple(dict.fromkeys(one for dialect in DIALECTS for one in dialect.opens))
STOPS: tuple[str, ...] = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "<|endoftext|>", "<end_of_turn>", "</s>",
    "<｜end▁of▁sentence｜>",
)  # fmt: skip
"""Tokens that end a turn, and stand behind a call where the server did not take them away."""
CLOSES: tuple[str, ...] = tuple(
    dict.fromkeys([one for dialect in DIALECTS for one in dialect.closes if one not in {"```", "]"}] + list(STOPS))
)
NAME_ENDS: tuple[str, ...] = ("[ARGS]", "<|tool_call_argument_begin|>", "<｜tool▁sep｜>", "<｜tool_sep｜>")
"""What separates a tool's name from the JSON of its arguments."""
NAMESPACES: tuple[str, ...] = ("functions.", "default_api.", "tools.")
"""What models write before the name of a tool; not part of it."""
