// Kernels for processors with AVX-VNNI: AVX2's width and the VNNI instructions.
#include "dots.h"

namespace specllm {
namespace {

struct V256Vnni : V256 {
    static SPECLLM_INLINE I dpbusd(I acc, I u8, I s8) { return _mm256_dpbusd_avx_epi32(acc, u8, s8); }
    static SPECLLM_INLINE I dpwssd(I acc, I a, I b) { return _mm256_dpwssd_avx_epi32(acc, a, b); }
};

}  // namespace
}  // namespace specllm

#define SPECLLM_DOTS VnniDots<V256Vnni>
#define SPECLLM_SET avx_vnni
#define SPECLLM_SET_NAME "avx-vnni"
#include "instruction_set.h"
