// F16: 16-bit floats, multiplied with the activations as they are.
//
//   packed, 16 rows, a block of 32 columns, 1024 bytes: f16 (row) of column 0, of column 1, ..
//
//   Four running sums per block, s_i over the columns 4 n + i by fused multiply-add; result += (s0 + s1) + (s2 + s3).
#pragma once
#include "vectors.h"

namespace specllm {
namespace {

struct F16Type {
    static constexpr Type TYPE = F16;
    static constexpr int COLUMNS = 32, BLOCK_BYTES = 64, STRIP_BYTES = 1024, RUN = 8;
    typedef ActivationF32 Activation;

    static void pack(const uint8_t * const * rows, uint8_t * out) {
        for (int r = 0; r < STRIP; r++)
            for (int k = 0; k < 32; k++) memcpy(out + k * 32 + r * 2, rows[r] + k * 2, 2);
    }

    template <class Dots, int WIDTH>
    static SPECLLM_INLINE void block(const uint8_t * w, int half, const ActivationF32 * a, typename Dots::F * sums) {
        typedef typename Dots::F F;
        const uint8_t * p = w + half * Dots::LANES * 2;
        F s[4][WIDTH];
        for (int i = 0; i < 4; i++) {
            F sum[WIDTH];
            for (int c = 0; c < WIDTH; c++) sum[c] = Dots::zero_f();
            for (int k = i; k < 32; k += 4) {
                const F x = Dots::halves(p + k * 32);
                SPECLLM_UNROLL
                for (int c = 0; c < WIDTH; c++) sum[c] = Dots::fma(x, Dots::all_f(a[c].x[k]), sum[c]);
            }
            for (int c = 0; c < WIDTH; c++) s[i][c] = sum[c];
        }
        SPECLLM_UNROLL
        for (int c = 0; c < WIDTH; c++)
            sums[c] = Dots::add(sums[c], Dots::add(Dots::add(s[0][c], s[1][c]), Dots::add(s[2][c], s[3][c])));
    }
};

}  // namespace
}  // namespace specllm
