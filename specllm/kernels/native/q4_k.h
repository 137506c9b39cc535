// Q4_K: 256 columns as eight sub-blocks of 32; w = d * scale * q - dmin * min, q in 0..15, scale and min in 0..63.
//
//   ggml, one row, 144 bytes:   d  dmin  scales and mins, 6 bits each (12 bytes)  q: sub-blocks 2p | 2p + 1 << 4 (128 bytes)
//
//   packed, 16 rows, 2368 bytes (37 cache lines):
//        0  q      four pairs of sub-blocks p, each 8 vectors i: byte (row, e) = q[64 p + 4 i + e] | q[64 p + 32 + 4 i + e] << 4
//     2048  scale  eight sub-blocks j: byte (row)
//     2176  min    four pairs of sub-blocks p: byte (row, 0), (row, 1) of sub-blocks 2p, 2p + 1
//     2304  d      f16 (row)
//     2336  dmin   f16 (row)
//
//   result += d * da * (sum_j scale_j sum_k q a)  -  dmin * da * (sum_j min_j sum_k a)
//
// The sums in brackets are exact: 8 * 63 * 32 * 15 * 127 = 30.7 million and 8 * 63 * 32 * 127 = 2.05 million fit 32 bits.
#pragma once
#include "dots.h"
#include "k_scales.h"

namespace specllm {
namespace {

struct Q4K {
    static constexpr Type TYPE = Q4_K;
    static constexpr int COLUMNS = SUPER, BLOCK_BYTES = 144, STRIP_BYTES = 2368, RUN = 1;
    static constexpr int SCALES = 2048, MINS = 2176, D = 2304, DMIN = 2336;
    typedef ActivationK Activation;

    static void pack(const uint8_t * const * rows, uint8_t * out) {
        for (int r = 0; r < STRIP; r++) {
            const uint8_t * block = rows[r];
            for (int v = 0; v < 32; v++) write32(out + v * 64 + r * 4, read32(block + 16 + v * 4));
            pack_scales(block + 4, r, out + SCALES, out + MINS);
            memcpy(out + D + r * 2, block, 2);
            memcpy(out + DMIN + r * 2, block + 2, 2);
        }
    }

    template <class Dots, int WIDTH>
    static SPECLLM_INLINE void block(const uint8_t * w, int half, const ActivationK * a, typename Dots::F * sums) {
        typedef typename Dots::I I;
        const int lanes = half * Dots::LANES;
        const I low = Dots::all8(15);
        I acc[WIDTH];
        for (int c = 0; c < WIDTH; c++) acc[c] = Dots::zero();
        for (int p = 0; p < 4; p++) {
            if (half == 0) ask_ahead<STRIP_BYTES, 4>(w, p);
            const uint8_t * q = w + p * 512 + lanes * 4;
            const uint8_t * scales = w + SCALES + p * 32 + lanes;
            I x[8];
            SPECLLM_UNROLL
            for (int i = 0; i < 8; i++) x[i] = Dots::bit_and(Dots::load(q + 64 * i), low);
            I s = Dots::scale_u8(scales);
            SPECLLM_UNROLL
            for (int c = 0; c < WIDTH; c++) acc[c] = Dots::scaled_u4(acc[c], x, a[c].q + 64 * p, s);
            SPECLLM_UNROLL
            for (int i = 0; i < 8; i++) x[i] = Dots::bit_and(Dots::template right16<4>(Dots::load(q + 64 * i)), low);
            s = Dots::scale_u8(scales + 16);
            SPECLLM_UNROLL
            for (int c = 0; c < WIDTH; c++) acc[c] = Dots::scaled_u4(acc[c], x, a[c].q + 64 * p + 32, s);
        }
        add_scaled_and_mins<Dots, WIDTH>(acc, w + MINS, w + D, w + DMIN, lanes, a, sums);
    }
};

}  // namespace
}  // namespace specllm
