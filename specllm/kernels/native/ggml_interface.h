// The part of ggml's interface that the plugin speaks, as it is in ggml 0.25.3: declared here, so that compiling the kernels
// needs no other files. tests/kernels/test_interface.py compares it with the headers of the installed version; what can be
// checked in the loaded library, plugin.cpp checks before anything is installed; the self-test in a child process does the rest.
//
// Sources: ggml/include/ggml.h, ggml/src/ggml-backend-impl.h, ggml/src/ggml-cpu/ggml-cpu-impl.h, ggml/src/ggml-cpu/traits.h.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace specllm {

#define SPECLLM_GGML_VERSION "0.25.3"

// Only pointers to these are passed on. A buffer and its type, Buffer and BufferType below, are ours to make.
typedef struct ggml_backend_buffer * ggml_backend_buffer_t;
typedef struct ggml_backend_buffer_type * ggml_backend_buffer_type_t;
typedef struct ggml_backend_device * ggml_backend_dev_t;
typedef struct ggml_backend_reg * ggml_backend_reg_t;
struct ggml_threadpool;

enum ggml_type : int { GGML_TYPE_F32 = 0, GGML_TYPE_F16 = 1, GGML_TYPE_Q8_0 = 8, GGML_TYPE_I32 = 26, GGML_TYPE_COUNT = 43 };
enum ggml_op : int { GGML_OP_MUL_MAT = 29, GGML_OP_MUL_MAT_ID = 30, GGML_OP_FLASH_ATTN_EXT = 74, GGML_OP_COUNT = 101 };
enum ggml_status : int { GGML_STATUS_SUCCESS = 0 };
enum ggml_backend_buffer_usage : int { GGML_BACKEND_BUFFER_USAGE_ANY = 0 };

struct ggml_tensor {
    ggml_type type;
    ggml_backend_buffer_t buffer;
    int64_t ne[4];  // elements in each dimension
    size_t nb[4];   // bytes from one to the next
    ggml_op op;
    int32_t op_params[16];
    int32_t flags;
    ggml_tensor * src[10];
    ggml_tensor * view_src;
    size_t view_offs;
    void * data;
    char name[64];
    void * extra;
    char padding[8];
};

struct BufferTypeFunctions {  // ggml_backend_buffer_type_i
    const char * (*get_name)(ggml_backend_buffer_type_t);
    ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t, size_t);
    size_t (*get_alignment)(ggml_backend_buffer_type_t);
    size_t (*get_max_size)(ggml_backend_buffer_type_t);
    size_t (*get_alloc_size)(ggml_backend_buffer_type_t, const ggml_tensor *);
    bool (*is_host)(ggml_backend_buffer_type_t);
};

struct BufferType {  // ggml_backend_buffer_type
    BufferTypeFunctions functions;
    ggml_backend_dev_t device;
    void * context;
};

struct BufferFunctions {  // ggml_backend_buffer_i
    void (*free_buffer)(ggml_backend_buffer_t);
    void * (*get_base)(ggml_backend_buffer_t);
    ggml_status (*init_tensor)(ggml_backend_buffer_t, ggml_tensor *);
    void (*memset_tensor)(ggml_backend_buffer_t, ggml_tensor *, uint8_t, size_t, size_t);
    void (*set_tensor)(ggml_backend_buffer_t, ggml_tensor *, const void *, size_t, size_t);
    void (*get_tensor)(ggml_backend_buffer_t, const ggml_tensor *, void *, size_t, size_t);
    void (*set_tensor_2d)(ggml_backend_buffer_t, ggml_tensor *, const void *, size_t, size_t, size_t, size_t, size_t);
    void (*get_tensor_2d)(ggml_backend_buffer_t, const ggml_tensor *, void *, size_t, size_t, size_t, size_t, size_t);
    bool (*cpy_tensor)(ggml_backend_buffer_t, const ggml_tensor *, ggml_tensor *);
    void (*clear)(ggml_backend_buffer_t, uint8_t);
    void (*reset)(ggml_backend_buffer_t);
};

struct Buffer {  // ggml_backend_buffer
    BufferFunctions functions;
    ggml_backend_buffer_type_t type;
    void * context;
    size_t size;
    ggml_backend_buffer_usage usage;
};

inline BufferType * type_of(const ggml_tensor * t) {
    return t->buffer ? (BufferType *)((Buffer *)t->buffer)->type : nullptr;
}

struct ComputeParams {  // ggml_compute_params
    int ith, nth;
    size_t wsize;
    void * wdata;
    ggml_threadpool * threadpool;
    bool use_ref;
};

// ggml::cpu::tensor_traits and ggml::cpu::extra_buffer_type: the order of the virtual functions is what counts. They live as
// long as the process, so nothing deletes them.
struct Traits {
    virtual ~Traits() {}
    virtual bool work_size(int n_threads, const ggml_tensor * op, size_t & size) = 0;
    virtual bool compute_forward(ComputeParams * params, ggml_tensor * op) = 0;
    static void operator delete(void *) {}
};

struct ExtraBufferType {
    virtual ~ExtraBufferType() {}
    virtual bool supports_op(ggml_backend_dev_t device, const ggml_tensor * op) = 0;
    virtual Traits * get_tensor_traits(const ggml_tensor * op) = 0;
    static void operator delete(void *) {}
};

struct Vector {  // std::vector<ggml_backend_buffer_type_t>, the same in libstdc++ and libc++
    ggml_backend_buffer_type_t *begin, *end, *end_of_storage;
};

// What the plugin calls in the loaded libraries.
struct Ggml {
    Vector * (*extra_buffer_types)();
    ggml_backend_reg_t (*cpu_reg)();
    void (*barrier)(ggml_threadpool *);
    void (*chunk_set)(ggml_threadpool *, int);
    int (*chunk_add)(ggml_threadpool *, int);
    ggml_backend_buffer_t (*buffer_init)(ggml_backend_buffer_type_t, BufferFunctions, void *, size_t);
    bool (*is_host)(ggml_backend_buffer_type_t);
    ggml_backend_dev_t (*device)(ggml_backend_reg_t, size_t);
};

}  // namespace specllm
