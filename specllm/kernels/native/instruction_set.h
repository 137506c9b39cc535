// The kernels of one instruction set. A file that includes this defines
//   SPECLLM_DOTS    the sums to use: MaddDots or VnniDots of a vector
//   SPECLLM_SET     the name of the InstructionSet to define
//   SPECLLM_SET_NAME   its name in words
#pragma once
#include "activations.h"
#include "attention.h"
#include "blocks_of_32.h"
#include "floats.h"
#include "iq4_xs.h"
#include "q4_k.h"
#include "q5_k.h"
#include "q6_k.h"

namespace specllm {
namespace {

// A GroupKernel (formats.h).
template <class T, class Dots, int WIDTH>
__attribute__((noinline)) void multiply(const uint8_t * w, const void * activations, int n_blocks, int n_strips, float * out, size_t stride) {
    typedef typename Dots::F F;
    constexpr int HALVES = STRIP / Dots::LANES;
    const typename T::Activation * a = (const typename T::Activation *)activations;
    F sums[GROUP * HALVES][WIDTH];
    for (int s = 0; s < GROUP * HALVES; s++)
        for (int c = 0; c < WIDTH; c++) sums[s][c] = Dots::zero_f();
    for (int b = 0; b < n_blocks; b += T::RUN) {
        const int n = n_blocks - b < T::RUN ? n_blocks - b : T::RUN;
        for (int s = 0; s < n_strips; s++, w += (size_t)n * T::STRIP_BYTES) {
            for (int h = 0; h < HALVES; h++) {
                F * const here = sums[s * HALVES + h];
                if (T::RUN == 1) {
                    T::template block<Dots, WIDTH>(w, h, a, here);
                } else {
                    F run[WIDTH];
                    for (int c = 0; c < WIDTH; c++) run[c] = here[c];
                    for (int i = 0; i < n; i++) {
                        const uint8_t * block = w + (size_t)i * T::STRIP_BYTES;
                        if (h == 0) ask_ahead<T::STRIP_BYTES>(block);
                        T::template block<Dots, WIDTH>(block, h, a + (size_t)i * WIDTH, run);
                    }
                    for (int c = 0; c < WIDTH; c++) here[c] = run[c];
                }
            }
        }
        a += (size_t)n * WIDTH;
    }
    for (int s = 0; s < n_strips * HALVES; s++)
        for (int c = 0; c < WIDTH; c++) Dots::store(out + c * stride + s * Dots::LANES, sums[s][c]);
}

template <class T, class Dots>
const TypeKernels kernels_of = {
    T::TYPE,
    T::COLUMNS,
    T::BLOCK_BYTES,
    T::STRIP_BYTES,
    (int)sizeof(typename T::Activation),
    T::RUN,
    T::pack,
    QuantizeBlocks<T, typename T::Activation>::run,
    {nullptr, multiply<T, Dots, 1>, multiply<T, Dots, 2>, multiply<T, Dots, 3>, multiply<T, Dots, 4>, multiply<T, Dots, 5>,
     multiply<T, Dots, 6>, nullptr, multiply<T, Dots, 8>, nullptr, nullptr, nullptr, multiply<T, Dots, 12>, nullptr, nullptr,
     nullptr, multiply<T, Dots, 16>},
};

template <class Dots>
const TypeKernels * find_kernels(int type) {
    switch (type) {
        case F32: return &kernels_of<F32Type, Dots>;
        case F16: return &kernels_of<F16Type, Dots>;
        case Q4_0: return &kernels_of<Q40, Dots>;
        case Q5_0: return &kernels_of<Q50, Dots>;
        case Q8_0: return &kernels_of<Q80, Dots>;
        case Q4_K: return &kernels_of<Q4K, Dots>;
        case Q5_K: return &kernels_of<Q5K, Dots>;
        case Q6_K: return &kernels_of<Q6K, Dots>;
        case IQ4_NL: return &kernels_of<IQ4NL, Dots>;
        case IQ4_XS: return &kernels_of<IQ4XS, Dots>;
        default: return nullptr;
    }
}

}  // namespace

extern const InstructionSet SPECLLM_SET;
const InstructionSet SPECLLM_SET = {SPECLLM_SET_NAME, find_kernels<SPECLLM_DOTS>, attend, merge, finish};

}  // namespace specllm
