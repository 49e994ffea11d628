"""The parts of the engine simulator: grid and seeds, rigs, texts, decoding, exact speeds, noise, fit to real runs."""
