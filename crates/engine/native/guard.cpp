// The calls of llama.cpp that take outside input (files, prompts, batches). llama.cpp's C functions
// let C++ exceptions through, for example of `std::regex` or for want of memory, and an exception
// that reaches Rust ends the process. Here each becomes an error with its text. So do failed
// assertions (`GGML_ASSERT`) of the calls that leave nothing half done behind them.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>

#include "ggml.h"
#include "llama.h"

namespace {
// Whether a failed assertion on this thread may leave by an exception.
thread_local bool assertions_throw = false;

void handle_abort(const char * message) {
    if (assertions_throw) {
        throw std::runtime_error(message);
    }
    // ggml ends the process when this returns.
    std::fprintf(stderr, "%s\n", message);
}

struct ThrowingAssertions {
    ThrowingAssertions() { assertions_throw = true; }
    ~ThrowingAssertions() { assertions_throw = false; }
};

template <typename Call>
bool guarded(char * error, size_t room, Call call) {
    try {
        call();
        return true;
    } catch (const std::exception & exception) {
        std::snprintf(error, room, "%s", exception.what());
    } catch (...) {
        std::snprintf(error, room, "an exception without a text");
    }
    return false;
}
}  // namespace

extern "C" {
void loquent_guard_install() { ggml_set_abort_callback(handle_abort); }

bool loquent_guarded_tokenize(const llama_vocab * vocab, const char * text, int32_t length, llama_token * tokens,
                              int32_t room, bool parse_special, int32_t * count, char * error, size_t error_room) {
    return guarded(error, error_room, [&] {
        ThrowingAssertions scope;
        *count = llama_tokenize(vocab, text, length, tokens, room, /* add_special */ false, parse_special);
    });
}

bool loquent_guarded_load(const char * path, llama_model_params params, llama_model ** model, char * error,
                          size_t error_room) {
    return guarded(error, error_room, [&] {
        ThrowingAssertions scope;
        *model = llama_model_load_from_file(path, params);
    });
}

bool loquent_guarded_context(llama_model * model, llama_context_params params, llama_context ** context, char * error,
                             size_t error_room) {
    return guarded(error, error_room, [&] {
        ThrowingAssertions scope;
        *context = llama_init_from_model(model, params);
    });
}

bool loquent_guarded_decode(llama_context * context, llama_batch batch, int32_t * status, char * error,
                            size_t error_room) {
    return guarded(error, error_room, [&] { *status = llama_decode(context, batch); });
}

bool loquent_guarded_state_size(llama_context * context, llama_seq_id slot, size_t * size, char * error,
                                size_t error_room) {
    return guarded(error, error_room, [&] {
        ThrowingAssertions scope;
        *size = llama_state_seq_get_size(context, slot);
    });
}

bool loquent_guarded_state(llama_context * context, llama_seq_id slot, uint8_t * state, size_t size, size_t * written,
                           char * error, size_t error_room) {
    return guarded(error, error_room, [&] {
        ThrowingAssertions scope;
        *written = llama_state_seq_get_data(context, state, size, slot);
    });
}

// The caller empties the slot after a failed assertion.
bool loquent_guarded_set_state(llama_context * context, llama_seq_id slot, const uint8_t * state, size_t size,
                               size_t * read, char * error, size_t error_room) {
    return guarded(error, error_room, [&] {
        ThrowingAssertions scope;
        *read = llama_state_seq_set_data(context, state, size, slot);
    });
}
}
