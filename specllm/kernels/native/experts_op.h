// MUL_MAT_ID on packed weights: a mixture of experts, where each token is multiplied with a few of the matrices.
//
//   weights  (columns, rows, experts): one expert behind the other, packed as one tall matrix
//   x        (columns, slots or 1, tokens)
//   ids      (slots, tokens): which expert a token uses in a slot
//   result   (rows, slots, tokens)
//
// The pairs of token and slot are sorted by expert, so that an expert's weights are read once for all its tokens. A pair's
// result does not depend on which others its expert has: no kernel's does.
#pragma once
#include "ggml_interface.h"
#include "matrix.h"

namespace specllm {
namespace {

class ExpertsRun {
  public:
    ExpertsRun(const TypeKernels & kernels, const Ggml & ggml, ComputeParams * params, ggml_tensor * op)
        : ggml(ggml), params(params), op(op), x(op->src[1]), ids(op->src[2]),
          expert{&kernels, op->src[0]->ne[1], op->src[0]->ne[0] / kernels.block_columns}, n_experts(op->src[0]->ne[2]),
          n_slots(ids->ne[0]), n_pairs(ids->ne[0] * ids->ne[1]) {
        char * work = (char *)(((uintptr_t)params->wdata + 63) & ~(uintptr_t)63);
        activations = work;
        begins = (int32_t *)(work + n_pairs * expert.n_blocks * kernels.activation_bytes);
        pairs = begins + n_experts + 1;
    }

    static size_t work_bytes(const TypeKernels & kernels, const ggml_tensor * op) {
        const int64_t n_pairs = op->src[2]->ne[0] * op->src[2]->ne[1];
        return (size_t)(op->src[0]->ne[0] / kernels.block_columns) * n_pairs * kernels.activation_bytes +
               (op->src[0]->ne[2] + 1 + n_pairs) * sizeof(int32_t) + 64;
    }

    void run() {
        if (params->ith == 0) {
            sort();
            ggml.chunk_set(params->threadpool, params->nth);
        }
        ggml.barrier(params->threadpool);
        quantize();
        ggml.barrier(params->threadpool);
        const int64_t step = groups_at_once(expert, n_pairs, params->nth), n = (expert.n_groups() + step - 1) / step;
        for (int64_t i = params->ith; i < n * n_experts; i = ggml.chunk_add(params->threadpool, 1)) {
            const int64_t begin = i % n * step, end = begin + step < expert.n_groups() ? begin + step : expert.n_groups();
            multiply(i / n, begin, end);
        }
    }

  private:
    int expert_of(int64_t pair) const {
        return *(const int32_t *)((const char *)ids->data + pair % n_slots * ids->nb[0] + pair / n_slots * ids->nb[1]);
    }

    // Fills `pairs`, sorted by expert, and where each expert's begin. Pairs with no expert of that number come to nothing, as in ggml.
    void sort() {
        for (int64_t e = 0; e <= n_experts; e++) begins[e] = 0;
        for (int64_t p = 0; p < n_pairs; p++)
            if (is_expert(expert_of(p))) begins[expert_of(p) + 1]++;
        for (int64_t e = 0; e < n_experts; e++) begins[e + 1] += begins[e];
        for (int64_t p = 0; p < n_pairs; p++)
            if (is_expert(expert_of(p))) pairs[begins[expert_of(p)]++] = (int32_t)p;
        for (int64_t e = n_experts; e > 0; e--) begins[e] = begins[e - 1];
        begins[0] = 0;
    }
    bool is_expert(int e) const { return e >= 0 && e < n_experts; }

    int64_t n_of(int64_t e) const { return begins[e + 1] - begins[e]; }
    char * activations_of(int64_t e) const { return activations + begins[e] * expert.n_blocks * expert.kernels->activation_bytes; }

    void quantize() const {
        int64_t e = 0;
        for (int64_t i = params->ith; i < begins[n_experts]; i += params->nth) {
            while (begins[e + 1] <= i) e++;
            size_t step;
            char * out = activation_column(expert, activations_of(e), i - begins[e], n_of(e), &step);
            const int64_t slot = pairs[i] % n_slots, token = pairs[i] / n_slots;
            const float * from = (const float *)((const char *)x->data + (x->ne[1] > 1 ? slot : 0) * x->nb[1] + token * x->nb[2]);
            expert.kernels->quantize(from, (int)expert.n_blocks, out, step);
        }
    }

    void multiply(int64_t e, int64_t begin, int64_t end) const {
        const uint8_t * weights = (const uint8_t *)op->src[0]->data + e * expert.bytes();
        multiply_columns(expert, weights, begin, end, activations_of(e), n_of(e), [&](int64_t column) {
            const int64_t pair = pairs[begins[e] + column];
            return (float *)((char *)op->data + pair % n_slots * op->nb[1] + pair / n_slots * op->nb[2]);
        });
    }

    const Ggml & ggml;
    ComputeParams * params;
    ggml_tensor * op;
    const ggml_tensor *x, *ids;
    Packed expert;
    int64_t n_experts, n_slots, n_pairs;
    char * activations;
    int32_t *begins, *pairs;  // begins: n_experts + 1; a pair is token * slots + slot
};

}  // namespace
}  // namespace specllm
