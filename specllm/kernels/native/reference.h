// What reference.cpp gives the tests.
#pragma once
#include "formats.h"

namespace specllm {
namespace reference {

// n activations as int8; returns d, or NaN where one of them is not finite.
float quantize(const float * x, int n, int8_t * q);

// One row of ggml blocks times one activation column.
float multiply(int type, const uint8_t * row, int block_bytes, int block_columns, const float * x, int columns);

struct Attention {
    int type;  // of the cache: F16 or Q8_0
    int head_size;
    const float * query;
    const uint16_t * mask;  // may be null
    const char * keys;
    size_t key_stride;
    const char * values;
    size_t value_stride;
    int64_t n_cells;
    float scale;
};

// One query row over a whole cache.
void attend(const Attention & a, float * out);

}  // namespace reference
}  // namespace specllm
