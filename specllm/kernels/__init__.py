"""Matrix and attention kernels of our own for ggml's CPU backend: the same bits at every width of a block.

`native/` is the C++ (start with `native/formats.h`), `build.py` compiles it, `loader.py` puts it into the loaded ggml
libraries, `selftest.py` proves in a child process that it computes right there. This is the only room that knows ggml's
insides, and it works with the path of ggml's libraries alone: it imports neither llama_cpp nor anything else of specllm but
the ground floor.
"""
