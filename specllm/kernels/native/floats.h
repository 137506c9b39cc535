// F16 and F32: floats of 16 or 32 bits, multiplied with the activations as they are.
//
//   packed, 16 rows, a block of 32 columns, 1024 or 2048 bytes: number (row) of column 0, of column 1, ..
//
//   Four running sums per block, s_i over the columns 4 n + i by fused multiply-add; result += (s0 + s1) + (s2 + s3).
#pragma once
#include "vectors.h"

namespace specllm {
namespace {

template <Type TYPE_, int BYTES>
struct FloatType {
    static constexpr Type TYPE = TYPE_;
    static constexpr int COLUMNS = 32, BLOCK_BYTES = 32 * BYTES, STRIP_BYTES = STRIP * BLOCK_BYTES, RUN = 8;
    typedef ActivationF32 Activation;

    static void pack(const uint8_t * const * rows, uint8_t * out) {
        for (int r = 0; r < STRIP; r++)
            for (int k = 0; k < 32; k++) memcpy(out + (k * STRIP + r) * BYTES, rows[r] + k * BYTES, BYTES);
    }

    template <class Dots>
    static SPECLLM_INLINE typename Dots::F load(const uint8_t * p) {
        if constexpr (TYPE == F16) return Dots::halves(p);
        else return Dots::load_f((const float *)p);
    }

    template <class Dots, int WIDTH>
    static SPECLLM_INLINE void block(const uint8_t * w, int half, const ActivationF32 * a, typename Dots::F * sums) {
        typedef typename Dots::F F;
        const uint8_t * p = w + half * Dots::LANES * BYTES;
        F s[4][WIDTH];
        for (int i = 0; i < 4; i++) {
            F sum[WIDTH];
            for (int c = 0; c < WIDTH; c++) sum[c] = Dots::zero_f();
            for (int k = i; k < 32; k += 4) {
                const F x = load<Dots>(p + k * STRIP * BYTES);
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

typedef FloatType<F16, 2> F16Type;
typedef FloatType<F32, 4> F32Type;

}  // namespace
}  // namespace specllm
