// Puts the kernels into a stock ggml CPU library that is already loaded, without a patch.
//
// ggml-cpu has a list of extra buffer types. llama.cpp's loader offers each of them every weight, in order; the first that
// supports it gets its data (set_tensor) and computes with it. The plugin puts a buffer type of its own first in the list.
// For every operation of a graph ggml asks the list who computes it (get_tensor_traits): that is how attention, which has no
// weights, is reached too. What the plugin does not take goes on to the next in the list and to ggml itself.
//
// The list is copied when the first model is loaded, so specllm_install() comes before that. It changes nothing unless all
// checks pass.
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "attention_op.h"
#include "experts_op.h"
#include "matrix_op.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// A class with virtual functions refers to these; nothing here ever calls them. So no C++ library is needed.
extern "C" __attribute__((visibility("hidden"))) void __cxa_pure_virtual() { abort(); }

namespace specllm {
struct Here {};
}  // namespace specllm

inline void * operator new(size_t, specllm::Here, void * place) noexcept { return place; }

namespace specllm {
namespace {

Ggml ggml;
const InstructionSet * set;
BufferType buffer_type;
bool takes_attention;
size_t n_packed_bytes;

const int MIN_ROWS = 4;  // fewer would leave most of a strip empty

// Of a matrix, or of several in a row where each is a number of whole groups, so that together they are one tall matrix.
const TypeKernels * kernels_for(const ggml_tensor * w) {
    const TypeKernels * k = set->kernels(w->type);
    const bool are_rows_whole = k && w->ne[0] > 0 && w->ne[0] % k->block_columns == 0 && w->ne[1] >= MIN_ROWS && w->ne[3] == 1;
    return are_rows_whole && (w->ne[2] == 1 || w->ne[1] % (GROUP * STRIP) == 0) ? k : nullptr;
}

// Matrices that every architecture multiplies with as they are. Quantized ones are always used so, because ggml itself packs
// them on some processors. Floats it never packs, so a model may take a part of them or use them the other way round.
bool is_used_whole(const ggml_tensor * w) {
    if (w->type != GGML_TYPE_F32 && w->type != GGML_TYPE_F16) return true;
    static const char * const NAMES[] = {
        "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_qkv.weight", "attn_output.weight", "ffn_gate.weight", "ffn_up.weight",
        "ffn_down.weight", "ffn_gate_inp.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight",
    };
    const char * last = strncmp(w->name, "blk.", 4) ? nullptr : strchr(w->name + 4, '.');
    if (!last) return !strcmp(w->name, "output.weight") || !strcmp(w->name, "token_embd.weight");
    for (const char * name : NAMES)
        if (!strcmp(last + 1, name)) return true;
    return false;
}

Packed packed(const TypeKernels * kernels, const ggml_tensor * w) { return {kernels, w->ne[1] * w->ne[2], w->ne[0] / kernels->block_columns}; }

struct MatrixTraits final : Traits {
    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        size = MatrixRun::work_bytes(*kernels_for(op->src[0]), op);
        return true;
    }
    bool compute_forward(ComputeParams * params, ggml_tensor * op) override {
        MatrixRun(*kernels_for(op->src[0]), ggml, params, op).run();
        return true;
    }
};

// A small matrix of floats in ordinary memory
bool is_small(const ggml_tensor * op) {
    const ggml_tensor *w = op->src[0], *x = op->src[1];
    return w->type == GGML_TYPE_F32 && type_of(w) && ggml.is_host((ggml_backend_buffer_type_t)type_of(w)) && w->ne[0] <= 256 &&
           w->ne[1] <= 256 && kernels_for(w) && w->ne[2] == 1 && w->nb[0] == sizeof(float) && w->nb[1] == w->ne[0] * sizeof(float) &&
           x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && op->type == GGML_TYPE_F32;
}

struct SmallTraits final : Traits {
    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        size = MatrixRun::work_bytes_unpacked(*kernels_for(op->src[0]), op);
        return true;
    }
    bool compute_forward(ComputeParams * params, ggml_tensor * op) override {
        MatrixRun(*kernels_for(op->src[0]), ggml, params, op).run_unpacked();
        return true;
    }
};

struct ExpertsTraits final : Traits {
    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        size = ExpertsRun::work_bytes(*kernels_for(op->src[0]), op);
        return true;
    }
    bool compute_forward(ComputeParams * params, ggml_tensor * op) override {
        ExpertsRun(*kernels_for(op->src[0]), ggml, params, op).run();
        return true;
    }
};

struct AttentionTraits final : Traits {
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        size = AttentionShape(op).work_bytes(n_threads);
        return true;
    }
    bool compute_forward(ComputeParams * params, ggml_tensor * op) override {
        AttentionRun(*set, ggml, params, op).run();
        return true;
    }
};

// Objects without a destructor call at the end of the process, when ggml may still compute.
template <class T>
T * forever() {
    alignas(T) static char place[sizeof(T)];
    return ::new (Here(), place) T;
}

MatrixTraits * matrix_traits;
SmallTraits * small_traits;
ExpertsTraits * experts_traits;
AttentionTraits * attention_traits;

// Operations that ggml computes row by row, so that a row's result does not depend on those beside it. Any other one that is
// not ours may take another way where there are more rows.
const char * const ROW_BY_ROW[] = {
    "NONE", "DUP", "ADD", "ADD1", "ADD_ID", "SUB", "MUL", "DIV", "SQR", "SQRT", "LOG", "SIN", "COS", "NORM", "RMS_NORM", "L2_NORM",
    "SCALE", "CPY", "CONT", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE", "GET_ROWS", "SET_ROWS", "SOFT_MAX", "ROPE", "CLAMP",
    "CONCAT", "REPEAT", "UNARY", "GLU", "ARGSORT", "TOP_K", "SUM_ROWS", "ARGMAX",
};
bool is_row_by_row[GGML_OP_COUNT];
long n_others;

struct PackedType final : ExtraBufferType {
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        const ggml_tensor *w = op->src[0], *x = op->src[1];
        if (op->op == GGML_OP_MUL_MAT ? w->ne[2] != 1 : op->op != GGML_OP_MUL_MAT_ID || op->src[2]->type != GGML_TYPE_I32) return false;
        if (type_of(w) != &buffer_type || !kernels_for(w)) return false;
        if (w->view_src || !(*w->name == 0 || is_used_whole(w))) return false;  // a part of a packed matrix is no matrix
        return x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && op->type == GGML_TYPE_F32 &&
               (!x->buffer || ggml.is_host((ggml_backend_buffer_type_t)type_of(x)));
    }
    // ggml asks for every operation that it computes.
    Traits * get_tensor_traits(const ggml_tensor * op) override {
        if (op->op == GGML_OP_MUL_MAT && type_of(op->src[0]) == &buffer_type) return matrix_traits;
        if (op->op == GGML_OP_MUL_MAT && is_small(op)) return small_traits;
        if (op->op == GGML_OP_MUL_MAT_ID && type_of(op->src[0]) == &buffer_type) return experts_traits;
        if (op->op == GGML_OP_FLASH_ATTN_EXT && takes_attention && can_attend(op)) return attention_traits;
        if ((unsigned)op->op >= GGML_OP_COUNT || !is_row_by_row[op->op]) __atomic_add_fetch(&n_others, 1, __ATOMIC_RELAXED);
        return nullptr;
    }
};

// ------------------------------------------------------------------------------------------------ the buffer

void free_buffer(ggml_backend_buffer_t b) {
    Buffer * buffer = (Buffer *)b;
    if (!buffer->context) return;
    munmap(buffer->context, buffer->size);
    n_packed_bytes -= buffer->size;
}

void * get_base(ggml_backend_buffer_t b) {
    void * base = ((Buffer *)b)->context;
    return base ? base : (void *)64;  // ggml wants one for empty buffers too
}

void memset_tensor(ggml_backend_buffer_t, ggml_tensor * t, uint8_t value, size_t offset, size_t n) { memset((char *)t->data + offset, value, n); }

void clear(ggml_backend_buffer_t b, uint8_t value) {
    Buffer * buffer = (Buffer *)b;
    if (buffer->context) memset(buffer->context, value, buffer->size);
}

struct PackShare {
    const Packed * matrix;
    const uint8_t * src;
    uint8_t * out;
    int64_t begin, end;
};

void * pack_share(void * share) {
    const PackShare * s = (const PackShare *)share;
    pack_groups(*s->matrix, s->src, s->out, s->begin, s->end);
    return nullptr;
}

// Packs a matrix with several threads, because llama.cpp loads with one: reading the file's pages, making new ones and packing
// take 1.6 s a gigabyte.
void pack(const Packed & matrix, const uint8_t * src, uint8_t * out) {
    const int MOST = 8;
    const int64_t n_groups = matrix.n_groups(), few = ((int64_t)4 << 20) / (int64_t)matrix.group_bytes() + 1;  // 4 MB
    cpu_set_t here;
    int n = sched_getaffinity(0, sizeof(here), &here) == 0 ? CPU_COUNT(&here) : 1;
    if (n > MOST) n = MOST;
    if (n > n_groups / few) n = (int)(n_groups / few);
    if (n < 1) n = 1;
    PackShare shares[MOST];
    pthread_t threads[MOST];
    bool is_running[MOST] = {};
    for (int i = 0; i < n; i++) {
        shares[i] = {&matrix, src, out, n_groups * i / n, n_groups * (i + 1) / n};
        is_running[i] = i > 0 && pthread_create(&threads[i], nullptr, pack_share, &shares[i]) == 0;
    }
    for (int i = 0; i < n; i++)
        if (!is_running[i]) pack_share(&shares[i]);
    for (int i = 0; i < n; i++)
        if (is_running[i]) pthread_join(threads[i], nullptr);
}

// Whether memory is a file's, mapped: given back, it can be read again.
bool is_mapped_file(const void * data) {
    FILE * maps = fopen("/proc/self/maps", "re");
    if (!maps) return false;
    char line[512];
    bool is_found = false;
    unsigned long begin, end, inode = 0;
    while (!is_found && fgets(line, sizeof(line), maps))
        is_found = sscanf(line, "%lx-%lx %*s %*s %*s %lu", &begin, &end, &inode) == 3 && begin <= (uintptr_t)data && (uintptr_t)data < end;
    fclose(maps);
    return is_found && inode != 0;
}

// Nobody reads the plain weights once they are packed: without this a load would take the memory of both.
void give_back(const void * data, size_t n) {
    const uintptr_t page = 4096, begin = ((uintptr_t)data + page - 1) & ~(page - 1), end = ((uintptr_t)data + n) & ~(page - 1);
    if (end > begin && is_mapped_file(data)) madvise((void *)begin, end - begin, MADV_DONTNEED);
}

// The loader sets whole tensors; a part could not be packed.
void set_tensor(ggml_backend_buffer_t, ggml_tensor * t, const void * data, size_t offset, size_t n) {
    const TypeKernels * kernels = kernels_for(t);
    if (!kernels || offset != 0 || n != (size_t)kernels->block_bytes * (t->ne[0] / kernels->block_columns) * t->ne[1] * t->ne[2]) {
        fprintf(stderr, "specllm kernels: %s is not set as a whole\n", t->name);
        abort();
    }
    pack(packed(kernels, t), (const uint8_t *)data, (uint8_t *)t->data);
    give_back(data, n);
    // The system gathers huge pages in its own time: at the first touch it had to make room for them, which took 1 to 2 s a
    // gigabyte where memory was full of cached files. They are worth 5 % of V(1).
    const size_t page = 4096;
    madvise((void *)((uintptr_t)t->data & ~(page - 1)), packed(kernels, t).bytes(), MADV_HUGEPAGE);
}

const char * get_name(ggml_backend_buffer_type_t) { return "CPU_SPECLLM"; }

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    void * memory = nullptr;
    if (size) {
        size = (size + 4095) & ~(size_t)4095;
        memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return nullptr;
        n_packed_bytes += size;
    }
    BufferFunctions functions = {};
    functions.free_buffer = free_buffer;
    functions.get_base = get_base;
    functions.memset_tensor = memset_tensor;
    functions.set_tensor = set_tensor;
    functions.clear = clear;
    return ggml.buffer_init(type, functions, memory, size);
}

size_t get_alignment(ggml_backend_buffer_type_t) { return 64; }

size_t get_alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * t) {
    const TypeKernels * kernels = kernels_for(t);
    return kernels ? packed(kernels, t).bytes() : (size_t)t->nb[3] * t->ne[3];  // others are refused by supports_op
}

// ------------------------------------------------------------------------------------------------ installing

// The functions of the two libraries; null where one is missing.
const char * find_functions(void * cpu, void * base) {
    struct {
        void * library;
        const char * name;
        void ** to;
    } const wanted[] = {
        {cpu, "_Z39ggml_backend_cpu_get_extra_buffer_typesv", (void **)&ggml.extra_buffer_types},
        {cpu, "ggml_backend_cpu_reg", (void **)&ggml.cpu_reg},
        {cpu, "ggml_barrier", (void **)&ggml.barrier},
        {cpu, "ggml_threadpool_chunk_set", (void **)&ggml.chunk_set},
        {cpu, "ggml_threadpool_chunk_add", (void **)&ggml.chunk_add},
        {base, "ggml_backend_buffer_init", (void **)&ggml.buffer_init},
        {base, "ggml_backend_buft_is_host", (void **)&ggml.is_host},
        {base, "ggml_backend_reg_dev_get", (void **)&ggml.device},
    };
    for (const auto & w : wanted) {
        *w.to = dlsym(w.library, w.name);
        if (!*w.to) return w.name;
    }
    return nullptr;
}

template <class Function>
Function find(void * library, const char * name) {
    return (Function)dlsym(library, name);
}

// What differs between the loaded libraries and what this was compiled for; null where nothing does.
const char * difference(void * base) {
    const auto version = find<const char * (*)()>(base, "ggml_version");
    if (!version || strcmp(version(), SPECLLM_GGML_VERSION)) return "the version of ggml";
    const auto overhead = find<size_t (*)()>(base, "ggml_tensor_overhead");
    const size_t object = 4 * sizeof(void *);  // ggml_object: offs, size, next, type and padding
    if (!overhead || overhead() != object + sizeof(ggml_tensor)) return "the size of ggml_tensor";
    const auto op_name = find<const char * (*)(ggml_op)>(base, "ggml_op_name");
    if (!op_name || strcmp(op_name(GGML_OP_MUL_MAT), "MUL_MAT") || strcmp(op_name(GGML_OP_MUL_MAT_ID), "MUL_MAT_ID") ||
        strcmp(op_name(GGML_OP_FLASH_ATTN_EXT), "FLASH_ATTN_EXT"))
        return "the numbers of operations";
    for (int op = 0; op < GGML_OP_COUNT; op++)
        for (const char * name : ROW_BY_ROW) is_row_by_row[op] |= !strcmp(op_name((ggml_op)op), name);
    const auto bytes = find<size_t (*)(ggml_type)>(base, "ggml_type_size");
    const auto columns = find<int64_t (*)(ggml_type)>(base, "ggml_blck_size");
    if (!bytes || !columns) return "the types";
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        const TypeKernels * k = set->kernels(type);
        const int64_t times = k ? k->block_columns / columns((ggml_type)type) : 0;  // floats: 32 blocks of one
        if (k && (times * columns((ggml_type)type) != k->block_columns || times * (int64_t)bytes((ggml_type)type) != k->block_bytes))
            return "the sizes of blocks";
    }
    return nullptr;
}

// The same for private structs, as far as it shows in a buffer that ggml makes of our functions.
const char * private_difference(void * base) {
    const auto size = find<size_t (*)(ggml_backend_buffer_t)>(base, "ggml_backend_buffer_get_size");
    const auto base_of = find<void * (*)(ggml_backend_buffer_t)>(base, "ggml_backend_buffer_get_base");
    const auto type = find<ggml_backend_buffer_type_t (*)(ggml_backend_buffer_t)>(base, "ggml_backend_buffer_get_type");
    const auto free_it = find<void (*)(ggml_backend_buffer_t)>(base, "ggml_backend_buffer_free");
    const auto alignment = find<size_t (*)(ggml_backend_buffer_type_t)>(base, "ggml_backend_buft_get_alignment");
    const auto name = find<const char * (*)(ggml_backend_buffer_type_t)>(base, "ggml_backend_buft_name");
    const auto device = find<ggml_backend_dev_t (*)(ggml_backend_buffer_type_t)>(base, "ggml_backend_buft_get_device");
    if (!size || !base_of || !type || !free_it || !alignment || !name || !device) return "the functions for buffers";
    ggml_backend_buffer_type_t ours = (ggml_backend_buffer_type_t)&buffer_type;
    if (alignment(ours) != 64 || name(ours) != get_name(ours) || device(ours) != buffer_type.device || ggml.is_host(ours)) return "buffer types";
    ggml_backend_buffer_t buffer = alloc_buffer(ours, 4096);
    if (!buffer) return "no memory";
    const Buffer * seen = (const Buffer *)buffer;
    const bool is_same = seen->type == ours && seen->size == 4096 && size(buffer) == 4096 && type(buffer) == ours &&
                         base_of(buffer) == seen->context && seen->functions.set_tensor == set_tensor && seen->functions.clear == clear;
    free_it(buffer);
    return is_same && n_packed_bytes == 0 ? nullptr : "buffers";
}

bool is_installed;

}  // namespace
}  // namespace specllm

using namespace specllm;

// Installs the kernels of the instruction set called `set_name` (empty: the fastest). Returns null when they are in place,
// otherwise what is in the way, in a few words; then nothing was changed. The paths name libraries that are already loaded.
EXPORT const char * specllm_install(const char * cpu_path, const char * base_path, const char * set_name, bool with_attention) {
    static char reason[160];
    if (is_installed) return nullptr;
    set = find_instruction_set(set_name);
    if (!set) return "the processor lacks AVX2, or the instruction set asked for";
    void *cpu = dlopen(cpu_path, RTLD_NOW | RTLD_NOLOAD), *base = dlopen(base_path, RTLD_NOW | RTLD_NOLOAD);
    if (!cpu || !base) return "ggml's libraries are not where they should be";
    if (const char * missing = find_functions(cpu, base)) {
        snprintf(reason, sizeof(reason), "ggml's library has no %s", missing);
        return reason;
    }
    buffer_type.functions.get_name = get_name;
    buffer_type.functions.alloc_buffer = alloc_buffer;
    buffer_type.functions.get_alignment = get_alignment;
    buffer_type.functions.get_alloc_size = get_alloc_size;
    buffer_type.device = ggml.device(ggml.cpu_reg(), 0);
    buffer_type.context = forever<PackedType>();
    matrix_traits = forever<MatrixTraits>();
    small_traits = forever<SmallTraits>();
    experts_traits = forever<ExpertsTraits>();
    attention_traits = forever<AttentionTraits>();
    takes_attention = with_attention;
    const char * other = difference(base);
    if (!other) other = private_difference(base);
    if (other) {
        snprintf(reason, sizeof(reason), "%s: other than in ggml " SPECLLM_GGML_VERSION, other);
        return reason;
    }
    Vector * list = ggml.extra_buffer_types();
    const size_t n = list->end - list->begin;
    if (list->end < list->begin || list->end_of_storage < list->end || n > 16) return "ggml's list of buffer types looks odd";
    for (size_t i = 0; i < n; i++)
        if (!list->begin[i]) return "ggml's list of buffer types looks odd";
    ggml_backend_buffer_type_t * longer = (ggml_backend_buffer_type_t *)malloc((n + 1) * sizeof(*longer));
    if (!longer) return "no memory";
    longer[0] = (ggml_backend_buffer_type_t)&buffer_type;
    memcpy(longer + 1, list->begin, n * sizeof(*longer));
    free(list->begin);  // made by the library's operator new, which is malloc
    list->begin = longer;
    list->end = list->end_of_storage = longer + n + 1;
    is_installed = true;
    return nullptr;
}

// The name of the instruction set in use; null before specllm_install().
EXPORT const char * specllm_installed_set() { return is_installed ? set->name : nullptr; }

// How often an operation was seen so far that is neither ours nor computed row by row. A graph that adds nothing to it gives a
// row the same bits at every width.
EXPORT long specllm_n_others() { return __atomic_load_n(&n_others, __ATOMIC_RELAXED); }

// The type of the buffers that hold packed weights.
EXPORT void * specllm_buffer_type() { return &buffer_type; }

// Which sources this was compiled from.
EXPORT const char * specllm_sources() { return SPECLLM_SOURCES; }

// Memory that packed weights take now.
EXPORT size_t specllm_packed_total() { return n_packed_bytes; }
