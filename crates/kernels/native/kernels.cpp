// Hands matrix products and attention of llama.cpp's graphs to Loquent's own kernels (src).
//
// ggml's processor back end asks a list of "extra buffer types" for every operation whether
// one of them computes it. The list is C++ (a vector of pointers to objects with virtual
// functions), so joining it takes these few lines. What they use is internal to ggml, so it comes
// from the headers of the very llama.cpp that is linked (build.rs), and what Rust declares anew is
// compared with them below: a version that changes any of it fails to compile.
#include <type_traits>

#include "traits.h"

extern "C" {
// In src/ggml_hook.rs.
bool loquent_kernel_wanted(const ggml_tensor * op);
size_t loquent_kernel_memory(int threads, const ggml_tensor * op);
bool loquent_kernel_compute(int thread, int threads, size_t memory_bytes, void * memory, ggml_threadpool * pool,
                            ggml_tensor * op);
bool loquent_rows_watched(const ggml_tensor * op);
void loquent_rows_written(const ggml_tensor * op);
void loquent_kernels_register();
}

// Called from src/work_queue.rs, in whose bindings they are not.
static_assert(std::is_same_v<decltype(&ggml_barrier), void (*)(ggml_threadpool *)>);
static_assert(std::is_same_v<decltype(&ggml_threadpool_chunk_set), void (*)(ggml_threadpool *, int)>);
static_assert(std::is_same_v<decltype(&ggml_threadpool_chunk_add), int (*)(ggml_threadpool *, int)>);
static_assert(sizeof(int) == 4, "Rust's i32");

// Blocks of weights as src reads them: fields and their order. Rust asserts the sizes.
#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"
static_assert(QK_K == 256 && QK8_0 == 32 && K_SCALE_SIZE == 12);
static_assert(offsetof(block_q2_K, scales) == 0 && offsetof(block_q2_K, qs) == 16 && sizeof(block_q2_K) == 84);
static_assert(offsetof(block_q3_K, hmask) == 0 && offsetof(block_q3_K, qs) == 32 && offsetof(block_q3_K, scales) == 96 &&
              offsetof(block_q3_K, d) == 108 && sizeof(block_q3_K) == 110);
static_assert(offsetof(block_q4_K, scales) == 4 && offsetof(block_q4_K, qs) == 16 && sizeof(block_q4_K) == 144);
static_assert(offsetof(block_q5_K, scales) == 4 && offsetof(block_q5_K, qh) == 16 && offsetof(block_q5_K, qs) == 48 &&
              sizeof(block_q5_K) == 176);
static_assert(offsetof(block_q6_K, qh) == 128 && offsetof(block_q6_K, scales) == 192 && offsetof(block_q6_K, d) == 208 &&
              sizeof(block_q6_K) == 210);
static_assert(QK4_0 == 32 && QK4_NL == 32 && QK_MXFP4 == 32);
static_assert(offsetof(block_iq4_xs, d) == 0 && offsetof(block_iq4_xs, scales_h) == 2 &&
              offsetof(block_iq4_xs, scales_l) == 4 && offsetof(block_iq4_xs, qs) == 8 && sizeof(block_iq4_xs) == 136);
static_assert(offsetof(block_iq2_xxs, d) == 0 && offsetof(block_iq2_xxs, qs) == 2 && sizeof(block_iq2_xxs) == 66);
static_assert(offsetof(block_iq2_xs, d) == 0 && offsetof(block_iq2_xs, qs) == 2 && offsetof(block_iq2_xs, scales) == 66 &&
              sizeof(block_iq2_xs) == 74);
static_assert(offsetof(block_iq2_s, d) == 0 && offsetof(block_iq2_s, qs) == 2 && offsetof(block_iq2_s, qh) == 66 &&
              offsetof(block_iq2_s, scales) == 74 && sizeof(block_iq2_s) == 82);
static_assert(offsetof(block_iq3_xxs, d) == 0 && offsetof(block_iq3_xxs, qs) == 2 && sizeof(block_iq3_xxs) == 98);
static_assert(offsetof(block_iq3_s, d) == 0 && offsetof(block_iq3_s, qs) == 2 && offsetof(block_iq3_s, qh) == 66 &&
              offsetof(block_iq3_s, signs) == 74 && offsetof(block_iq3_s, scales) == 106 && sizeof(block_iq3_s) == 110);
static_assert(offsetof(block_q4_0, d) == 0 && offsetof(block_q4_0, qs) == 2 && sizeof(block_q4_0) == 18);
// Their first four bytes are the scale and the minimum, which have no names in C++.
static_assert(offsetof(block_q4_1, qs) == 4 && sizeof(block_q4_1) == 20);
static_assert(offsetof(block_q5_1, qh) == 4 && offsetof(block_q5_1, qs) == 8 && sizeof(block_q5_1) == 24);
static_assert(offsetof(block_iq4_nl, d) == 0 && offsetof(block_iq4_nl, qs) == 2 && sizeof(block_iq4_nl) == 18);
static_assert(offsetof(block_mxfp4, e) == 0 && offsetof(block_mxfp4, qs) == 1 && sizeof(block_mxfp4) == 17);
static_assert(offsetof(block_q8_0, d) == 0 && offsetof(block_q8_0, qs) == 2 && sizeof(block_q8_0) == 34);

namespace {
class Kernel : public ggml::cpu::tensor_traits {
    bool work_size(int threads, const ggml_tensor * op, size_t & size) override {
        size = loquent_kernel_memory(threads, op);
        return true;
    }
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        return loquent_kernel_compute(params->ith, params->nth, params->wsize, params->wdata, params->threadpool, op);
    }
};

// Sees which rows of a cache are written, and leaves the writing to ggml.
class RowWitness : public ggml::cpu::tensor_traits {
    bool work_size(int, const ggml_tensor *, size_t &) override { return false; }
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (params->ith == 0) {
            loquent_rows_written(op);
        }
        return false;
    }
};

class Kernels : public ggml::cpu::extra_buffer_type {
    // Of weights in a buffer of this type: there are none.
    bool supports_op(ggml_backend_dev_t, const ggml_tensor *) override { return false; }
    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        static Kernel kernel;
        static RowWitness witness;
        if (loquent_rows_watched(op)) {
            return &witness;
        }
        return loquent_kernel_wanted(op) ? &kernel : nullptr;
    }
};
}  // namespace

void loquent_kernels_register() {
    static Kernels kernels;
    // Its functions are never called: nothing is ever allocated with this type.
    static ggml_backend_buffer_type type = {{}, nullptr, &kernels};
    ggml_backend_cpu_get_extra_buffer_types().push_back(&type);
}
