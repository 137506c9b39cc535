// Q5_K: as Q4_K with a fifth bit; w = d * scale * q - dmin * min, q in 0..31.
//
//   ggml, one row, 176 bytes:   d  dmin  scales and mins (12 bytes)  fifth bits (32 bytes)  low four bits (128 bytes)
//                               byte k of the fifth bits: bit j belongs to column k of sub-block j
//
//   packed, 16 rows, 2880 bytes (45 cache lines):
//        0  low    as in Q4_K
//     2048  fifth  eight sub-blocks j: byte (row, e), bit i = fifth bit of q[32 j + 4 i + e]
//     2560  scale, min, d, dmin as in Q4_K
//
// The sums of a block: 8 * 63 * 32 * 31 * 127 = 63.5 million.
#pragma once
#include "k_scales.h"

namespace specllm {
namespace {

// The four columns of vector i of 32, from one bit each: bit i of every byte, moved to bit 4.
template <class Dots, int I>
SPECLLM_INLINE typename Dots::I fifth_bits(typename Dots::I bits) {
    const typename Dots::I mask = Dots::all8(16);
    if constexpr (I < 4) return Dots::bit_and(Dots::template left16<4 - I>(bits), mask);
    else if constexpr (I == 4) return Dots::bit_and(bits, mask);
    else return Dots::bit_and(Dots::template right16<I - 4>(bits), mask);
}

// x[0..7] |= the fifth bits
template <class Dots>
SPECLLM_INLINE void add_fifth_bits(typename Dots::I * x, typename Dots::I bits) {
    x[0] = Dots::bit_or(x[0], fifth_bits<Dots, 0>(bits));
    x[1] = Dots::bit_or(x[1], fifth_bits<Dots, 1>(bits));
    x[2] = Dots::bit_or(x[2], fifth_bits<Dots, 2>(bits));
    x[3] = Dots::bit_or(x[3], fifth_bits<Dots, 3>(bits));
    x[4] = Dots::bit_or(x[4], fifth_bits<Dots, 4>(bits));
    x[5] = Dots::bit_or(x[5], fifth_bits<Dots, 5>(bits));
    x[6] = Dots::bit_or(x[6], fifth_bits<Dots, 6>(bits));
    x[7] = Dots::bit_or(x[7], fifth_bits<Dots, 7>(bits));
}

struct Q5K {
    static constexpr Type TYPE = Q5_K;
    static constexpr int COLUMNS = SUPER, BLOCK_BYTES = 176, STRIP_BYTES = 2880, RUN = 1;
    static constexpr int FIFTH = 2048, SCALES = 2560, MINS = 2688, D = 2816, DMIN = 2848;
    typedef ActivationK Activation;

    static void pack(const uint8_t * const * rows, uint8_t * out) {
        for (int r = 0; r < STRIP; r++) {
            const uint8_t *block = rows[r], *fifth = block + 16, *low = block + 48;
            for (int v = 0; v < 32; v++) write32(out + v * 64 + r * 4, read32(low + v * 4));
            for (int j = 0; j < 8; j++) {
                uint32_t bits = 0;  // one bit of each byte at a time
                for (int i = 0; i < 8; i++) bits |= ((read32(fifth + 4 * i) >> j) & 0x01010101u) << i;
                write32(out + FIFTH + j * 64 + r * 4, bits);
            }
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
            const uint8_t * fifth = w + FIFTH + p * 128 + lanes * 4;
            const uint8_t * scales = w + SCALES + p * 32 + lanes;
            I x[8];
            SPECLLM_UNROLL
            for (int i = 0; i < 8; i++) x[i] = Dots::bit_and(Dots::load(q + 64 * i), low);
            add_fifth_bits<Dots>(x, Dots::load(fifth));
            I s = Dots::scale_u8(scales);
            SPECLLM_UNROLL
            for (int c = 0; c < WIDTH; c++) acc[c] = Dots::scaled_u5(acc[c], x, a[c].q + 64 * p, s);
            SPECLLM_UNROLL
            for (int i = 0; i < 8; i++) x[i] = Dots::bit_and(Dots::template right16<4>(Dots::load(q + 64 * i)), low);
            add_fifth_bits<Dots>(x, Dots::load(fifth + 64));
            s = Dots::scale_u8(scales + 16);
            SPECLLM_UNROLL
            for (int c = 0; c < WIDTH; c++) acc[c] = Dots::scaled_u5(acc[c], x, a[c].q + 64 * p + 32, s);
        }
        add_scaled_and_mins<Dots, WIDTH>(acc, w + MINS, w + D, w + DMIN, lanes, a, sums);
    }
};

}  // namespace
}  // namespace specllm
