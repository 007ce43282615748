// Hands matrix products and attention of llama.cpp's graphs to Loquent's own kernels (src/llama/kernels).
//
// ggml's processor back end asks a list of "extra buffer types" for every operation whether
// one of them computes it. The list is C++ (a vector of pointers to objects with virtual
// functions), so joining it takes these few lines; the declarations below restate the
// interface of ggml-cpu/traits.h and ggml-backend-impl.h, and the test
// `own_kernels_are_used_and_close_to_llama_cpps` fails when they no longer fit.
#include <cstddef>
#include <vector>

struct ggml_tensor;
struct ggml_compute_params;
struct ggml_backend_device;

struct ggml_backend_buffer_type {
    // Never called: nothing is ever allocated with this type.
    void * functions[8];
    ggml_backend_device * device;
    void * context;
};

std::vector<ggml_backend_buffer_type *> & ggml_backend_cpu_get_extra_buffer_types();

namespace ggml::cpu {
class tensor_traits {
  public:
    virtual ~tensor_traits();
    virtual bool work_size(int n_threads, const ggml_tensor * op, size_t & size) = 0;
    virtual bool compute_forward(ggml_compute_params * params, ggml_tensor * op) = 0;
};

class extra_buffer_type {
  public:
    virtual ~extra_buffer_type();
    virtual bool supports_op(ggml_backend_device * dev, const ggml_tensor * op) = 0;
    virtual tensor_traits * get_tensor_traits(const ggml_tensor * op) = 0;
};
}  // namespace ggml::cpu

extern "C" {
bool loquent_kernel_wanted(const ggml_tensor * op);
size_t loquent_kernel_memory(int threads, const ggml_tensor * op);
bool loquent_kernel_compute(const ggml_compute_params * params, ggml_tensor * op);
void loquent_kernels_register();
}

namespace {
class Kernel : public ggml::cpu::tensor_traits {
    bool work_size(int threads, const ggml_tensor * op, size_t & size) override {
        size = loquent_kernel_memory(threads, op);
        return true;
    }
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        return loquent_kernel_compute(params, op);
    }
};

class Kernels : public ggml::cpu::extra_buffer_type {
    // Of weights in a buffer of this type: there are none.
    bool supports_op(ggml_backend_device *, const ggml_tensor *) override { return false; }
    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        static Kernel kernel;
        return loquent_kernel_wanted(op) ? &kernel : nullptr;
    }
};
}  // namespace

void loquent_kernels_register() {
    static Kernels kernels;
    static ggml_backend_buffer_type type = {{}, nullptr, &kernels};
    ggml_backend_cpu_get_extra_buffer_types().push_back(&type);
}
