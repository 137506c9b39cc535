// Kernels for processors with AVX-VNNI: AVX2's width and the VNNI instructions.
#include "dots.h"

namespace specllm {
namespace {

struct V256Vnni : V256 {
    static SPECLLM_INLINE I dpbusd(I acc, I u8, const int8_t * s8) {
        __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(u8), "x"(broadcast32(s8)));
        return acc;
    }
    static SPECLLM_INLINE I dpwssd(I acc, I a, I b) {  // see avx512_vnni.cpp
        __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(acc) : "x"(a), "x"(b));
        return acc;
    }
};

}  // namespace
}  // namespace specllm

#define SPECLLM_DOTS VnniDots<V256Vnni>
#define SPECLLM_SET avx_vnni
#define SPECLLM_SET_NAME "avx-vnni"
#include "instruction_set.h"
