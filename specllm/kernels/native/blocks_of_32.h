// The types with blocks of 32 columns and one f16 scale each: Q8_0, Q4_0, Q5_0, IQ4_NL.
//
//   w = d * (u - offset),   u an unsigned byte once unpacked
//   result += d * da * (sum_k (u - offset) a),     the sum: at most 32 * 128 * 127 = 520192
//
//             ggml, one row                              packed, 16 rows
//   Q8_0      34 bytes: d, 32 signed bytes               544: 8 vectors i: byte (row, e) = q[4 i + e] + 128; d
//   Q4_0      18: d, byte k = q[k] | q[16 + k] << 4      288: 4 vectors i: byte (row, e) = ggml's byte 4 i + e; d
//   Q5_0      22: d, bit k of 4 bytes = fifth of q[k],   352: as Q4_0; a vector of fifth bits: byte (row, e), bit i =
//             then as Q4_0                                    fifth bit of q[4 i + e]; d
//   IQ4_NL    as Q4_0; q is an index into a table        288: as Q4_0
//
// Eight blocks of a strip lie in a row (RUN), so that the running sums stay in registers over 256 columns.
#pragma once
#include "dots.h"
#include "iq4_table.h"
#include "q5_k.h"

namespace specllm {
namespace {

// The end of a block: sums += d * da * the sum of each column, which `sum(column)` gives.
template <class Dots, int WIDTH, class Sum>
SPECLLM_INLINE void add_scaled(const uint8_t * d, int lanes, const Activation32 * a, typename Dots::F * sums, Sum sum) {
    typedef typename Dots::F F;
    const F dw = Dots::halves(d + lanes * 2);
    SPECLLM_UNROLL
    for (int c = 0; c < WIDTH; c++)
        sums[c] = Dots::fma(Dots::to_float(sum(a[c])), Dots::multiply(dw, Dots::all_f(a[c].d)), sums[c]);
}

// ggml's bytes of two columns 16 apart, and back to two vectors of four columns
inline void pack_nibbles(const uint8_t * q, int row, uint8_t * out) {
    for (int i = 0; i < 4; i++) write32(out + i * 64 + row * 4, read32(q + 4 * i));
}
template <class Dots>
SPECLLM_INLINE void unpack_nibbles(const uint8_t * w, int lanes, typename Dots::I * x) {
    const typename Dots::I low = Dots::all8(15);
    SPECLLM_UNROLL
    for (int i = 0; i < 4; i++) {
        const typename Dots::I both = Dots::load(w + i * 64 + lanes * 4);
        x[i] = Dots::bit_and(both, low);
        x[i + 4] = Dots::bit_and(Dots::template right16<4>(both), low);
    }
}

struct Q80 {
    static constexpr Type TYPE = Q8_0;
    static constexpr int COLUMNS = 32, BLOCK_BYTES = 34, STRIP_BYTES = 544, RUN = 8, OFFSET = 128;
    typedef Activation32 Activation;

    static void pack(const uint8_t * const * rows, uint8_t * out) {
        for (int r = 0; r < STRIP; r++) {
            for (int i = 0; i < 8; i++) write32(out + i * 64 + r * 4, read32(rows[r] + 2 + 4 * i) ^ 0x80808080u);
            memcpy(out + 512 + r * 2, rows[r], 2);
        }
    }

    template <class Dots, int WIDTH>
    static SPECLLM_INLINE void block(const uint8_t * w, int half, const Activation32 * a, typename Dots::F * sums) {
        const int lanes = half * Dots::LANES;
        typename Dots::I x[8];
        SPECLLM_UNROLL
        for (int i = 0; i < 8; i++) x[i] = Dots::load(w + i * 64 + lanes * 4);
        add_scaled<Dots, WIDTH>(w + 512, lanes, a, sums, [&](const Activation32 & c) SPECLLM_LAMBDA { return Dots::sum_s8(x, c.q, &c.start); });
    }
};

struct Q40 {
    static constexpr Type TYPE = Q4_0;
    static constexpr int COLUMNS = 32, BLOCK_BYTES = 18, STRIP_BYTES = 288, RUN = 8, OFFSET = 8;
    typedef Activation32 Activation;

    static void pack(const uint8_t * const * rows, uint8_t * out) {
        for (int r = 0; r < STRIP; r++) {
            pack_nibbles(rows[r] + 2, r, out);
            memcpy(out + 256 + r * 2, rows[r], 2);
        }
    }

    template <class Dots, int WIDTH>
    static SPECLLM_INLINE void block(const uint8_t * w, int half, const Activation32 * a, typename Dots::F * sums) {
        const int lanes = half * Dots::LANES;
        typename Dots::I x[8];
        unpack_nibbles<Dots>(w, lanes, x);
        add_scaled<Dots, WIDTH>(w + 256, lanes, a, sums, [&](const Activation32 & c) SPECLLM_LAMBDA { return Dots::sum_u4(x, c.q, &c.start); });
    }
};

struct Q50 {
    static constexpr Type TYPE = Q5_0;
    static constexpr int COLUMNS = 32, BLOCK_BYTES = 22, STRIP_BYTES = 352, RUN = 8, OFFSET = 16;
    typedef Activation32 Activation;

    static void pack(const uint8_t * const * rows, uint8_t * out) {
        for (int r = 0; r < STRIP; r++) {
            pack_nibbles(rows[r] + 6, r, out);
            const uint32_t fifth = read32(rows[r] + 2);
            uint32_t bits = 0;  // bit k = 4 i + e goes to bit i of byte e
            for (int k = 0; k < 32; k++) bits |= (fifth >> k & 1u) << (8 * (k & 3) + (k >> 2));
            write32(out + 256 + r * 4, bits);
            memcpy(out + 320 + r * 2, rows[r], 2);
        }
    }

    template <class Dots, int WIDTH>
    static SPECLLM_INLINE void block(const uint8_t * w, int half, const Activation32 * a, typename Dots::F * sums) {
        const int lanes = half * Dots::LANES;
        typename Dots::I x[8];
        unpack_nibbles<Dots>(w, lanes, x);
        add_fifth_bits<Dots>(x, Dots::load(w + 256 + lanes * 4));
        add_scaled<Dots, WIDTH>(w + 320, lanes, a, sums, [&](const Activation32 & c) SPECLLM_LAMBDA { return Dots::sum_u5(x, c.q, &c.start); });
    }
};

struct IQ4NL {
    static constexpr Type TYPE = IQ4_NL;
    static constexpr int COLUMNS = 32, BLOCK_BYTES = 18, STRIP_BYTES = 288, RUN = 8, OFFSET = 128;
    typedef Activation32 Activation;

    static void pack(const uint8_t * const * rows, uint8_t * out) { Q40::pack(rows, out); }

    template <class Dots, int WIDTH>
    static SPECLLM_INLINE void block(const uint8_t * w, int half, const Activation32 * a, typename Dots::F * sums) {
        const int lanes = half * Dots::LANES;
        typename Dots::I x[8];
        unpack_nibbles<Dots>(w, lanes, x);
        look_up<Dots>(x);
        add_scaled<Dots, WIDTH>(w + 256, lanes, a, sums, [&](const Activation32 & c) SPECLLM_LAMBDA { return Dots::sum_s8(x, c.q, &c.start); });
    }
};

}  // namespace
}  // namespace specllm
