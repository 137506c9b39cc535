// C functions for tests/kernels: single kernels on plain arrays, without ggml. Types are ggml's numbers; a set is a place in
// the list of instruction sets that run here.
#include <emmintrin.h>
#include <stdlib.h>

#include "attention_sizes.h"
#include "matrix.h"
#include "processor.h"
#include "reference.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace specllm;

namespace {

const InstructionSet * set_at(int place) {
    const InstructionSet * sets[MAX_SETS];
    return place >= 0 && place < instruction_sets(sets) ? sets[place] : nullptr;
}

Packed matrix(int set, int type, int64_t rows, int64_t columns) {
    const TypeKernels * kernels = set_at(set)->kernels(type);
    return {kernels, rows, columns / kernels->block_columns};
}

}  // namespace

// The name of an instruction set that runs here; null after the last.
EXPORT const char * specllm_set_name(int set) { return set_at(set) ? set_at(set)->name : nullptr; }

// Columns and bytes of a block of this type; false where there are no kernels for it.
EXPORT bool specllm_type(int set, int type, int * block_columns, int * block_bytes) {
    const TypeKernels * kernels = set_at(set)->kernels(type);
    if (!kernels) return false;
    *block_columns = kernels->block_columns;
    *block_bytes = kernels->block_bytes;
    return true;
}

EXPORT size_t specllm_packed_bytes(int set, int type, int64_t rows, int64_t columns) { return matrix(set, type, rows, columns).bytes(); }

EXPORT void specllm_pack(int set, int type, const uint8_t * src, int64_t rows, int64_t columns, uint8_t * out) {
    const Packed m = matrix(set, type, rows, columns);
    pack_groups(m, src, out, 0, m.n_groups());
}

// x: (n, columns), out: (n, rows)
EXPORT void specllm_multiply(int set, int type, const uint8_t * packed, int64_t rows, int64_t columns, const float * x, int64_t n, float * out) {
    const Packed m = matrix(set, type, rows, columns);
    void * activations = aligned_alloc(64, (size_t)(m.kernels->activation_bytes * m.n_blocks * n + 63) / 64 * 64);
    for (int64_t c = 0; c < n; c++) {
        size_t step;
        char * column = activation_column(m, activations, c, n, &step);
        m.kernels->quantize(x + c * columns, (int)m.n_blocks, column, step);
    }
    multiply_columns(m, packed, 0, m.n_groups(), (const char *)activations, n, [&](int64_t c) { return out + c * rows; });
    free(activations);
}

// From ggml's blocks. x: (n, columns), out: (n, rows)
EXPORT void specllm_reference_multiply(int type, const uint8_t * src, int block_bytes, int block_columns, int64_t rows, int64_t columns,
                                       const float * x, int64_t n, float * out) {
    const size_t row_bytes = (size_t)(columns / block_columns) * block_bytes;
    for (int64_t c = 0; c < n; c++)
        for (int64_t r = 0; r < rows; r++)
            out[c * rows + r] = reference::multiply(type, src + r * row_bytes, block_bytes, block_columns, x + c * columns, (int)columns);
}

// One KV head. queries: (n_rows, head_size), masks: (n_rows, n_cells) or null, out: (n_rows, head_size); at most
// ATTENTION_ROWS rows
EXPORT void specllm_attend(int set, int type, int n_rows, int head_size, const float * queries, const uint16_t * masks,
                           const char * keys, size_t key_stride, const char * values, size_t value_stride, int64_t n_cells,
                           float scale, float * out) {
    const size_t size = PART_HEADER + head_size;
    float * part = (float *)calloc(2 * n_rows * size, sizeof(float));
    float * merged = part + n_rows * size;
    const float * q[ATTENTION_ROWS];
    const uint16_t * m[ATTENTION_ROWS];
    float * o[ATTENTION_ROWS];
    for (int r = 0; r < n_rows; r++) {
        q[r] = queries + (size_t)r * head_size;
        m[r] = masks ? masks + r * n_cells : nullptr;
        o[r] = part + r * size;
        merged[r * size] = -__builtin_inff();
    }
    for (int64_t begin = 0; begin < n_cells; begin += CHUNK) {
        const int64_t end = begin + CHUNK < n_cells ? begin + CHUNK : n_cells;
        set_at(set)->attend({n_rows, head_size, q, m, keys, key_stride, values, value_stride, begin, end, scale, o}, type);
        for (int r = 0; r < n_rows; r++) set_at(set)->merge(merged + r * size, o[r], head_size);
    }
    for (int r = 0; r < n_rows; r++) set_at(set)->finish(merged + r * size, head_size, out + (size_t)r * head_size);
    free(part);
}

EXPORT void specllm_reference_attend(int type, int n_rows, int head_size, const float * queries, const uint16_t * masks, const char * keys,
                                     size_t key_stride, const char * values, size_t value_stride, int64_t n_cells, float scale, float * out) {
    for (int r = 0; r < n_rows; r++)
        reference::attend({type, head_size, queries + (size_t)r * head_size, masks ? masks + r * n_cells : nullptr, keys, key_stride,
                           values, value_stride, n_cells, scale}, out + (size_t)r * head_size);
}

// Reads n bytes (a multiple of 64) and does nothing else: the yardstick for a product with one column.
EXPORT uint64_t specllm_read(const uint8_t * p, size_t n) {
    __m128i sum[4] = {_mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128()};
    for (size_t i = 0; i < n; i += 64)
        for (int k = 0; k < 4; k++) sum[k] = _mm_add_epi64(sum[k], _mm_loadu_si128((const __m128i *)(p + i + 16 * k)));
    sum[0] = _mm_add_epi64(_mm_add_epi64(sum[0], sum[1]), _mm_add_epi64(sum[2], sum[3]));
    return (uint64_t)_mm_cvtsi128_si64(sum[0]);
}
