"""The bundled proxy: Anthropic Messages in front of llama.cpp's chat completions, with guardrails."""
