// The same arithmetic in plain C++, one number after the other, from ggml's own blocks: what every kernel is tested against.
// Nothing here knows the packed layout.
#include "reference.h"

#include <math.h>

namespace specllm {
namespace reference {
namespace {

float half(uint16_t h) {
    const int sign = h >> 15, exponent = h >> 10 & 31, fraction = h & 1023;
    const float value = exponent == 31 ? (fraction ? NAN : INFINITY)
                      : exponent ? ldexpf((float)(1024 + fraction), exponent - 25)
                                 : ldexpf((float)fraction, -24);
    return sign ? -value : value;
}

float half_at(const uint8_t * p) { return half((uint16_t)(p[0] | p[1] << 8)); }

int signed_byte(uint8_t b) { return b < 128 ? b : b - 256; }

const int IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// A block as integers: w[k] = d * scale[k] * q[k] - dmin * min[k]
struct Block {
    float d = 0, dmin = 0;
    bool has_mins = false;
    int q[256], scale[256], min[256];
};

void scale_and_min(const uint8_t * b, int j, int * scale, int * min) {
    if (j < 4) {
        *scale = b[j] & 63;
        *min = b[j + 4] & 63;
    } else {
        *scale = (b[j + 4] & 15) | (b[j - 4] >> 6) << 4;
        *min = (b[j + 4] >> 4) | (b[j] >> 6) << 4;
    }
}

Block decode(int type, const uint8_t * b) {
    Block o;
    for (int k = 0; k < 256; k++) o.scale[k] = 1, o.min[k] = 0;
    switch (type) {
        case Q4_0:
        case IQ4_NL:
            o.d = half_at(b);
            for (int k = 0; k < 32; k++) {
                const int nibble = k < 16 ? b[2 + k] & 15 : b[2 + k - 16] >> 4;
                o.q[k] = type == Q4_0 ? nibble - 8 : IQ4[nibble];
            }
            break;
        case Q5_0:
            o.d = half_at(b);
            for (int k = 0; k < 32; k++) {
                const int nibble = k < 16 ? b[6 + k] & 15 : b[6 + k - 16] >> 4;
                o.q[k] = (nibble | (b[2 + k / 8] >> (k % 8) & 1) << 4) - 16;
            }
            break;
        case Q8_0:
            o.d = half_at(b);
            for (int k = 0; k < 32; k++) o.q[k] = signed_byte(b[2 + k]);
            break;
        case Q4_K:
        case Q5_K:
            o.d = half_at(b);
            o.dmin = half_at(b + 2);
            o.has_mins = true;
            for (int k = 0; k < 256; k++) {
                const int j = k / 32;
                scale_and_min(b + 4, j, &o.scale[k], &o.min[k]);
                const uint8_t byte = b[(type == Q4_K ? 16 : 48) + j / 2 * 32 + k % 32];
                o.q[k] = j % 2 ? byte >> 4 : byte & 15;
                if (type == Q5_K) o.q[k] |= (b[16 + k % 32] >> j & 1) << 4;
            }
            break;
        case Q6_K:
            o.d = half_at(b + 208);
            for (int k = 0; k < 256; k++) {
                const int of_128 = k % 128, quarter = of_128 / 32, l = k % 32;
                const uint8_t low = b[k / 128 * 64 + (quarter % 2) * 32 + l];
                const int upper = b[128 + k / 128 * 32 + l] >> (2 * quarter) & 3;
                o.q[k] = ((quarter < 2 ? low & 15 : low >> 4) | upper << 4) - 32;
                o.scale[k] = signed_byte(b[192 + k / 16]);
            }
            break;
        case IQ4_XS:
            o.d = half_at(b);
            for (int k = 0; k < 256; k++) {
                const int j = k / 32;
                const uint8_t byte = b[8 + j * 16 + k % 16];
                o.q[k] = IQ4[k % 32 < 16 ? byte & 15 : byte >> 4];
                o.scale[k] = ((b[4 + j / 2] >> 4 * (j % 2) & 15) | (b[2 + j / 4] >> 2 * (j % 4) & 3) << 4) - 32;
            }
            break;
    }
    return o;
}

float float_at(int type, const uint8_t * row, int k) {
    if (type == F16) return half_at(row + 2 * k);
    float value;
    memcpy(&value, row + 4 * k, 4);
    return value;
}

float multiply_floats(int type, const uint8_t * row, const float * x, int n) {
    float sum = 0;
    for (int b = 0; b < n; b += 32) {
        float s[4] = {0, 0, 0, 0};
        for (int k = 0; k < 32; k++) s[k % 4] = fmaf(float_at(type, row, b + k), x[b + k], s[k % 4]);
        sum += (s[0] + s[1]) + (s[2] + s[3]);
    }
    return sum;
}

}  // namespace

float quantize(const float * x, int n, int8_t * q) {
    float largest = 0;
    for (int k = 0; k < n; k++) {
        if (!isfinite(x[k])) {
            memset(q, 0, n);
            return NAN;
        }
        if (fabsf(x[k]) > largest) largest = fabsf(x[k]);
    }
    memset(q, 0, n);
    if (largest < ldexpf(1.0f, -64)) return 0.0f;
    for (int k = 0; k < n; k++) q[k] = (int8_t)lrintf(x[k] * (127.0f / largest));
    return largest / 127.0f;
}

float multiply(int type, const uint8_t * row, int block_bytes, int block_columns, const float * x, int columns) {
    if (type == F16 || type == F32) return multiply_floats(type, row, x, columns);
    float result = 0;
    for (int begin = 0; begin < columns; begin += block_columns, row += block_bytes) {
        const Block w = decode(type, row);
        int8_t q[256];
        const float d = quantize(x + begin, block_columns, q);
        int64_t sum = 0, least = 0;
        for (int k = 0; k < block_columns; k++) {
            sum += (int64_t)w.scale[k] * w.q[k] * q[k];
            least += (int64_t)w.min[k] * q[k];
        }
        result = fmaf((float)sum, w.d * d, result);
        if (w.has_mins) result = fmaf(-(float)least, w.dmin * d, result);
    }
    return result;
}

namespace {

// e^x for x <= 0 by the steps of attention.h
float exp_of(float x) {
    if (!(x >= -87.0f)) return 0.0f;
    const float n = nearbyintf(x * 1.44269504f);
    float r = fmaf(-n, 0.693359375f, x);
    r = fmaf(-n, -2.12194440e-4f, r);
    float p = 1.0f / 720;
    p = fmaf(p, r, 1.0f / 120);
    p = fmaf(p, r, 1.0f / 24);
    p = fmaf(p, r, 1.0f / 6);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return ldexpf(p, (int)n);
}

float number(int type, const char * cell, int d) {
    const uint8_t * p = (const uint8_t *)cell;
    if (type == F16) return half_at(p + 2 * d);
    return half_at(p + d / 32 * 34) * (float)signed_byte(p[d / 32 * 34 + 2 + d % 32]);
}

struct Part {
    float M = -INFINITY, S = 0;
    float sums[512] = {};
};

Part attend_chunk(const Attention & a, int64_t begin, int64_t end) {
    Part part;
    const int D = a.head_size;
    for (int64_t block = begin; block < end; block += 32) {
        float s[32], largest = -INFINITY;
        for (int j = 0; j < 32; j++) {
            const int64_t cell = block + j;
            s[j] = -INFINITY;
            if (cell >= end) continue;
            const float mask = a.mask ? half(a.mask[cell]) : 0.0f;
            if (mask == -INFINITY) continue;
            float score = 0;
            for (int d = 0; d < D; d++) score = fmaf(a.query[d], number(a.type, a.keys + cell * a.key_stride, d), score);
            s[j] = fmaf(score, a.scale, mask);
            if (s[j] > largest) largest = s[j];
        }
        if (largest == -INFINITY) continue;
        if (largest > part.M) {
            const float shrink = part.M == -INFINITY ? 0.0f : exp_of(part.M - largest);
            for (int d = 0; d < D; d++) part.sums[d] *= shrink;
            part.S *= shrink;
            part.M = largest;
        }
        for (int j = 0; j < 32; j++) s[j] = exp_of(s[j] - part.M);
        float t[8];
        for (int j = 0; j < 8; j++) t[j] = (s[j] + s[j + 16]) + (s[j + 8] + s[j + 24]);
        for (int j = 0; j < 4; j++) t[j] += t[j + 4];
        part.S += (t[0] + t[2]) + (t[1] + t[3]);
        for (int j = 0; j < 32; j++) {
            if (s[j] == 0.0f) continue;
            for (int d = 0; d < D; d++)
                part.sums[d] = fmaf(s[j], number(a.type, a.values + (block + j) * a.value_stride, d), part.sums[d]);
        }
    }
    return part;
}

}  // namespace

void attend(const Attention & a, float * out) {
    Part all;
    for (int64_t begin = 0; begin < a.n_cells; begin += 256) {
        const Part part = attend_chunk(a, begin, begin + 256 < a.n_cells ? begin + 256 : a.n_cells);
        if (part.M == -INFINITY) continue;
        float keep = 1, take = 1;
        if (part.M > all.M) {
            keep = all.M == -INFINITY ? 0.0f : exp_of(all.M - part.M);
            all.M = part.M;
        } else {
            take = exp_of(part.M - all.M);
        }
        all.S = fmaf(take, part.S, keep * all.S);
        for (int d = 0; d < a.head_size; d++) all.sums[d] = fmaf(take, part.sums[d], keep * all.sums[d]);
    }
    const float by = all.S > 0 ? 1.0f / all.S : 0.0f;
    for (int d = 0; d < a.head_size; d++) out[d] = all.sums[d] * by;
}

}  // namespace reference
}  // namespace specllm
