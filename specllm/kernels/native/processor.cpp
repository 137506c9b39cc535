#include "processor.h"

#include <cpuid.h>

namespace specllm {

extern const InstructionSet avx2, avx_vnni, avx512, avx512_vnni;

namespace {

struct Leaf {
    unsigned a, b, c, d;
};

Leaf leaf(unsigned number, unsigned part) {
    Leaf l = {0, 0, 0, 0};
    __get_cpuid_count(number, part, &l.a, &l.b, &l.c, &l.d);
    return l;
}

bool has(unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; }

// Which registers the system saves for threads
unsigned saved_registers() {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

}  // namespace

int instruction_sets(const InstructionSet ** out) {
    const unsigned OSXSAVE = 1u << 27, AVX = 1u << 28, FMA3 = 1u << 12, HALVES = 1u << 29;  // leaf 1, c
    const unsigned YMM = 0x6, ZMM = 0xe6;                                                   // saved registers
    const unsigned AVX2 = 1u << 5;                                                          // leaf 7, b
    const unsigned AVX512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;                      // leaf 7, b: F, DQ, BW, VL
    const unsigned AVX512_VNNI = 1u << 11;                                                  // leaf 7, c
    const unsigned AVX_VNNI = 1u << 4;                                                      // leaf 7 part 1, a
    int n = 0;
    if (!has(leaf(1, 0).c, OSXSAVE | AVX | FMA3 | HALVES)) return 0;
    const unsigned saved = saved_registers();
    const Leaf extended = leaf(7, 0);
    if (!has(saved, YMM) || !has(extended.b, AVX2)) return 0;
    const bool is_wide = has(saved, ZMM) && has(extended.b, AVX512);
    if (is_wide && has(extended.c, AVX512_VNNI)) out[n++] = &avx512_vnni;
    if (extended.a >= 1 && has(leaf(7, 1).a, AVX_VNNI)) out[n++] = &avx_vnni;
    if (is_wide) out[n++] = &avx512;
    out[n++] = &avx2;
    return n;
}

const InstructionSet * find_instruction_set(const char * name) {
    const InstructionSet * sets[MAX_SETS];
    const int n = instruction_sets(sets);
    for (int i = 0; i < n; i++)
        if (!name || !*name || !strcmp(sets[i]->name, name)) return sets[i];
    return nullptr;
}

}  // namespace specllm
