"""Speculative decoding on llama.cpp whose text is always the target's own."""

__version__ = "0.1.0"
