// FLASH_ATTN_EXT on the attention kernel: which rows and cells each thread takes. The division does not touch any bit of the
// result (attention.h), so it may depend on the number of threads.
#pragma once
#include "attention_sizes.h"
#include "ggml_interface.h"
#include "processor.h"

namespace specllm {
namespace {

struct AttentionShape {
    int head_size, n_tokens, n_heads, n_kv_heads, n_streams;
    int64_t n_cells;

    explicit AttentionShape(const ggml_tensor * op)
        : head_size((int)op->src[0]->ne[0]), n_tokens((int)op->src[0]->ne[1]), n_heads((int)op->src[0]->ne[2]),
          n_kv_heads((int)op->src[1]->ne[2]), n_streams((int)op->src[0]->ne[3]), n_cells(op->src[1]->ne[1]) {}

    int heads_per_kv() const { return n_heads / n_kv_heads; }
    int rows_per_kv() const { return heads_per_kv() * n_tokens; }
    int tasks_per_kv() const { return (rows_per_kv() + ATTENTION_ROWS - 1) / ATTENTION_ROWS; }
    int n_tasks() const { return tasks_per_kv() * n_kv_heads * n_streams; }
    int64_t n_chunks() const { return (n_cells + CHUNK - 1) / CHUNK; }
    int64_t n_rows() const { return (int64_t)n_tokens * n_heads * n_streams; }
    size_t part_floats() const { return PART_HEADER + head_size; }

    // Whether the chunks of a row are shared out too: where there are too few rows to keep all threads busy.
    bool is_split(int n_threads) const { return n_tasks() < 4 * n_threads && n_chunks() > 1; }

    size_t work_bytes(int n_threads) const {
        const size_t shared = is_split(n_threads) ? n_chunks() * n_rows() : 0;
        const size_t own = (size_t)n_threads * 2 * ATTENTION_ROWS;
        return (shared > own ? shared : own) * part_floats() * sizeof(float) + 64;
    }
};

// Plain decoder attention: one mask for all heads, no sinks, ALiBi or capped scores.
inline bool can_attend(const ggml_tensor * op) {
    const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3];
    float params[3];  // scale, max_bias, logit_softcap
    memcpy(params, op->op_params, sizeof(params));
    const bool is_cache = (k->type == GGML_TYPE_F16 && q->ne[0] % 16 == 0) || (k->type == GGML_TYPE_Q8_0 && q->ne[0] % 32 == 0);
    return is_cache && v->type == k->type && q->type == GGML_TYPE_F32 && op->type == GGML_TYPE_F32 && !op->src[4] &&
           params[1] == 0.0f && params[2] == 0.0f && q->ne[0] <= MAX_HEAD && k->ne[0] == q->ne[0] && v->ne[0] == q->ne[0] &&
           k->ne[1] == v->ne[1] && k->ne[2] == v->ne[2] && q->ne[2] % k->ne[2] == 0 && k->ne[3] == q->ne[3] && v->ne[3] == q->ne[3] &&
           q->nb[0] == sizeof(float) && op->nb[0] == sizeof(float) &&
           (!mask || (mask->type == GGML_TYPE_F16 && mask->nb[0] == 2 && mask->ne[2] == 1 && (mask->ne[3] == 1 || mask->ne[3] == q->ne[3])));
}

class AttentionRun {
  public:
    AttentionRun(const InstructionSet & set, const Ggml & ggml, ComputeParams * params, ggml_tensor * op)
        : set(set), ggml(ggml), params(params), op(op), shape(op), work((float *)(((uintptr_t)params->wdata + 63) & ~(uintptr_t)63)) {
        memcpy(&scale, op->op_params, sizeof(scale));
    }

    void run() {
        const bool is_split = shape.is_split(params->nth);
        if (params->ith == 0) ggml.chunk_set(params->threadpool, params->nth);
        ggml.barrier(params->threadpool);
        const int64_t n = shape.n_tasks() * (is_split ? shape.n_chunks() : 1);
        for (int64_t i = params->ith; i < n; i = ggml.chunk_add(params->threadpool, 1)) {
            if (is_split) attend_chunk(i % shape.n_tasks(), i / shape.n_tasks());
            else attend_all(i);
        }
        if (!is_split) return;
        ggml.barrier(params->threadpool);
        for (int64_t row = params->ith; row < shape.n_rows(); row += params->nth) merge_chunks(row);
    }

  private:
    // The rows of one task: rows of all tokens and heads that share a KV head.
    struct Rows {
        int n = 0;
        int64_t id[ATTENTION_ROWS];  // (stream * n_tokens + token) * n_heads + head
        const float * queries[ATTENTION_ROWS];
        const uint16_t * masks[ATTENTION_ROWS];
        const char *keys, *values;
    };

    Rows rows_of(int64_t task) const {
        const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3];
        const int part = (int)(task % shape.tasks_per_kv());
        const int kv = (int)(task / shape.tasks_per_kv() % shape.n_kv_heads);
        const int stream = (int)(task / shape.tasks_per_kv() / shape.n_kv_heads);
        Rows rows;
        rows.keys = (const char *)k->data + kv * k->nb[2] + stream * k->nb[3];
        rows.values = (const char *)v->data + kv * v->nb[2] + stream * v->nb[3];
        const int64_t all = shape.rows_per_kv();
        for (int64_t r = all * part / shape.tasks_per_kv(); r < all * (part + 1) / shape.tasks_per_kv(); r++, rows.n++) {
            const int64_t token = r / shape.heads_per_kv(), head = kv * shape.heads_per_kv() + r % shape.heads_per_kv();
            rows.id[rows.n] = (stream * shape.n_tokens + token) * shape.n_heads + head;
            rows.queries[rows.n] = (const float *)((const char *)q->data + token * q->nb[1] + head * q->nb[2] + stream * q->nb[3]);
            rows.masks[rows.n] = mask ? (const uint16_t *)((const char *)mask->data + token * mask->nb[1] +
                                                           (mask->ne[3] > 1 ? stream * mask->nb[3] : 0))
                                      : nullptr;
        }
        return rows;
    }

    void attend(const Rows & rows, int64_t chunk, float * const * out) const {
        const int64_t end = (chunk + 1) * CHUNK;
        set.attend({rows.n, shape.head_size, rows.queries, rows.masks, rows.keys, op->src[1]->nb[1], rows.values, op->src[2]->nb[1],
                    chunk * CHUNK, end < shape.n_cells ? end : shape.n_cells, scale, out},
                   op->src[1]->type);
    }

    float * shared_part(int64_t chunk, int64_t row) const { return work + (chunk * shape.n_rows() + row) * shape.part_floats(); }

    void attend_chunk(int64_t task, int64_t chunk) const {
        const Rows rows = rows_of(task);
        float * out[ATTENTION_ROWS];
        for (int r = 0; r < rows.n; r++) out[r] = shared_part(chunk, rows.id[r]);
        attend(rows, chunk, out);
    }

    void merge_chunks(int64_t row) const {
        float * merged = shared_part(0, row);
        for (int64_t chunk = 1; chunk < shape.n_chunks(); chunk++) set.merge(merged, shared_part(chunk, row), shape.head_size);
        set.finish(merged, shape.head_size, result(row));
    }

    void attend_all(int64_t task) const {
        const Rows rows = rows_of(task);
        float *merged[ATTENTION_ROWS], *part[ATTENTION_ROWS];
        float * mine = work + (size_t)params->ith * 2 * ATTENTION_ROWS * shape.part_floats();
        for (int r = 0; r < rows.n; r++, mine += 2 * shape.part_floats()) {
            merged[r] = mine;
            part[r] = mine + shape.part_floats();
        }
        attend(rows, 0, merged);
        for (int64_t chunk = 1; chunk < shape.n_chunks(); chunk++) {
            attend(rows, chunk, part);
            for (int r = 0; r < rows.n; r++) set.merge(merged[r], part[r], shape.head_size);
        }
        for (int r = 0; r < rows.n; r++) set.finish(merged[r], shape.head_size, result(rows.id[r]));
    }

    float * result(int64_t row) const {
        const int64_t head = row % shape.n_heads, token = row / shape.n_heads % shape.n_tokens, stream = row / shape.n_heads / shape.n_tokens;
        return (float *)((char *)op->data + head * op->nb[1] + token * op->nb[2] + stream * op->nb[3]);
    }

    const InstructionSet & set;
    const Ggml & ggml;
    ComputeParams * params;
    ggml_tensor * op;
    AttentionShape shape;
    float * work;
    float scale;
};

}  // namespace
}  // namespace specllm
