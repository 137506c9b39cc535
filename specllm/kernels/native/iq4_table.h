// The 16 values of IQ4_NL and IQ4_XS, as unsigned bytes with 128 added.
#pragma once
#include "dots.h"

namespace specllm {
namespace {

constexpr int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

template <class Dots>
SPECLLM_INLINE void look_up(typename Dots::I * x) {
    const __m128i table = _mm_xor_si128(_mm_loadu_si128((const __m128i *)IQ4_VALUES), _mm_set1_epi8((char)0x80));
    SPECLLM_UNROLL
    for (int i = 0; i < 8; i++) x[i] = Dots::lookup(table, x[i]);
}

}  // namespace
}  // namespace specllm
