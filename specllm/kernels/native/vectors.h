// Vectors of 8 and of 16 lanes of 32 bits, one lane per weight row, under the same names. Each file that includes this
// defines which of them its flags allow (see instruction_set.h).
#pragma once
#include <immintrin.h>

#include "formats.h"

#define SPECLLM_INLINE inline __attribute__((always_inline))
#define SPECLLM_LAMBDA __attribute__((always_inline))
#define SPECLLM_UNROLL _Pragma("GCC unroll 16")

namespace specllm {
namespace {

// Asks for the bytes that are needed AHEAD bytes later: those that belong to part `part` of a block of BLOCK_BYTES, so that few
// requests are made at a time. With a whole block's at once (37 to 53 lines) the processor's places for outstanding requests
// were full and the loads of the block in work waited: on two Zen 4 cores, 1.5B Q4_K_M, two tokens took 55 ms, spread 32 ms,
// spread and into the second-level cache 28 ms. 4,096 to 10,240 bytes ahead were equally good.
constexpr int AHEAD = 6144;

template <int BLOCK_BYTES, int PARTS = 1>
SPECLLM_INLINE void ask_ahead(const uint8_t * block, int part = 0) {
    constexpr int LINES = (BLOCK_BYTES + 64 * PARTS - 1) / (64 * PARTS);
    const char * from = (const char *)block + AHEAD + part * LINES * 64;
    for (int i = 0; i < LINES; i++) _mm_prefetch(from + i * 64, _MM_HINT_T1);
}

struct V256 {
    static constexpr int LANES = 8;
    typedef __m256i I;
    typedef __m256 F;

    static SPECLLM_INLINE I zero() { return _mm256_setzero_si256(); }
    static SPECLLM_INLINE I all8(int x) { return _mm256_set1_epi8((char)x); }
    static SPECLLM_INLINE I all16(int x) { return _mm256_set1_epi16((short)x); }
    static SPECLLM_INLINE I load(const void * p) { return _mm256_loadu_si256((const __m256i *)p); }
    static SPECLLM_INLINE I broadcast32(const void * p) {
        int32_t v;
        memcpy(&v, p, 4);
        return _mm256_set1_epi32(v);
    }
    static SPECLLM_INLINE I bit_and(I a, I b) { return _mm256_and_si256(a, b); }
    static SPECLLM_INLINE I bit_or(I a, I b) { return _mm256_or_si256(a, b); }
    static SPECLLM_INLINE I bit_xor(I a, I b) { return _mm256_xor_si256(a, b); }
    template <int N> static SPECLLM_INLINE I left16(I a) { return _mm256_slli_epi16(a, N); }
    template <int N> static SPECLLM_INLINE I right16(I a) { return _mm256_srli_epi16(a, N); }
    static SPECLLM_INLINE I add16(I a, I b) { return _mm256_add_epi16(a, b); }
    static SPECLLM_INLINE I add32(I a, I b) { return _mm256_add_epi32(a, b); }
    static SPECLLM_INLINE I multiply32(I a, I b) { return _mm256_mullo_epi32(a, b); }
    // per 16-bit element: u8 * s8 of its two bytes, summed and saturated
    static SPECLLM_INLINE I maddubs(I u8, I s8) { return _mm256_maddubs_epi16(u8, s8); }
    // per lane: s16 * s16 of its two halves, summed
    static SPECLLM_INLINE I madd(I a, I b) { return _mm256_madd_epi16(a, b); }
    static SPECLLM_INLINE I abs8(I a) { return _mm256_abs_epi8(a); }
    // a, negated where w is negative; anything where w is 0
    static SPECLLM_INLINE I with_sign8(I a, I w) { return _mm256_sign_epi8(a, w); }
    static SPECLLM_INLINE I lookup(__m128i table, I index) {
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), index);
    }
    // one byte per lane, two bytes per lane
    static SPECLLM_INLINE I lanes_u8(const void * p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
    static SPECLLM_INLINE I lanes_s8(const void * p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
    static SPECLLM_INLINE I pairs_u8(const void * p) { return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p)); }
    // the low half of each lane, with 0 or with itself above it
    static SPECLLM_INLINE I low16(I a) { return _mm256_and_si256(a, _mm256_set1_epi32(0xffff)); }
    static SPECLLM_INLINE I twice16(I a) { return _mm256_or_si256(low16(a), _mm256_slli_epi32(a, 16)); }
    // the low half of each lane of a, above it that of b
    static SPECLLM_INLINE I join16(I a, I b) { return _mm256_or_si256(low16(a), _mm256_slli_epi32(b, 16)); }

    static SPECLLM_INLINE F zero_f() { return _mm256_setzero_ps(); }
    static SPECLLM_INLINE F load_f(const float * p) { return _mm256_loadu_ps(p); }
    static SPECLLM_INLINE F all_f(float x) { return _mm256_set1_ps(x); }
    static SPECLLM_INLINE F to_float(I a) { return _mm256_cvtepi32_ps(a); }
    static SPECLLM_INLINE F halves(const void * p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
    static SPECLLM_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
    static SPECLLM_INLINE F multiply(F a, F b) { return _mm256_mul_ps(a, b); }
    static SPECLLM_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static SPECLLM_INLINE F minus_fma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a * b
    // x; -infinity where the mask is that
    static SPECLLM_INLINE F hide(F x, F mask) {
        return _mm256_blendv_ps(x, mask, _mm256_cmp_ps(mask, _mm256_set1_ps(-__builtin_inff()), _CMP_EQ_OQ));
    }
    static SPECLLM_INLINE void store(float * p, F a) { _mm256_storeu_ps(p, a); }
};

#ifdef __AVX512BW__
struct V512 {
    static constexpr int LANES = 16;
    typedef __m512i I;
    typedef __m512 F;

    static SPECLLM_INLINE I zero() { return _mm512_setzero_si512(); }
    static SPECLLM_INLINE I all8(int x) { return _mm512_set1_epi8((char)x); }
    static SPECLLM_INLINE I all16(int x) { return _mm512_set1_epi16((short)x); }
    static SPECLLM_INLINE I load(const void * p) { return _mm512_loadu_si512(p); }
    static SPECLLM_INLINE I broadcast32(const void * p) {
        int32_t v;
        memcpy(&v, p, 4);
        return _mm512_set1_epi32(v);
    }
    static SPECLLM_INLINE I bit_and(I a, I b) { return _mm512_and_si512(a, b); }
    static SPECLLM_INLINE I bit_or(I a, I b) { return _mm512_or_si512(a, b); }
    static SPECLLM_INLINE I bit_xor(I a, I b) { return _mm512_xor_si512(a, b); }
    template <int N> static SPECLLM_INLINE I left16(I a) { return _mm512_slli_epi16(a, N); }
    template <int N> static SPECLLM_INLINE I right16(I a) { return _mm512_srli_epi16(a, N); }
    static SPECLLM_INLINE I add16(I a, I b) { return _mm512_add_epi16(a, b); }
    static SPECLLM_INLINE I add32(I a, I b) { return _mm512_add_epi32(a, b); }
    static SPECLLM_INLINE I multiply32(I a, I b) { return _mm512_mullo_epi32(a, b); }
    static SPECLLM_INLINE I maddubs(I u8, I s8) { return _mm512_maddubs_epi16(u8, s8); }
    static SPECLLM_INLINE I madd(I a, I b) { return _mm512_madd_epi16(a, b); }
    static SPECLLM_INLINE I abs8(I a) { return _mm512_abs_epi8(a); }
    static SPECLLM_INLINE I with_sign8(I a, I w) {
        return _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(w), _mm512_setzero_si512(), a);
    }
    static SPECLLM_INLINE I lookup(__m128i table, I index) {
        return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), index);
    }
    static SPECLLM_INLINE I lanes_u8(const void * p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
    static SPECLLM_INLINE I lanes_s8(const void * p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }
    static SPECLLM_INLINE I pairs_u8(const void * p) {
        return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)p));
    }
    static SPECLLM_INLINE I low16(I a) { return _mm512_and_si512(a, _mm512_set1_epi32(0xffff)); }
    static SPECLLM_INLINE I twice16(I a) { return _mm512_or_si512(low16(a), _mm512_slli_epi32(a, 16)); }
    static SPECLLM_INLINE I join16(I a, I b) { return _mm512_or_si512(low16(a), _mm512_slli_epi32(b, 16)); }

    static SPECLLM_INLINE F zero_f() { return _mm512_setzero_ps(); }
    static SPECLLM_INLINE F load_f(const float * p) { return _mm512_loadu_ps(p); }
    static SPECLLM_INLINE F all_f(float x) { return _mm512_set1_ps(x); }
    static SPECLLM_INLINE F to_float(I a) { return _mm512_cvtepi32_ps(a); }
    static SPECLLM_INLINE F halves(const void * p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
    static SPECLLM_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
    static SPECLLM_INLINE F multiply(F a, F b) { return _mm512_mul_ps(a, b); }
    static SPECLLM_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static SPECLLM_INLINE F minus_fma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
    static SPECLLM_INLINE F hide(F x, F mask) {
        return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(mask, _mm512_set1_ps(-__builtin_inff()), _CMP_EQ_OQ), mask);
    }
    static SPECLLM_INLINE void store(float * p, F a) { _mm512_storeu_ps(p, a); }
};
#endif

}  // namespace
}  // namespace specllm
