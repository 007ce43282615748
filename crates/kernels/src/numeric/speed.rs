//! Measures products by our kernels and by llama.cpp's, in its own repacked layout if it has one:
//! run by hand. `ISA` and `FORMAT`, ggml's number, choose some; `THREADS` are 1 unless it is set,
//! and `ROWS` of activations are 1 and 16.
//!
//! `cargo test -p loquent-kernels --lib numeric::speed --release -- --ignored --nocapture`

use std::ptr;
use std::time::{Duration, Instant};

use super::arena::{Arena, ArenaTensor, KernelSide};
use super::products::{FLOATS, cases_with_floats};
use super::{Isa, noise, quantised, sys};

/// Elements of a row.
const INNER: usize = 2048;
/// Rows of all weights, unless `WEIGHTS` are set: more than caches hold.
const WEIGHT_ROWS: &str = "98304";
/// Number of experts that share them, and number that a token uses.
const EXPERTS: (usize, usize) = (128, 8);
/// Number of times that each side computes: the shortest time counts.
const ROUNDS: usize = 12;

/// Weights in a buffer of ggml.
struct SpeedWeights {
    context: *mut sys::ggml_context,
    buffer: sys::ggml_backend_buffer_t,
    tensor: *mut sys::ggml_tensor,
}

impl Drop for SpeedWeights {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once.
        unsafe {
            sys::ggml_backend_buffer_free(self.buffer);
            sys::ggml_free(self.context);
        }
    }
}

impl SpeedWeights {
    /// Creates weights in the layout of `side`; for llama.cpp, its repacked one if it has one.
    fn new(format: sys::ggml_type, experts: usize, side: KernelSide) -> Self {
        let (row, _) = quantised(format, &noise(1, INNER), INNER);
        let bytes = row.repeat(weight_rows());
        let room = sys::ggml_init_params {
            mem_size: 1 << 16,
            mem_buffer: ptr::null_mut(),
            no_alloc: true,
        };
        let shape = [INNER as i64, (weight_rows() / experts) as i64, experts as i64, 1];
        // SAFETY: a context with one tensor, whose memory is a buffer of the back end's.
        unsafe {
            let context = sys::ggml_init(room);
            let tensor = sys::ggml_new_tensor(context, format, 4, shape.as_ptr());
            let plain = sys::ggml_backend_cpu_buffer_type();
            let wanted = if side == KernelSide::Llama { repacked() } else { None };
            let mut buffer = ptr::null_mut();
            if let Some(kind) = wanted {
                buffer = sys::ggml_backend_alloc_ctx_tensors_from_buft(context, kind);
                if (*tensor).extra.is_null() {
                    // It has no layout for this format.
                    sys::ggml_backend_buffer_free(buffer);
                    buffer = ptr::null_mut();
                    (*tensor).data = ptr::null_mut();
                    (*tensor).buffer = ptr::null_mut();
                }
            }
            if buffer.is_null() {
                buffer = sys::ggml_backend_alloc_ctx_tensors_from_buft(context, plain);
            }
            sys::ggml_backend_tensor_set(tensor, bytes.as_ptr().cast(), 0, bytes.len());
            Self { context, buffer, tensor }
        }
    }

    fn is_repacked(&self) -> bool {
        // SAFETY: made by `new`.
        unsafe { !(*self.tensor).extra.is_null() }
    }

    /// Returns their product with `tokens` rows of activations; with experts, with the chosen ones.
    fn product<'a>(&self, arena: &'a Arena, experts: usize, tokens: usize) -> ArenaTensor<'a> {
        let rows = noise(2, INNER * tokens);
        let shape = |a: usize, b: usize| [INNER as i64, a as i64, b as i64, 1];
        if experts == 1 {
            let right = arena.floats(shape(tokens, 1), &rows);
            // SAFETY: `self.tensor` has rows of `INNER` numbers, as `right` has, and both live as
            // long as the arena is used.
            return arena.make(|context| unsafe {
                sys::ggml_mul_mat(context, self.tensor, right.as_ptr())
            });
        }
        let right = arena.floats(shape(1, tokens), &rows);
        let used = EXPERTS.1;
        let chosen = |i: usize| ((i / used * 11 + i % used * 5) % experts) as i32;
        let chosen: Vec<u8> = (0..used * tokens).flat_map(|i| chosen(i).to_ne_bytes()).collect();
        let chosen = arena.tensor(sys::GGML_TYPE_I32, [used as i64, tokens as i64, 1, 1], &chosen);
        // SAFETY: `self.tensor` has `experts` matrices, each with rows of `INNER` numbers, as
        // `right` has; `chosen` are below `experts`.
        arena.make(|context| unsafe {
            sys::ggml_mul_mat_id(context, self.tensor, right.as_ptr(), chosen.as_ptr())
        })
    }
}

/// Returns the buffer type in which llama.cpp keeps repacked weights.
fn repacked() -> Option<sys::ggml_backend_buffer_type_t> {
    // SAFETY: the registry gives the function of this name and type.
    unsafe {
        let device = sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU);
        let registry = sys::ggml_backend_dev_backend_reg(device);
        let name = c"ggml_backend_dev_get_extra_bufts".as_ptr();
        let get = sys::ggml_backend_reg_get_proc_address(registry, name);
        type ExtraBuffers =
            unsafe extern "C" fn(sys::ggml_backend_dev_t) -> *mut sys::ggml_backend_buffer_type_t;
        let get = std::mem::transmute::<*mut core::ffi::c_void, ExtraBuffers>(get);
        let mut kinds = get(device);
        while !kinds.is_null() && !(*kinds).is_null() {
            let name = std::ffi::CStr::from_ptr(sys::ggml_backend_buft_name(*kinds));
            if name.to_bytes().ends_with(b"REPACK") {
                return Some(*kinds);
            }
            kinds = kinds.add(1);
        }
        None
    }
}

/// Shortest time of a product.
fn shortest(weights: &SpeedWeights, side: KernelSide, experts: usize, tokens: usize) -> Duration {
    let arena = Arena::new();
    let op = weights.product(&arena, experts, tokens);
    let time = |_| {
        let began = Instant::now();
        match side {
            KernelSide::Own(isa) => arena.run_own(op, isa, None, threads()),
            _ => arena.run(op, threads(), ptr::null_mut()),
        }
        began.elapsed()
    };
    (0..ROUNDS).map(time).min().expect("some rounds")
}

fn weight_rows() -> usize {
    numbers("WEIGHTS", WEIGHT_ROWS)[0]
}

fn threads() -> usize {
    numbers("THREADS", "1")[0]
}

/// Returns the numbers of the variable `name`, or of `otherwise`.
fn numbers(name: &str, otherwise: &str) -> Vec<usize> {
    let text = std::env::var(name).unwrap_or_else(|_| otherwise.to_owned());
    text.split(',').map(|number| number.parse().expect("numbers, divided by commas")).collect()
}

#[test]
#[ignore = "a measurement, by hand"]
fn products_beside_llama_cpps() {
    println!(
        "| instructions | format | weights | rows | own ms | llama.cpp ms | llama.cpp ÷ own |"
    );
    println!("|---|---|---|---|---|---|---|");
    let wanted = std::env::var("ISA").unwrap_or_else(|_| Isa::Avx512Vnni.name().to_owned());
    for (isa, format) in cases_with_floats().filter(|(isa, _)| isa.name() == wanted) {
        let wanted = std::env::var("FORMAT").ok();
        if wanted.is_some_and(|wanted| wanted != format.to_string()) {
            continue;
        }
        let is_float = FLOATS.contains(&format);
        for experts in [1, EXPERTS.0].into_iter().take(if is_float { 1 } else { 2 }) {
            let llama = SpeedWeights::new(format, experts, KernelSide::Llama);
            // The same memory where the layout is the same: some pages are faster than others.
            let plain = || SpeedWeights::new(format, experts, KernelSide::Own(isa));
            let own = llama.is_repacked().then(plain);
            let own = own.as_ref().unwrap_or(&llama);
            for tokens in numbers("ROWS", "1,16") {
                let [mine, theirs] = [(own, KernelSide::Own(isa)), (&llama, KernelSide::Llama)]
                    .map(|(w, side)| shortest(w, side, experts, tokens).as_secs_f64() * 1e3);
                let what = if experts == 1 { "one" } else { "experts" };
                let ratio = theirs / mine;
                println!(
                    "| {} | {format} | {what} | {tokens} | {mine:.2} | {theirs:.2} | {ratio:.2} |",
                    isa.name()
                );
            }
        }
    }
}
