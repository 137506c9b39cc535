// MUL_MAT on packed weights: activations are made int8 blocks by all threads, then each takes groups of rows. And MUL_MAT on a
// small matrix of floats that is not packed, because llama.cpp makes it itself (the rotation before a quantized cache): it is
// packed for this once.
#pragma once
#include "ggml_interface.h"
#include "matrix.h"

namespace specllm {
namespace {

class MatrixRun {
  public:
    MatrixRun(const TypeKernels & kernels, const Ggml & ggml, ComputeParams * params, ggml_tensor * op)
        : ggml(ggml), params(params), op(op), x(op->src[1]), m{&kernels, op->src[0]->ne[1], op->src[0]->ne[0] / kernels.block_columns},
          n_columns(x->ne[1] * x->ne[2] * x->ne[3]), activations((char *)(((uintptr_t)params->wdata + 63) & ~(uintptr_t)63)) {}

    static size_t work_bytes(const TypeKernels & kernels, const ggml_tensor * op) {
        const ggml_tensor * x = op->src[1];
        return (size_t)(x->ne[0] / kernels.block_columns) * (x->ne[1] * x->ne[2] * x->ne[3]) * kernels.activation_bytes + 64;
    }

    void run() { run_on((const uint8_t *)op->src[0]->data); }

    static size_t work_bytes_unpacked(const TypeKernels & kernels, const ggml_tensor * op) {
        const Packed m{&kernels, op->src[0]->ne[1], op->src[0]->ne[0] / kernels.block_columns};
        return work_bytes(kernels, op) + m.bytes() + 64;
    }

    void run_unpacked() {
        uint8_t * packed = (uint8_t *)activations;
        activations += (m.bytes() + 63) & ~(size_t)63;
        pack_groups(m, (const uint8_t *)op->src[0]->data, packed, m.n_groups() * params->ith / params->nth,
                    m.n_groups() * (params->ith + 1) / params->nth);
        run_on(packed);
    }

  private:
    void run_on(const uint8_t * weights) {
        quantize();
        if (params->ith == 0) ggml.chunk_set(params->threadpool, params->nth);
        ggml.barrier(params->threadpool);
        const int64_t step = groups_at_once(m, n_columns, params->nth), n = (m.n_groups() + step - 1) / step;
        for (int64_t i = params->ith; i < n; i = ggml.chunk_add(params->threadpool, 1)) {
            const int64_t begin = i * step, end = begin + step < m.n_groups() ? begin + step : m.n_groups();
            multiply(weights, begin, end);
        }
    }

    // Columns are numbered through all three outer dimensions.
    int64_t offset(const ggml_tensor * t, int64_t column) const {
        const int64_t n1 = x->ne[1], n2 = x->ne[2];
        return column % n1 * t->nb[1] + column / n1 % n2 * t->nb[2] + column / (n1 * n2) * t->nb[3];
    }

    // All blocks of all columns, in equal shares
    void quantize() const {
        const int64_t all = n_columns * m.n_blocks;
        int64_t at = all * params->ith / params->nth;
        const int64_t end = all * (params->ith + 1) / params->nth;
        while (at < end) {
            const int64_t column = at / m.n_blocks, block = at % m.n_blocks;
            const int64_t n = m.n_blocks - block < end - at ? m.n_blocks - block : end - at;
            size_t step;
            char * out = activation_column(m, activations, column, n_columns, &step);
            const float * from = (const float *)((const char *)x->data + offset(x, column)) + block * m.kernels->block_columns;
            m.kernels->quantize(from, (int)n, out + block * step, step);
            at += n;
        }
    }

    void multiply(const uint8_t * weights, int64_t begin, int64_t end) const {
        multiply_columns(m, weights, begin, end, activations, n_columns,
                         [&](int64_t column) { return (float *)((char *)op->data + offset(op, column)); });
    }

    const Ggml & ggml;
    ComputeParams * params;
    ggml_tensor * op;
    const ggml_tensor * x;
    Packed m;
    int64_t n_columns;
    char * activations;
};

}  // namespace
}  // namespace specllm
