// Sums of weight * activation over 32 columns, 16 or 8 rows at once, in two ways: with the VNNI instructions, which add four
// products to a 32-bit lane, and without them, where products pass through 16-bit sums. Both are exact, so they agree.
//
// w[0..7] are 32 columns of weights as unsigned bytes, four columns per vector; a points at the 32 activations that belong
// to them, |a| <= 127. `acc` is what the sum is added to.
#pragma once
#include "vectors.h"

namespace specllm {
namespace {

// Without VNNI. maddubs adds two products in 16 bits; its second operand must be the signed one.
template <class Vector>
struct MaddDots : Vector {
    typedef typename Vector::I I;
    using Vector::add16;
    using Vector::add32;
    using Vector::all16;
    using Vector::all8;
    using Vector::broadcast32;
    using Vector::madd;
    using Vector::maddubs;
    using Vector::twice16;

    // A row's scale, ready for scaled sums: in both halves of its lane.
    static SPECLLM_INLINE I scale_u8(const uint8_t * p) { return twice16(Vector::lanes_u8(p)); }
    static SPECLLM_INLINE I scale_s8(const uint8_t * p) { return twice16(Vector::lanes_s8(p)); }
    static SPECLLM_INLINE I wide_scale_s8(const uint8_t * p) { return scale_s8(p); }  // for scaled_s8

    // acc + per lane the products of two pairs of 16-bit numbers
    static SPECLLM_INLINE I add_pairs(I acc, I a, I b) { return add32(acc, madd(a, b)); }

    // acc + s * sum w a for w <= 15. The eight products of a 16-bit sum: 8 * 2 * 15 * 127 = 30480 < 32768.
    static SPECLLM_INLINE I scaled_u4(I acc, const I * w, const int8_t * a, I s) {
        return add32(acc, madd(add16(sum16(w, a), sum16(w + 4, a + 16)), s));
    }

    // acc + s * sum w a for w <= 31: 4 * 2 * 31 * 127 = 31496 < 32768.
    static SPECLLM_INLINE I scaled_u5(I acc, const I * w, const int8_t * a, I s) {
        return add32(acc, add32(madd(sum16(w, a), s), madd(sum16(w + 4, a + 16), s)));
    }

    // acc + s0 * sum (w - 32) a over the first 16 columns + s1 * the same over the others, for w <= 63:
    // 2 * 2 * 63 * 127 = 32004 < 32768. The offset: 2 s * (-16 sum a), both factors below 2^15.
    static SPECLLM_INLINE I scaled_s6(I acc, const I * w, const ActivationKOffsets & a, int t, I s0, I s1) {
        const int8_t * q = a.base.q + 32 * t;
        const I first = add32(madd(sum8(w, q), s0), madd(sum8(w + 2, q + 8), s0));
        const I second = add32(madd(sum8(w + 4, q + 16), s1), madd(sum8(w + 6, q + 24), s1));
        const I pair = Vector::template left16<1>(Vector::join16(s0, s1));
        const I offset = madd(pair, broadcast32(a.base.minus16_sum16 + 2 * t));
        return add32(acc, add32(offset, add32(first, second)));
    }

    // acc + s * sum (w - 128) a. |w - 128| takes the unsigned place and the activation its sign; two products:
    // 2 * 128 * 127 = 32512 < 32768.
    static SPECLLM_INLINE I scaled_s8(I acc, const I * w, const int8_t * a, const int32_t *, I s) {
        const I flip = all8(0x80);
        I sum = acc;
        SPECLLM_UNROLL
        for (int i = 0; i < 8; i++) {
            const I x = Vector::bit_xor(w[i], flip);
            sum = add32(sum, madd(maddubs(Vector::abs8(x), Vector::with_sign8(broadcast32(a + 4 * i), x)), s));
        }
        return sum;
    }

    // sum (w - c) a in 32 bits, for the types with one float scale per 32 columns; *start is -c * sum a.
    static SPECLLM_INLINE I sum_u4(const I * w, const int8_t * a, const int32_t * start) {
        return scaled_u4(broadcast32(start), w, a, all16(1));
    }
    static SPECLLM_INLINE I sum_u5(const I * w, const int8_t * a, const int32_t * start) {
        return scaled_u5(broadcast32(start), w, a, all16(1));
    }
    static SPECLLM_INLINE I sum_s8(const I * w, const int8_t * a, const int32_t * start) {
        return scaled_s8(Vector::zero(), w, a, start, all16(1));
    }

  private:
    static SPECLLM_INLINE I sum8(const I * w, const int8_t * a) {
        return add16(maddubs(w[0], broadcast32(a)), maddubs(w[1], broadcast32(a + 4)));
    }
    static SPECLLM_INLINE I sum16(const I * w, const int8_t * a) { return add16(sum8(w, a), sum8(w + 2, a + 8)); }
};

// With VNNI (Vector::dpbusd broadcasts its four activations from memory): dpbusd adds four products u8 * s8 to a 32-bit lane, dpwssd two products of 16-bit numbers. A sum that fits 16
// bits is scaled by one dpwssd: the lane's low half times the scale, its high half (the sign) times 0.
template <class Vector>
struct VnniDots : Vector {
    typedef typename Vector::I I;
    using Vector::broadcast32;
    using Vector::dpbusd;
    using Vector::dpwssd;

    static SPECLLM_INLINE I scale_u8(const uint8_t * p) { return Vector::lanes_u8(p); }
    static SPECLLM_INLINE I scale_s8(const uint8_t * p) { return Vector::low16(Vector::lanes_s8(p)); }
    static SPECLLM_INLINE I wide_scale_s8(const uint8_t * p) { return Vector::lanes_s8(p); }

    static SPECLLM_INLINE I add_pairs(I acc, I a, I b) { return dpwssd(acc, a, b); }

    // 16 * 15 * 127 = 30480 < 32768
    static SPECLLM_INLINE I scaled_u4(I acc, const I * w, const int8_t * a, I s) {
        acc = dpwssd(acc, sum16(Vector::zero(), w, a), s);
        return dpwssd(acc, sum16(Vector::zero(), w + 4, a + 16), s);
    }

    // 8 * 31 * 127 = 31496 < 32768
    static SPECLLM_INLINE I scaled_u5(I acc, const I * w, const int8_t * a, I s) {
        SPECLLM_UNROLL
        for (int i = 0; i < 8; i += 2) acc = dpwssd(acc, sum8(Vector::zero(), w + i, a + 4 * i), s);
        return acc;
    }

    // Each sum starts at -32 * the sum of its 8 activations, so it is one of (w - 32) a: 8 * 32 * 127 = 32512 < 32768.
    static SPECLLM_INLINE I scaled_s6(I acc, const I * w, const ActivationKOffsets & a, int t, I s0, I s1) {
        const int8_t * q = a.base.q + 32 * t;
        const int32_t * start = a.start + 4 * t;
        acc = dpwssd(acc, sum8(broadcast32(start), w, q), s0);
        acc = dpwssd(acc, sum8(broadcast32(start + 1), w + 2, q + 8), s0);
        acc = dpwssd(acc, sum8(broadcast32(start + 2), w + 4, q + 16), s1);
        return dpwssd(acc, sum8(broadcast32(start + 3), w + 6, q + 24), s1);
    }

    // 32 * 128 * 127 = 520192 is no 16-bit number: a product of 32 bits
    static SPECLLM_INLINE I scaled_s8(I acc, const I * w, const int8_t * a, const int32_t * start, I s) {
        return Vector::add32(acc, Vector::multiply32(sum_s8(w, a, start), s));
    }

    static SPECLLM_INLINE I sum_u4(const I * w, const int8_t * a, const int32_t * start) {
        return sum16(sum16(broadcast32(start), w, a), w + 4, a + 16);
    }
    static SPECLLM_INLINE I sum_u5(const I * w, const int8_t * a, const int32_t * start) { return sum_u4(w, a, start); }
    static SPECLLM_INLINE I sum_s8(const I * w, const int8_t * a, const int32_t * start) { return sum_u4(w, a, start); }

  private:
    static SPECLLM_INLINE I sum8(I acc, const I * w, const int8_t * a) {
        return dpbusd(dpbusd(acc, w[0], a), w[1], a + 4);
    }
    static SPECLLM_INLINE I sum16(I acc, const I * w, const int8_t * a) { return sum8(sum8(acc, w, a), w + 2, a + 8); }
};

}  // namespace
}  // namespace specllm
