// Whole matrices: where the blocks of a packed matrix lie, and how a column tile of activations is multiplied with a range of
// its groups.
#pragma once
#include "formats.h"

namespace specllm {
namespace {

struct Packed {
    const TypeKernels * kernels;
    int64_t rows;
    int64_t n_blocks;  // in a row

    int64_t n_strips() const { return (rows + STRIP - 1) / STRIP; }
    int64_t n_groups() const { return (n_strips() + GROUP - 1) / GROUP; }
    size_t strip_bytes() const { return (size_t)kernels->strip_bytes * n_blocks; }
    size_t group_bytes() const { return GROUP * strip_bytes(); }
    size_t bytes() const { return n_strips() * strip_bytes(); }
    int strips_in(int64_t group) const {
        const int64_t left = n_strips() - group * GROUP;
        return left < GROUP ? (int)left : GROUP;
    }
};

// Packs groups `begin` to `end`; `src` and `out` are the whole matrix. Rows that the last strip lacks are zeros.
inline void pack_groups(const Packed & m, const uint8_t * src, uint8_t * out, int64_t begin, int64_t end) {
    static const uint8_t nothing[256] = {};
    const size_t row_bytes = (size_t)m.kernels->block_bytes * m.n_blocks;
    out += begin * m.group_bytes();
    for (int64_t group = begin; group < end; group++) {
        const int n_strips = m.strips_in(group);
        for (int64_t run = 0; run < m.n_blocks; run += m.kernels->run) {
            const int64_t n = m.n_blocks - run < m.kernels->run ? m.n_blocks - run : m.kernels->run;
            for (int s = 0; s < n_strips; s++) {
                const int64_t first = (group * GROUP + s) * STRIP;
                for (int64_t b = run; b < run + n; b++, out += m.kernels->strip_bytes) {
                    const uint8_t * rows[STRIP];
                    for (int r = 0; r < STRIP; r++)
                        rows[r] = first + r < m.rows ? src + (first + r) * row_bytes + b * m.kernels->block_bytes : nothing;
                    m.kernels->pack(rows, out);
                }
            }
        }
    }
}

// Columns are multiplied in tiles of up to MAX_WIDTH. There are kernels for nine widths; another one is two tiles.
struct Tile {
    int64_t begin;
    int width;
};

inline Tile tile_at(int64_t column, int64_t n) {
    static const int8_t first[MAX_WIDTH + 1] = {0, 1, 2, 3, 4, 5, 6, 4, 8, 5, 6, 6, 12, 8, 8, 12, 16};
    const int64_t begin = column / MAX_WIDTH * MAX_WIDTH;
    const int left = n - begin < MAX_WIDTH ? (int)(n - begin) : MAX_WIDTH;
    const int width = first[left];
    return column < begin + width ? Tile{begin, width} : Tile{begin + width, left - width};
}

// Where the blocks of a column begin in the activations, tile after tile, each [block][column of the tile]. `step` is the
// distance between two blocks.
inline char * activation_column(const Packed & m, void * activations, int64_t column, int64_t n, size_t * step) {
    const Tile tile = tile_at(column, n);
    *step = (size_t)m.kernels->activation_bytes * tile.width;
    return (char *)activations + m.kernels->activation_bytes * (tile.begin * m.n_blocks + (column - tile.begin));
}

// Multiplies groups `begin` to `end` with a tile of `width` columns. Column c of the result begins at columns[c].
inline void multiply_tile(const Packed & m, const uint8_t * weights, int64_t begin, int64_t end, const void * activations, int width,
                          float * const * columns) {
    bool is_even = true;  // all columns are equally far apart, so that the kernel can write them itself
    const ptrdiff_t stride = width > 1 ? columns[1] - columns[0] : 0;
    for (int c = 1; c < width; c++) is_even &= columns[c] - columns[c - 1] == stride;
    for (int64_t group = begin; group < end; group++) {
        const int n_strips = m.strips_in(group);
        const int64_t row = group * GROUP * STRIP;
        const uint8_t * w = weights + group * m.group_bytes();
        if (is_even && stride >= 0 && row + n_strips * STRIP <= m.rows) {
            m.kernels->multiply[width](w, activations, (int)m.n_blocks, n_strips, columns[0] + row, (size_t)stride);
            continue;
        }
        float out[MAX_WIDTH][GROUP * STRIP];
        m.kernels->multiply[width](w, activations, (int)m.n_blocks, n_strips, out[0], GROUP * STRIP);
        const int64_t n = m.rows - row < n_strips * STRIP ? m.rows - row : n_strips * STRIP;
        for (int c = 0; c < width; c++) memcpy(columns[c] + row, out[c], n * sizeof(float));
    }
}

// The same with all `n` columns of `activations`, tile after tile; column c of the result begins at result(c).
template <class Result>
inline void multiply_columns(const Packed & m, const uint8_t * weights, int64_t begin, int64_t end, const char * activations, int64_t n,
                             Result result) {
    for (int64_t column = 0; column < n;) {
        const Tile tile = tile_at(column, n);
        float * columns[MAX_WIDTH];
        for (int c = 0; c < tile.width; c++) columns[c] = result(column + c);
        multiply_tile(m, weights, begin, end, activations + m.kernels->activation_bytes * m.n_blocks * column, tile.width, columns);
        column += tile.width;
    }
}

// How many groups a thread takes at once of a product with `n` columns: so few that the threads end together, and that several
// tiles of columns find the rows in the second-level cache.
inline int64_t groups_at_once(const Packed & m, int64_t n, int n_threads) {
    const int64_t cache = (n > MAX_WIDTH ? 256 : 1024) * 1024 / (int64_t)m.group_bytes();
    int64_t step = (m.n_groups() + n_threads * 8 - 1) / (n_threads * 8);
    if (step > cache) step = cache;
    return step < 1 ? 1 : step;
}

}  // namespace
}  // namespace specllm
