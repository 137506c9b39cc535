// Attention of query rows that share a KV head, with the same bits for a row whatever other rows, threads or instruction
// sets it is computed with.
//
//   score(cell)  = sum_d q[d] k[cell][d], by fused multiply-add from d = 0 on;   s = fma(score, scale, mask)
//   weight(cell) = e^(s - M), M the largest s so far                              (softmax, online)
//   out[d]       = sum over cells, by fused multiply-add from the first cell on;  divided by S = sum of weights at the end
//
// Cells are walked in blocks of 32 and in chunks of 256 that begin at multiples of 256:
//
//     cells  0       32      64            256
//            | block | block | ...         | chunk 1 ...      attend(): one chunk -> [M, S, -, out]
//            | chunk 0                     |                  merge(): chunk by chunk, in order; finish(): out / S
//
// A chunk's result depends on its cells alone, and merging runs in order: so it makes no difference whether one thread takes
// all chunks of a row or several share them. In a block, scores have one lane per cell (the keys are transposed) and sums
// over cells one lane per d: no sum crosses lanes but that of the 32 weights, which has one fixed tree.
#pragma once
#include <math.h>

#include "attention_sizes.h"
#include "vectors.h"

namespace specllm {

namespace {

#ifdef __AVX512BW__
typedef V512 AttentionVector;
#else
typedef V256 AttentionVector;
#endif

// e^x for x <= 0; below -87 exactly 0. Relative error below 2e-7: x = n ln 2 + r, |r| <= 0.35, Taylor to r^6.
template <class V>
SPECLLM_INLINE typename V::F exp_of(typename V::F x);

template <>
SPECLLM_INLINE __m256 exp_of<V256>(__m256 x) {
    const __m256 dead = _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_NGE_UQ);
    x = _mm256_max_ps(x, _mm256_set1_ps(-87.0f));
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.0f / 720);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(dead, _mm256_mul_ps(p, _mm256_castsi256_ps(power)));
}

#ifdef __AVX512BW__
template <>
SPECLLM_INLINE __m512 exp_of<V512>(__m512 x) {
    const __mmask16 alive = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_GE_OQ);
    x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.0f / 720);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    const __m512i power = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
    return _mm512_maskz_mul_ps(alive, p, _mm512_castsi512_ps(power));
}
#endif

inline float exp_of_one(float x) { return _mm256_cvtss_f32(exp_of<V256>(_mm256_set1_ps(x))); }

// Eight numbers of a cell from column d on, as floats
template <int TYPE>
SPECLLM_INLINE __m256 load8(const char * cell, int d) {
    if constexpr (TYPE == F16) {
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(cell + 2 * d)));
    } else {
        static_assert(TYPE == Q8_0, "a cache type");
        const char * block = cell + d / 32 * 34;
        const __m256 scale = _mm256_cvtph_ps(_mm_set1_epi16((short)read16((const uint8_t *)block)));
        const __m256i q = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(block + 2 + d % 32)));
        return _mm256_mul_ps(scale, _mm256_cvtepi32_ps(q));
    }
}

SPECLLM_INLINE void transpose8(__m256 * r) {
    __m256 t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    __m256 u[8];
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

// A block of the cache: keys as [d][cell], values as [cell][d]. Missing cells repeat the last one; their mask hides them.
template <int TYPE>
void read_block(const AttentionTask & task, int64_t begin, int n_cells, float * keys, float * values, bool * are_values_finite) {
    const int D = task.head_size;
    __m256 extreme = _mm256_setzero_ps();  // becomes NaN where a value is infinite or not a number
    for (int group = 0; group < CELLS; group += 8) {
        const char *k[8], *v[8];
        for (int j = 0; j < 8; j++) {
            const int cell = group + j < n_cells ? group + j : n_cells - 1;
            k[j] = task.keys + (begin + cell) * task.key_stride;
            v[j] = task.values + (begin + cell) * task.value_stride;
        }
        for (int d = 0; d < D; d += 8) {
            __m256 r[8];
            SPECLLM_UNROLL
            for (int j = 0; j < 8; j++) r[j] = load8<TYPE>(k[j], d);
            transpose8(r);
            SPECLLM_UNROLL
            for (int j = 0; j < 8; j++) _mm256_store_ps(keys + (d + j) * CELLS + group, r[j]);
            SPECLLM_UNROLL
            for (int j = 0; j < 8; j++) {
                const __m256 x = load8<TYPE>(v[j], d);
                _mm256_store_ps(values + (group + j) * D + d, x);
                extreme = _mm256_fmadd_ps(x, _mm256_setzero_ps(), extreme);
            }
        }
    }
    *are_values_finite = _mm256_movemask_ps(_mm256_cmp_ps(extreme, extreme, _CMP_UNORD_Q)) == 0;
}

// The masks of a block's cells for one row as floats; returns whether any cell is seen.
SPECLLM_INLINE bool read_mask(const uint16_t * mask, int64_t begin, int n_cells, float * out) {
    const __m128i hidden = _mm_set1_epi16((short)0xfc00);
    bool is_any_seen = false;
    for (int j = 0; j < CELLS; j += 8) {
        __m128i m = _mm_setzero_si128();
        if (j + 8 <= n_cells) {
            if (mask) m = _mm_loadu_si128((const __m128i *)(mask + begin + j));
        } else {
            uint16_t part[8];
            for (int i = 0; i < 8; i++) part[i] = j + i >= n_cells ? 0xfc00 : mask ? mask[begin + j + i] : 0;
            m = _mm_loadu_si128((const __m128i *)part);
        }
        is_any_seen |= _mm_movemask_epi8(_mm_cmpeq_epi16(m, hidden)) != 0xffff;
        _mm256_store_ps(out + j, _mm256_cvtph_ps(m));
    }
    return is_any_seen;
}

// scores[row][cell] for ROWS rows: two vectors of cells and ROWS rows are in work at a time
template <class V, int ROWS>
SPECLLM_INLINE void score_rows(const float * const * queries, const float * keys, int D, float scale, float (*scores)[CELLS]) {
    typedef typename V::F F;
    for (int cell = 0; cell < CELLS; cell += 2 * V::LANES) {
        F s[ROWS][2];
        SPECLLM_UNROLL
        for (int r = 0; r < ROWS; r++) s[r][0] = s[r][1] = V::zero_f();
        for (int d = 0; d < D; d++) {
            const F k0 = V::load_f(keys + d * CELLS + cell), k1 = V::load_f(keys + d * CELLS + cell + V::LANES);
            SPECLLM_UNROLL
            for (int r = 0; r < ROWS; r++) {
                const F q = V::all_f(queries[r][d]);
                s[r][0] = V::fma(q, k0, s[r][0]);
                s[r][1] = V::fma(q, k1, s[r][1]);
            }
        }
        SPECLLM_UNROLL
        for (int r = 0; r < ROWS; r++) {  // scores holds the masks so far; a hidden cell stays hidden whatever its key is
            for (int i = 0; i < 2; i++) {
                float * const at = scores[r] + cell + i * V::LANES;
                const F mask = V::load_f(at);
                V::store(at, V::hide(V::fma(s[r][i], V::all_f(scale), mask), mask));
            }
        }
    }
}

// Scores to weights; M and S of the row go on. False where the row sees none of these cells.
SPECLLM_INLINE bool soften(float * scores, float * M, float * S, float * out, int D) {
    __m256 y[4];
    for (int i = 0; i < 4; i++) y[i] = _mm256_load_ps(scores + 8 * i);
    const __m256 m8 = _mm256_max_ps(_mm256_max_ps(y[0], y[1]), _mm256_max_ps(y[2], y[3]));
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    const float largest = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
    if (largest == -INFINITY) return false;
    if (largest > *M) {
        if (*M != -INFINITY) {
            const float shrink = exp_of_one(*M - largest);
            const __m256 by = _mm256_set1_ps(shrink);
            for (int d = 0; d < D; d += 8) _mm256_storeu_ps(out + d, _mm256_mul_ps(_mm256_loadu_ps(out + d), by));
            *S *= shrink;
        }
        *M = largest;
    }
    const __m256 most = _mm256_set1_ps(*M);
    for (int i = 0; i < 4; i++) {
        y[i] = exp_of<V256>(_mm256_sub_ps(y[i], most));
        _mm256_store_ps(scores + 8 * i, y[i]);
    }
    const __m256 t = _mm256_add_ps(_mm256_add_ps(y[0], y[2]), _mm256_add_ps(y[1], y[3]));
    __m128 u = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    u = _mm_add_ps(u, _mm_movehl_ps(u, u));
    *S += _mm_cvtss_f32(_mm_add_ss(u, _mm_movehdup_ps(u)));
    return true;
}

// out[d] += sum over the cells of weight * value, for ROWS rows; N vectors of d are in work at a time
template <class V, int ROWS, int N>
SPECLLM_INLINE void weigh_columns(const float (*weights)[CELLS], const float * values, int D, int d, float * const * out) {
    typedef typename V::F F;
    F s[ROWS][N];
    SPECLLM_UNROLL
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < N; i++) s[r][i] = V::load_f(out[r] + d + i * V::LANES);
    for (int cell = 0; cell < CELLS; cell++) {
        F v[N];
        for (int i = 0; i < N; i++) v[i] = V::load_f(values + cell * D + d + i * V::LANES);
        SPECLLM_UNROLL
        for (int r = 0; r < ROWS; r++) {
            const F p = V::all_f(weights[r][cell]);
            for (int i = 0; i < N; i++) s[r][i] = V::fma(p, v[i], s[r][i]);
        }
    }
    SPECLLM_UNROLL
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < N; i++) V::store(out[r] + d + i * V::LANES, s[r][i]);
}

template <class V, int ROWS>
SPECLLM_INLINE void weigh_rows(const float (*weights)[CELLS], const float * values, int D, float * const * out) {
    int d = 0;
    for (; d + 2 * V::LANES <= D; d += 2 * V::LANES) weigh_columns<V, ROWS, 2>(weights, values, D, d, out);
    for (; d < D; d += V::LANES) weigh_columns<V, ROWS, 1>(weights, values, D, d, out);
}

// The same where a value is infinite or not a number: cells of weight 0 have no part in it.
inline void weigh_row_with_care(const float * weights, const float * values, int D, float * out) {
    for (int cell = 0; cell < CELLS; cell++) {
        if (weights[cell] == 0.0f) continue;
        const __m256 p = _mm256_set1_ps(weights[cell]);
        for (int d = 0; d < D; d += 8)
            _mm256_storeu_ps(out + d, _mm256_fmadd_ps(p, _mm256_loadu_ps(values + cell * D + d), _mm256_loadu_ps(out + d)));
    }
}

template <int TYPE>
void attend_to(const AttentionTask & task) {
    typedef AttentionVector V;
    const int D = task.head_size, n = task.n_rows;
    alignas(64) float keys[MAX_HEAD * CELLS], values[CELLS * MAX_HEAD], scores[ATTENTION_ROWS][CELLS];
    float M[ATTENTION_ROWS], S[ATTENTION_ROWS];
    float * out[ATTENTION_ROWS];
    for (int r = 0; r < n; r++) {
        M[r] = -INFINITY;
        S[r] = 0.0f;
        out[r] = task.out[r] + PART_HEADER;
        memset(out[r], 0, D * sizeof(float));
    }
    for (int64_t begin = task.begin; begin < task.end; begin += CELLS) {
        const int n_cells = task.end - begin < CELLS ? (int)(task.end - begin) : CELLS;
        bool is_seen = false;
        for (int r = 0; r < n; r++) is_seen |= read_mask(task.masks[r], begin, n_cells, scores[r]);
        if (!is_seen) continue;
        bool are_values_finite;
        read_block<TYPE>(task, begin, n_cells, keys, values, &are_values_finite);
        int r = 0;
        for (; r + 4 <= n; r += 4) score_rows<V, 4>(task.queries + r, keys, D, task.scale, scores + r);
        if (n - r == 3) score_rows<V, 3>(task.queries + r, keys, D, task.scale, scores + r);
        if (n - r == 2) score_rows<V, 2>(task.queries + r, keys, D, task.scale, scores + r);
        if (n - r == 1) score_rows<V, 1>(task.queries + r, keys, D, task.scale, scores + r);
        for (r = 0; r < n; r++)
            if (!soften(scores[r], &M[r], &S[r], out[r], D)) memset(scores[r], 0, sizeof(scores[r]));
        if (!are_values_finite) {
            for (r = 0; r < n; r++) weigh_row_with_care(scores[r], values, D, out[r]);
            continue;
        }
        for (r = 0; r + 4 <= n; r += 4) weigh_rows<V, 4>(scores + r, values, D, out + r);
        if (n - r == 3) weigh_rows<V, 3>(scores + r, values, D, out + r);
        if (n - r == 2) weigh_rows<V, 2>(scores + r, values, D, out + r);
        if (n - r == 1) weigh_rows<V, 1>(scores + r, values, D, out + r);
    }
    for (int r = 0; r < n; r++) {
        task.out[r][0] = M[r];
        task.out[r][1] = S[r];
    }
}

void attend(const AttentionTask & task, int kv_type) {
    if (kv_type == F16) attend_to<F16>(task);
    else attend_to<Q8_0>(task);
}

// Adds the part of the next chunk to what was merged so far. Parts without a seen cell change nothing.
void merge(float * into, const float * part, int D) {
    if (part[0] == -INFINITY) return;
    float keep = 1.0f, take = 1.0f;
    if (part[0] > into[0]) {
        keep = into[0] == -INFINITY ? 0.0f : exp_of_one(into[0] - part[0]);
        into[0] = part[0];
    } else {
        take = exp_of_one(part[0] - into[0]);
    }
    into[1] = fmaf(take, part[1], keep * into[1]);
    const __m256 k = _mm256_set1_ps(keep), t = _mm256_set1_ps(take);
    for (int d = PART_HEADER; d < PART_HEADER + D; d += 8)
        _mm256_storeu_ps(into + d, _mm256_fmadd_ps(t, _mm256_loadu_ps(part + d), _mm256_mul_ps(k, _mm256_loadu_ps(into + d))));
}

void finish(const float * merged, int D, float * out) {
    const __m256 by = _mm256_set1_ps(merged[1] > 0.0f ? 1.0f / merged[1] : 0.0f);
    for (int d = 0; d < D; d += 8) _mm256_storeu_ps(out + d, _mm256_mul_ps(_mm256_loadu_ps(merged + PART_HEADER + d), by));
}

}  // namespace
}  // namespace specllm
