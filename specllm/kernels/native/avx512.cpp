// Kernels for processors with AVX-512 F, BW, DQ and VL, without VNNI.
#define SPECLLM_DOTS MaddDots<V512>
#define SPECLLM_SET avx512
#define SPECLLM_SET_NAME "avx512"
#include "instruction_set.h"
