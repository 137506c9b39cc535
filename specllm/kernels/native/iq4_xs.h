// IQ4_XS: 256 columns as eight sub-blocks of 32; w = d * (scale - 32) * table[q], q in 0..15, scale in 0..63.
//
//   ggml, one row, 136 bytes:   d  upper two bits of the scales (2 bytes)  low four bits (4 bytes)
//                               q: 16 bytes per sub-block, byte k = q[k] | q[16 + k] << 4
//
//   packed, 16 rows, 2208 bytes:
//        0  q      eight sub-blocks j, each 4 vectors i: byte (row, e) = ggml's byte 4 i + e
//     2048  scale  eight sub-blocks j: signed byte (row), scale - 32
//     2176  d      f16 (row)
//
//   result += d * da * (sum_j scale_j sum_k table[q] a),     the sum: 8 * 32 * 32 * 127 * 127 = 132 million
#pragma once
#include "blocks_of_32.h"

namespace specllm {
namespace {

struct IQ4XS {
    static constexpr Type TYPE = IQ4_XS;
    static constexpr int COLUMNS = SUPER, BLOCK_BYTES = 136, STRIP_BYTES = 2208, RUN = 1;
    static constexpr int SCALES = 2048, D = 2176;
    typedef ActivationKOffsets Activation;

    static void pack(const uint8_t * const * rows, uint8_t * out) {
        for (int r = 0; r < STRIP; r++) {
            const uint8_t * block = rows[r];
            const int upper = read16(block + 2);
            for (int j = 0; j < 8; j++) {
                pack_nibbles(block + 8 + 16 * j, r, out + 256 * j);
                const int scale = (block[4 + j / 2] >> (4 * (j & 1)) & 15) | (upper >> (2 * j) & 3) << 4;
                out[SCALES + j * STRIP + r] = (uint8_t)(scale - 32);
            }
            memcpy(out + D + r * 2, block, 2);
        }
    }

    template <class Dots, int WIDTH>
    static SPECLLM_INLINE void block(const uint8_t * w, int half, const ActivationKOffsets * a, typename Dots::F * sums) {
        typedef typename Dots::I I;
        typedef typename Dots::F F;
        const int lanes = half * Dots::LANES;
        I acc[WIDTH];
        for (int c = 0; c < WIDTH; c++) acc[c] = Dots::zero();
        for (int j = 0; j < 8; j++) {
            if (half == 0) ask_ahead<STRIP_BYTES, 8>(w, j);
            I x[8];
            unpack_nibbles<Dots>(w + 256 * j, lanes, x);
            look_up<Dots>(x);
            const I s = Dots::wide_scale_s8(w + SCALES + j * STRIP + lanes);
            SPECLLM_UNROLL
            for (int c = 0; c < WIDTH; c++) acc[c] = Dots::scaled_s8(acc[c], x, a[c].base.q + 32 * j, a[c].start + j, s);
        }
        const F d = Dots::halves(w + D + lanes * 2);
        SPECLLM_UNROLL
        for (int c = 0; c < WIDTH; c++)
            sums[c] = Dots::fma(Dots::to_float(acc[c]), Dots::multiply(d, Dots::all_f(a[c].base.d)), sums[c]);
    }
};

}  // namespace
}  // namespace specllm
