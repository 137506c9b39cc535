// What Q4_K and Q5_K have in common: how ggml keeps their eight scales and mins, and the end of a block.
#pragma once
#include "dots.h"

namespace specllm {
namespace {

//   ggml's 12 bytes b:  j < 4: scale = b[j] & 63              min = b[j + 4] & 63
//                       j >= 4: scale = b[j + 4] & 15 | b[j - 4] >> 6 << 4    min = b[j + 4] >> 4 | b[j] >> 6 << 4
inline void unpack_scales(const uint8_t * b, uint8_t * scales, uint8_t * mins) {
    for (int j = 0; j < 4; j++) {
        scales[j] = b[j] & 63;
        mins[j] = b[j + 4] & 63;
        scales[j + 4] = (b[j + 8] & 15) | (b[j] >> 6 << 4);
        mins[j + 4] = (b[j + 8] >> 4) | (b[j + 4] >> 6 << 4);
    }
}

inline void pack_scales(const uint8_t * b, int row, uint8_t * scales_out, uint8_t * mins_out) {
    uint8_t scales[8], mins[8];
    unpack_scales(b, scales, mins);
    for (int j = 0; j < 8; j++) {
        scales_out[j * STRIP + row] = scales[j];
        mins_out[(j / 2) * 2 * STRIP + row * 2 + (j & 1)] = mins[j];
    }
}

// sums += d * da * acc - dmin * da * (the mins times the sums of 32 activations)
template <class Dots, int WIDTH>
SPECLLM_INLINE void add_scaled_and_mins(const typename Dots::I * acc, const uint8_t * mins, const uint8_t * d, const uint8_t * dmin,
                                        int lanes, const ActivationK * a, typename Dots::F * sums) {
    typedef typename Dots::I I;
    typedef typename Dots::F F;
    I m[4];
    SPECLLM_UNROLL
    for (int p = 0; p < 4; p++) m[p] = Dots::pairs_u8(mins + p * 32 + lanes * 2);
    const F dw = Dots::halves(d + lanes * 2), dm = Dots::halves(dmin + lanes * 2);
    SPECLLM_UNROLL
    for (int c = 0; c < WIDTH; c++) {
        I least = Dots::zero();
        SPECLLM_UNROLL
        for (int p = 0; p < 4; p++) least = Dots::add_pairs(least, m[p], Dots::broadcast32(a[c].sum32 + 2 * p));
        const F da = Dots::all_f(a[c].d);
        const F t = Dots::fma(Dots::to_float(acc[c]), Dots::multiply(dw, da), sums[c]);
        sums[c] = Dots::minus_fma(Dots::to_float(least), Dots::multiply(dm, da), t);
    }
}

}  // namespace
}  // namespace specllm
