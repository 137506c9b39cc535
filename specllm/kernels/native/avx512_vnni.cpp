// Kernels for processors with AVX-512 and its VNNI instructions.
#include "dots.h"

namespace specllm {
namespace {

struct V512Vnni : V512 {
    static SPECLLM_INLINE I dpbusd(I acc, I u8, I s8) { return _mm512_dpbusd_epi32(acc, u8, s8); }
    static SPECLLM_INLINE I dpwssd(I acc, I a, I b) { return _mm512_dpwssd_epi32(acc, a, b); }
};

}  // namespace
}  // namespace specllm

#define SPECLLM_DOTS VnniDots<V512Vnni>
#define SPECLLM_SET avx512_vnni
#define SPECLLM_SET_NAME "avx512-vnni"
#include "instruction_set.h"
