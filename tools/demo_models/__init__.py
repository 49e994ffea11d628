"""How the two bundled demo models are made: corpus, tokenizer, network, training, GGUF export, measurement."""
