// The nouns that every file here shares: weight types, activation blocks and the table of kernels of one instruction set.
//
// A weight matrix has `rows` rows (output features) of `cols` weights (input features). It is packed once, when a model is
// loaded, into strips of 16 rows. All instruction sets read the same packed bytes, so what differs between them is speed.
//
//   strip of 16 rows, one block of 256 (or 32) columns:
//
//     64-byte vector:  row 0        row 1        row 2             row 15
//                      k k+1 k+2 k+3 k .. k+3     k .. k+3    ...  k .. k+3      one byte each (or two nibbles in a byte)
//
// Four consecutive columns of one row are one 32-bit lane. The four activations that belong to them are the same for all
// rows: one broadcast of 32 bits serves 16 rows, and the sum of a row never leaves its lane. So no sum crosses lanes, the
// order in which a row's numbers are added does not depend on how many rows or columns are computed together, and vectors
// of 8 lanes (AVX2: half a strip at a time) and of 16 lanes (AVX-512) give the same bits.
//
// Two strips make a group. Their blocks lie in turn, so that the activations of a block, once in the first-level cache,
// serve 32 rows:
//
//     group: [block 0: strip 0, strip 1] [block 1: strip 0, strip 1] ...      (the last group may have one strip)
//
// Blocks of 32 columns are small, so there eight of a strip lie in a row: [blocks 0-7: strip 0, strip 1] ...
//
// Nothing here has external linkage but what kernels.cpp exports: each instruction set compiles these headers in its own
// file with its own flags, and the linker must never take one file's copy of a function for another's.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace specllm {

enum Type : int {  // ggml's numbers
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q5_0 = 6,
    Q8_0 = 8,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    IQ4_NL = 20,
    IQ4_XS = 23,
};

constexpr int STRIP = 16;    // rows
constexpr int GROUP = 2;     // strips
constexpr int MAX_WIDTH = 16;  // activation columns that one kernel call multiplies
constexpr int SUPER = 256;   // columns of a block of the K types

// ------------------------------------------------------------------------------------------------ activations
//
// One block of one activation column as int8: x ~ d * q with |q| <= 127 and d = max|x| / 127. q is never -128, which the
// bounds in the kernels rely on. Blocks are as large as the weight type's own, as in llama.cpp.
//
// The sums serve weights that are stored with an offset: sum (w - c) a = sum w a - c sum a.
//
// What is not a number or infinite makes d NaN, and with it every result that the block takes part in. A block whose largest
// number is below 2^-64 counts as zero; so no product of scales is a denormal number, and results do not depend on how a
// thread's processor treats those.

struct alignas(64) ActivationK {  // 256 columns
    int8_t q[SUPER];
    int16_t minus16_sum16[16];  // -16 * the sum of 16 q: at most 16 * 16 * 127 = 32512
    int16_t sum32[8];           // the sum of 32 q: at most 4064
    float d;
};
static_assert(sizeof(ActivationK) == 320, "a whole number of cache lines");

struct alignas(64) ActivationKOffsets {  // for Q6_K and IQ4_XS
    ActivationK base;
    int32_t start[32];  // Q6_K: -32 * the sum of 8 q, 32 of them; IQ4_XS: -128 * the sum of 32 q, 8 of them
};
static_assert(sizeof(ActivationKOffsets) == 448, "a whole number of cache lines");

struct Activation32 {  // 32 columns
    int8_t q[32];
    float d;
    int32_t start;  // -offset * the sum of q, where the type's weights are stored as w + offset
};
static_assert(sizeof(Activation32) == 40, "no padding");

struct ActivationF32 {  // 32 columns as they are
    float x[32];
};

// ------------------------------------------------------------------------------------------------ kernels
//
// Multiplies the packed blocks of a group with `width` activation columns. `activations` holds [block][column]; column c of
// the result goes to out + c * stride, n_strips * 16 floats.
typedef void (*GroupKernel)(const uint8_t * weights, const void * activations, int n_blocks, int n_strips, float * out, size_t stride);

// Writes the blocks of one activation column. `step` is the distance in bytes from one block to the next.
typedef void (*Quantizer)(const float * x, int n_blocks, void * out, size_t step);

// Packs one block of each of 16 rows.
typedef void (*Packer)(const uint8_t * const * rows, uint8_t * out);

struct TypeKernels {
    Type type;
    int block_columns;            // of a weight block and an activation block
    int block_bytes;              // of a weight block of one row in ggml's format
    int strip_bytes;              // of the packed blocks of 16 rows
    int activation_bytes;         // of a block of one activation column
    int run;                      // blocks of a strip that lie in a row (matrix.h)
    Packer pack;
    Quantizer quantize;
    GroupKernel multiply[MAX_WIDTH + 1];  // by width; null where there is none (matrix.h)
};

// A part of the attention of one KV head: `n_rows` query rows against the cells `begin` to `end` of one chunk. Every pointer
// is to one row. See attention.h.
struct AttentionTask {
    int n_rows;
    int head_size;
    const float * const * queries;
    const uint16_t * const * masks;  // f16, added to the scores; a null pointer: nothing is masked
    const char * keys;
    size_t key_stride;  // bytes from one cell to the next
    const char * values;
    size_t value_stride;
    int64_t begin, end;
    float scale;
    float * const * out;  // [largest score, sum of weights, 6 unused, weighted sum of values]
};

struct InstructionSet {
    const char * name;
    const TypeKernels * (*kernels)(int type);  // null where the type has none
    void (*attend)(const AttentionTask & task, int kv_type);
    void (*merge)(float * into, const float * part, int head_size);
    void (*finish)(const float * merged, int head_size, float * out);
};

// ------------------------------------------------------------------------------------------------ small things

namespace {

inline uint16_t read16(const uint8_t * p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}
inline uint32_t read32(const uint8_t * p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
inline void write32(uint8_t * p, uint32_t v) { memcpy(p, &v, 4); }

}  // namespace
}  // namespace specllm
