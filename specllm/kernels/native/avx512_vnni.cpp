// Kernels for processors with AVX-512 and its VNNI instructions.
#include "dots.h"

namespace specllm {
namespace {

// As assembly, because clang 22 makes two instructions of a dpwssd in a chain to shorten it, and then runs out of registers:
// a quarter slower.
struct V512Vnni : V512 {
    static SPECLLM_INLINE I dpbusd(I acc, I u8, const int8_t * s8) {
        __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(u8), "m"(*(const int8_t (*)[4])s8));
        return acc;
    }
    static SPECLLM_INLINE I dpwssd(I acc, I a, I b) {
        __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
        return acc;
    }
};

}  // namespace
}  // namespace specllm

#define SPECLLM_DOTS VnniDots<V512Vnni>
#define SPECLLM_SET avx512_vnni
#define SPECLLM_SET_NAME "avx512-vnni"
#include "instruction_set.h"
