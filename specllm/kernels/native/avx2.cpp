// Kernels for processors with AVX2, FMA and F16C.
#define SPECLLM_DOTS MaddDots<V256>
#define SPECLLM_SET avx2
#define SPECLLM_SET_NAME "avx2"
#include "instruction_set.h"
