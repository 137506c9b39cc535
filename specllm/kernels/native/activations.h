// Activations of one column as int8 blocks (formats.h). AVX2 for every instruction set: it is a small part of the work.
#pragma once
#include "vectors.h"

namespace specllm {
namespace {

constexpr uint32_t NOT_FINITE = 0x7f800000;   // bits of |x| from here on: infinite or not a number
constexpr uint32_t COUNTS_AS_ZERO = 0x1f800000;  // bits of 2^-64

struct Scale {
    float d, inverse;
};

// From the bits of the largest |x|; for floats without their sign, the order of the bits is that of the numbers.
SPECLLM_INLINE Scale scale_for(uint32_t max_bits) {
    float largest;
    memcpy(&largest, &max_bits, 4);
    if (max_bits >= NOT_FINITE) return {__builtin_nanf(""), 0.0f};
    if (max_bits < COUNTS_AS_ZERO) return {0.0f, 0.0f};
    return {largest / 127.0f, 127.0f / largest};
}

SPECLLM_INLINE uint32_t largest_bits(const float * x, int n) {  // n: a multiple of 32
    const __m256i no_sign = _mm256_set1_epi32(0x7fffffff);
    __m256i m[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int i = 0; i < n; i += 32)
        for (int j = 0; j < 4; j++) m[j] = _mm256_max_epu32(m[j], _mm256_and_si256(no_sign, V256::load(x + i + 8 * j)));
    const __m256i most = _mm256_max_epu32(_mm256_max_epu32(m[0], m[1]), _mm256_max_epu32(m[2], m[3]));
    __m128i v = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    v = _mm_max_epu32(v, _mm_shuffle_epi32(v, 0x4e));
    v = _mm_max_epu32(v, _mm_shuffle_epi32(v, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(v);
}

// 32 numbers, rounded to the nearest even: |x * inverse| <= 127 * (1 + 2^-22), so at most 127; all 0 where `inverse` is.
SPECLLM_INLINE __m256i quantize32(const float * x, float inverse) {
    const __m256 by = _mm256_set1_ps(inverse);
    __m256i v[4];
    for (int j = 0; j < 4; j++) v[j] = _mm256_cvtps_epi32(_mm256_mul_ps(by, _mm256_loadu_ps(x + 8 * j)));
    const __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    const __m256i q = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    return inverse == 0.0f ? _mm256_setzero_si256() : q;
}

// Eight sums of four
SPECLLM_INLINE __m256i sums_of_4(__m256i q) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
}

template <bool HAS_STARTS_OF_8, bool HAS_STARTS_OF_32>
SPECLLM_INLINE void quantize_super(const float * x, ActivationK * o, int32_t * start) {
    const Scale scale = scale_for(largest_bits(x, SUPER));
    o->d = scale.d;
    for (int j = 0; j < 8; j++) {
        const __m256i q = quantize32(x + 32 * j, scale.inverse);
        _mm256_storeu_si256((__m256i *)(o->q + 32 * j), q);
        const __m256i s4 = sums_of_4(q);
        const __m256i s8 = _mm256_add_epi32(s4, _mm256_shuffle_epi32(s4, 0xb1));   // each twice
        const __m256i s16 = _mm256_add_epi32(s8, _mm256_shuffle_epi32(s8, 0x4e));  // each four times
        const int first = _mm256_extract_epi32(s16, 0), second = _mm256_extract_epi32(s16, 4);
        o->minus16_sum16[2 * j] = (int16_t)(-16 * first);
        o->minus16_sum16[2 * j + 1] = (int16_t)(-16 * second);
        o->sum32[j] = (int16_t)(first + second);
        if (HAS_STARTS_OF_8) {
            start[4 * j] = -32 * _mm256_extract_epi32(s8, 0);
            start[4 * j + 1] = -32 * _mm256_extract_epi32(s8, 2);
            start[4 * j + 2] = -32 * _mm256_extract_epi32(s8, 4);
            start[4 * j + 3] = -32 * _mm256_extract_epi32(s8, 6);
        }
        if (HAS_STARTS_OF_32) start[j] = -128 * (first + second);
    }
}


// How the activations for a weight type T are made; a Quantizer of formats.h.
template <class T, class Activation>
struct QuantizeBlocks;

template <class T>
struct QuantizeBlocks<T, ActivationK> {
    static void run(const float * x, int n_blocks, void * out, size_t step) {
        for (int b = 0; b < n_blocks; b++) quantize_super<false, false>(x + b * SUPER, (ActivationK *)((char *)out + b * step), nullptr);
    }
};

template <class T>
struct QuantizeBlocks<T, ActivationKOffsets> {
    static void run(const float * x, int n_blocks, void * out, size_t step) {
        for (int b = 0; b < n_blocks; b++) {
            ActivationKOffsets * o = (ActivationKOffsets *)((char *)out + b * step);
            quantize_super<T::TYPE == Q6_K, T::TYPE == IQ4_XS>(x + b * SUPER, &o->base, o->start);
        }
    }
};

template <class T>
struct QuantizeBlocks<T, Activation32> {
    static void run(const float * x, int n_blocks, void * out, size_t step) {
        for (int b = 0; b < n_blocks; b++) {
            Activation32 * o = (Activation32 *)((char *)out + b * step);
            const Scale scale = scale_for(largest_bits(x + b * 32, 32));
            const __m256i q = quantize32(x + b * 32, scale.inverse);
            _mm256_storeu_si256((__m256i *)o->q, q);
            __m256i s = sums_of_4(q);
            s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xb1));
            s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4e));
            o->d = scale.d;
            o->start = -T::OFFSET * (_mm256_extract_epi32(s, 0) + _mm256_extract_epi32(s, 4));
        }
    }
};

template <class T>
struct QuantizeBlocks<T, ActivationF32> {
    static void run(const float * x, int n_blocks, void * out, size_t step) {
        for (int b = 0; b < n_blocks; b++) memcpy((char *)out + b * step, x + b * 32, sizeof(ActivationF32));
    }
};

}  // namespace
}  // namespace specllm
