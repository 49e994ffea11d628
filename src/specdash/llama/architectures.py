"""Model architectures and their kinds, as llama.cpp b11434 has them (src/llama-arch.cpp, src/models)."""

from __future__ import annotations

KNOWN = frozenset(
    """
    llama llama4 deci falcon baichuan grok gpt2 gptj gptneox mpt starcoder refact bert modern-bert nomic-bert
    nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert bloom stablelm qwen qwen2 qwen2moe qwen2vl qwen3
    qwen3moe qwen3next qwen3vl qwen3vlmoe qwen35 qwen35moe clef qwen4exp phi2 phi3 phimoe plamo plamo2 plamo3
    codeshell orion internlm2 minicpm minicpm3 gemma gemma2 gemma3 gemma3n gemma4 gemma4-assistant gemma-embedding
    starcoder2 mamba mamba2 maple jamba falcon-h1 xverse command-r cohere2 cohere2moe dbrx olmo olmo2 olmoe
    muse-glimmer openelm arctic deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 chatglm glm4 glm4moe glm-dsa
    bitnet t5 t5encoder jais jais2 nemotron nemotron_h nemotron_h_moe exaone exaone4 exaone-moe rwkv6 rwkv6qwen2
    rwkv7 arwkv7 granite granitemoe granitehybrid graniteswitch granite_swa chameleon wavtokenizer-dec plm bailingmoe
    bailingmoe2 bailingmoe3 dots1 dots3note arcee afmoe laguna ernie4_5 ernie4_5-moe hunyuan-moe hunyuan-dense
    hunyuan_vl hy_v3 hy_v4 smollm3 gpt-oss lfm2 lfm2moe dream smallthinker llada llada-moe seed_oss grovemoe apertus
    minimax-m2 cogvlm rnd1 pangu-embedded mistral3 mistral4 paddleocr mimo2 step35 spark2_5 llama-embed maincoder
    kimi-linear kimi-k3 glm5-next talkie mellum eagle3 minimax-m3 dflash nanbeige qwen3tts pockettts minimax-01
    hrm_text
    """.split()  # noqa: SIM905 - a list of 150 quoted words reads worse
)
"""Architectures of models; `clip` files and others that accompany a model are not among them."""
DIFFUSION = frozenset({"dream", "llada", "llada-moe", "rnd1"})
"""Architectures that write a whole text at once."""
ENCODERS = frozenset(
    {"bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert"}
    | {"t5encoder", "gemma-embedding", "llama-embed", "wavtokenizer-dec"}
)
"""Architectures that turn text into vectors, or vectors into sound, and write nothing."""
DRAFTS = frozenset({"eagle3", "dflash"})
"""Architectures of drafts that read a target's hidden states and cannot run by themselves."""
GIVE_LAYER_INPUTS = frozenset(
    {"llama", "llama-embed", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "qwen4exp", "gemma4", "gpt-oss"}
    | {"lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "bailingmoe3", "deepseek4", "hunyuan_vl", "hunyuan-dense"}
    | {"mimo2", "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige"}
)
"""Architectures whose graphs keep the inputs of their layers for drafts (`t_layer_inp`), found in the code of b11434.

Tried: llama, llama-embed, qwen3, lfm2 and qwen35 give them; with gemma3, qwen2, mistral3, internlm2, exaone, smollm3
and mamba the server aborts at its first request.
"""
RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
"""Architectures without a KV cache."""
KNOWN_HYBRID = frozenset(
    {"jamba", "falcon-h1", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"}
    | {"qwen3next", "qwen35", "qwen35moe", "kimi-linear"}
)
"""Hybrid architectures whose layers `model_shape` knows."""
HYBRID = KNOWN_HYBRID | {"qwen4exp", "deepseek4", "bailingmoe3", "kimi-k3", "glm5-next", "minimax-01"}
"""Architectures with a KV cache in some layers and a recurrent state in others (or, falcon-h1, both in each)."""
STATE_ROLLBACK = frozenset(
    {"kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "glm5-next", "nemotron_h", "nemotron_h_moe"}
    | {"lfm2", "lfm2moe", "bailingmoe3"}
)
"""Architectures that can take rejected tokens back without a checkpoint, for draft types that ask for it."""
