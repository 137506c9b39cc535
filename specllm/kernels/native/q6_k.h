// Q6_K: 256 columns as sixteen sub-blocks of 16; w = d * scale * (q - 32), q in 0..63, scale a signed byte.
//
//   ggml, one row, 210 bytes:   low four bits (128 bytes)  upper two bits (64 bytes)  scales (16 bytes)  d
//
//   packed, 16 rows, 3360 bytes, for t = 0..7 (two sub-blocks A and B of 16 columns, A[k] = q[32 t + k], B[k] = A[16 + k]):
//      384 t        low    4 vectors i: byte (row, e) = A[4 i + e] & 15 | (B[4 i + e] & 15) << 4
//      384 t + 256  upper  2 vectors u: byte (row, e), two bits each: A[8 u + e], A[8 u + 4 + e], B[8 u + e], B[8 u + 4 + e]
//     3072          scale  sixteen sub-blocks g: byte (row)
//     3328          d      f16 (row)
//
//   result += d * da * (sum_g scale_g sum_k (q - 32) a),     the sum: 16 * 128 * 16 * 32 * 127 = 133 million
#pragma once
#include "dots.h"

namespace specllm {
namespace {

struct Q6K {
    static constexpr Type TYPE = Q6_K;
    static constexpr int COLUMNS = SUPER, BLOCK_BYTES = 210, STRIP_BYTES = 3360, RUN = 1;
    static constexpr int SCALES = 3072, D = 3328;
    typedef ActivationKOffsets Activation;

    static void pack(const uint8_t * const * rows, uint8_t * out) {
        for (int r = 0; r < STRIP; r++) {
            const uint8_t * block = rows[r];
            for (int t = 0; t < 8; t++) {
                // ggml: of 128 columns, byte l of the upper bits holds columns l, l + 32, l + 64, l + 96, two bits each;
                // byte l of the low bits columns l and l + 64, byte l + 32 columns l + 32 and l + 96.
                const int quarter = t & 3;
                const uint8_t * low = block + (t >> 2) * 64 + (quarter & 1) * 32;
                const uint8_t * upper = block + 128 + (t >> 2) * 32;
                uint32_t l[8], h[8];  // four columns each
                for (int i = 0; i < 8; i++) {
                    l[i] = (read32(low + 4 * i) >> (quarter < 2 ? 0 : 4)) & 0x0f0f0f0fu;
                    h[i] = (read32(upper + 4 * i) >> (2 * quarter)) & 0x03030303u;
                }
                uint8_t * o = out + t * 384 + r * 4;
                for (int i = 0; i < 4; i++) write32(o + i * 64, l[i] | l[i + 4] << 4);
                for (int u = 0; u < 2; u++)
                    write32(o + 256 + u * 64, h[2 * u] | h[2 * u + 1] << 2 | h[2 * u + 4] << 4 | h[2 * u + 5] << 6);
            }
            for (int g = 0; g < 16; g++) out[SCALES + g * STRIP + r] = block[192 + g];
            memcpy(out + D + r * 2, block + 208, 2);
        }
    }

    template <class Dots, int WIDTH>
    static SPECLLM_INLINE void block(const uint8_t * w, int half, const ActivationKOffsets * a, typename Dots::F * sums) {
        typedef typename Dots::I I;
        typedef typename Dots::F F;
        const int lanes = half * Dots::LANES;
        const I low = Dots::all8(15), upper = Dots::all8(0x30);
        I acc[WIDTH];
        for (int c = 0; c < WIDTH; c++) acc[c] = Dots::zero();
        for (int t = 0; t < 8; t++) {
            if (half == 0) ask_ahead<STRIP_BYTES, 8>(w, t);
            const uint8_t * q = w + t * 384 + lanes * 4;
            const I h0 = Dots::load(q + 256), h1 = Dots::load(q + 320);
            I x[8];
            SPECLLM_UNROLL
            for (int i = 0; i < 4; i++) {
                const I both = Dots::load(q + 64 * i);
                x[i] = Dots::bit_and(both, low);
                x[i + 4] = Dots::bit_and(Dots::template right16<4>(both), low);
            }
            x[0] = Dots::bit_or(x[0], Dots::bit_and(Dots::template left16<4>(h0), upper));
            x[1] = Dots::bit_or(x[1], Dots::bit_and(Dots::template left16<2>(h0), upper));
            x[2] = Dots::bit_or(x[2], Dots::bit_and(Dots::template left16<4>(h1), upper));
            x[3] = Dots::bit_or(x[3], Dots::bit_and(Dots::template left16<2>(h1), upper));
            x[4] = Dots::bit_or(x[4], Dots::bit_and(h0, upper));
            x[5] = Dots::bit_or(x[5], Dots::bit_and(Dots::template right16<2>(h0), upper));
            x[6] = Dots::bit_or(x[6], Dots::bit_and(h1, upper));
            x[7] = Dots::bit_or(x[7], Dots::bit_and(Dots::template right16<2>(h1), upper));
            const I s0 = Dots::scale_s8(w + SCALES + 2 * t * STRIP + lanes);
            const I s1 = Dots::scale_s8(w + SCALES + (2 * t + 1) * STRIP + lanes);
            SPECLLM_UNROLL
            for (int c = 0; c < WIDTH; c++) acc[c] = Dots::scaled_s6(acc[c], x, a[c], t, s0, s1);
        }
        const F d = Dots::halves(w + D + lanes * 2);
        SPECLLM_UNROLL
        for (int c = 0; c < WIDTH; c++)
            sums[c] = Dots::fma(Dots::to_float(acc[c]), Dots::multiply(d, Dots::all_f(a[c].base.d)), sums[c]);
    }
};

}  // namespace
}  // namespace specllm
