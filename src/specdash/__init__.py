"""specdash: watch, judge and change llama.cpp speculative decoding from a terminal."""

__version__ = "0.1.0"
