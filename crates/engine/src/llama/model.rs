//! Loads a model: checks first, then llama.cpp.

use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::{fs, io};

use super::devices::GPU_BACK_ENDS;
use super::kernel_choice;
use super::memory::{available_bytes, kv_bytes};
use super::offload::Placement;
use super::{UnsupportedProcessor, devices, guard, log, rpc, start, sys};
use crate::{GpuLayers, KvType};
use loquent_formats::gguf::{self, Header, ReadLimits};

/// Parts of a model to load, and the memory to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadOptions {
    /// Layers on the GPU, in builds and on machines that have one.
    pub gpu_layers: GpuLayers,
    /// Map the file into memory instead of reading it: faster to start, shared between processes.
    pub mmap: bool,
    /// Compute products of quantised weights with Loquent's kernels if processor and model support
    /// them, from the weights as stored in the file. Otherwise llama.cpp's kernels are used, which
    /// keep a second, reordered copy of some weights.
    pub own_kernels: bool,
    /// Load only the vocabulary, for tokenizing: such a model has no weights.
    pub vocab_only: bool,
    /// KV cells that the runner will have: for the memory check, and to determine how many layers
    /// fit on a GPU.
    pub kv_cells: u32,
    /// Type of the KV cells, for the same purposes.
    pub kv_type: KvType,
    /// Maximum memory of the model in bytes; `None` for the amount that the system reports as
    /// available.
    pub memory_bytes: Option<u64>,
    /// Servers of llama.cpp's RPC back end, `host:port`, over which the layers are distributed: see
    /// [`super::rpc`]. The process keeps them for every later model.
    pub rpc: Vec<String>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            gpu_layers: GpuLayers::Auto,
            mmap: true,
            own_kernels: true,
            vocab_only: false,
            kv_cells: 0,
            kv_type: KvType::default(),
            memory_bytes: None,
            rpc: Vec::new(),
        }
    }
}

/// Reason why a model could not be loaded. Every message names the file and how to fix the problem.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file does not exist.
    #[error("model file not found: {}", .0.display())]
    NotFound(PathBuf),
    /// The file cannot be read.
    #[error("cannot read model file {}: {source}", .path.display())]
    Unreadable {
        /// Path of the model's file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file does not begin like a GGUF file.
    #[error("{} is not a GGUF file (a GGUF file begins with the bytes \"GGUF\")", .0.display())]
    NotGguf(PathBuf),
    /// The file ends too early.
    #[error(
        "{} is truncated: {actual_bytes} bytes of at least {needed_bytes}; download it again",
        .path.display()
    )]
    Truncated {
        /// Path of the model's file.
        path: PathBuf,
        /// Minimum size according to its header.
        needed_bytes: u64,
        /// Size of the file.
        actual_bytes: u64,
    },
    /// A GGUF file with an inconsistent header.
    #[error("{} is damaged: {reason}; download it again", .path.display())]
    Malformed {
        /// Path of the model's file.
        path: PathBuf,
        /// The inconsistency.
        reason: String,
    },
    /// A model architecture that this build of llama.cpp does not have.
    #[error("this build of llama.cpp does not support the model architecture {0:?}")]
    UnsupportedArchitecture(String),
    /// Weights and KV cache do not fit.
    #[error(
        "the model needs about {} MiB of memory (weights {} MiB, KV cache {} MiB), {} MiB are \
         available; use a smaller or more quantised model, or less context",
        (weights_bytes + kv_bytes) >> 20, weights_bytes >> 20, kv_bytes >> 20, available_bytes >> 20
    )]
    TooLarge {
        /// Size of the files.
        weights_bytes: u64,
        /// Estimated size of the KV cache.
        kv_bytes: u64,
        /// Available memory.
        available_bytes: u64,
    },
    /// This build cannot run on this processor.
    #[error(transparent)]
    Processor(#[from] UnsupportedProcessor),
    /// Servers of the RPC back end cannot be used.
    #[error("{0}")]
    Rpc(String),
    /// The progress callback returned false.
    #[error("loading was cancelled")]
    Cancelled,
    /// llama.cpp rejected the model for another reason.
    #[error("llama.cpp cannot load the model: {0}")]
    Backend(String),
}

/// Facts about a model, from its metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// Name in the metadata (`general.name`).
    pub name: Option<String>,
    /// `general.architecture`, for example `llama`.
    pub architecture: String,
    /// Size and quantisation as text, for example `qwen3 0.6B Q4_K - Medium`.
    pub description: String,
    /// Tokens of context that it was trained with.
    pub context_train: u32,
    /// Number of parameters, from its tensors.
    pub parameters: u64,
    /// Size of all tensors in bytes.
    pub size_bytes: u64,
    /// Number of entries in the vocabulary.
    pub vocab_size: u32,
    /// Jinja source of the chat template.
    pub chat_template: Option<String>,
    /// How much of a sequence's past the model keeps.
    pub history: History,
}

/// How much of a sequence's past a model keeps, which determines where it can be shared or cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum History {
    /// Every position: can be cut anywhere.
    Whole,
    /// In some layers only this many of the last positions, and older ones until their cells are
    /// needed: can be cut where that many are left.
    Window(u32),
    /// One state in which recurrent layers combine all of it: cannot be cut.
    State,
}

/// A loaded model: weights and vocabulary. Cheap to share, never changes.
#[derive(Debug)]
pub struct LlamaModel {
    handle: NonNull<sys::llama_model>,
    info: ModelInfo,
    header: Header,
    has_weights: bool,
    own_kernels: bool,
    placement: Placement,
}

// SAFETY: llama.cpp does not change a model after loading; contexts and the tokenizer
// read it from any thread.
unsafe impl Send for LlamaModel {}
// SAFETY: `&self` only reads the model, which llama.cpp does not change after loading.
unsafe impl Sync for LlamaModel {}

impl Drop for LlamaModel {
    fn drop(&mut self) {
        // SAFETY: created by llama.cpp, freed once; contexts hold an `Arc` of the model,
        // so none is left.
        unsafe { sys::llama_model_free(self.handle.as_ptr()) }
    }
}

impl LlamaModel {
    /// Loads the GGUF file at `path`. `progress` is called with the share done (0 to 1) and returns
    /// true to continue.
    ///
    /// For a file named `…-00001-of-00003.gguf` its siblings are loaded too.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(
        path: &Path,
        options: &LoadOptions,
        mut progress: impl FnMut(f32) -> bool,
    ) -> Result<Arc<Self>, LoadError> {
        // Everything that can be checked is checked before llama.cpp sees the file.
        let (header, weights_bytes) = check_files(path)?;
        check_memory(&header, weights_bytes, options)?;
        start()?;
        rpc::add_servers(&options.rpc).map_err(LoadError::Rpc)?;
        let mut cancelled = false;
        let mut report = |share: f32| {
            // A panic must not unwind into C++.
            let go_on = catch_unwind(AssertUnwindSafe(|| progress(share))).unwrap_or(false);
            cancelled |= !go_on;
            go_on
        };
        let own_kernels =
            options.own_kernels && options.rpc.is_empty() && kernel_choice::suit(&header);
        if own_kernels {
            loquent_kernels::register();
        }
        let kv = (options.kv_cells, options.kv_type);
        // Servers of the RPC back end are devices like GPUs, and registered by now.
        let placement = Placement::choose(options.gpu_layers, &header, kv, devices::gpus());
        let params = params(options, own_kernels, &placement);
        let loaded = load_native(path, params, &mut report);
        match loaded.map_err(LoadError::Backend)? {
            Some(handle) => {
                let (info, has_weights) = (describe(handle), !options.vocab_only);
                Ok(Arc::new(Self { handle, info, header, has_weights, own_kernels, placement }))
            }
            None if cancelled => Err(LoadError::Cancelled),
            None => Err(refusal(&header)),
        }
    }

    /// Facts from the model's metadata.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Returns true if the model was loaded with its weights.
    pub fn has_weights(&self) -> bool {
        self.has_weights
    }

    /// Returns true if this project's kernels compute the matrix products; otherwise llama.cpp's
    /// do.
    pub fn uses_own_kernels(&self) -> bool {
        self.own_kernels
    }

    /// GGUF header of the model, without arrays.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Placement of the layers.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    pub(super) fn as_ptr(&self) -> *mut sys::llama_model {
        self.handle.as_ptr()
    }
}

/// Information from a model's files, available before they are loaded.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// Header of the first file.
    pub header: Header,
    /// Size of all files.
    pub size_bytes: u64,
    /// True if this build and this processor compute the model's products with Loquent's kernels.
    pub own_kernels: bool,
}

/// Checks a model's files as [`LlamaModel::load`] does, without loading them.
///
/// # Errors
/// See [`LoadError`].
pub fn inspect(path: &Path) -> Result<Inspection, LoadError> {
    let (header, size_bytes) = check_files(path)?;
    let own_kernels = kernel_choice::suit(&header);
    Ok(Inspection { header, size_bytes, own_kernels })
}

/// Checks the file and its siblings; returns the first header and the total size.
fn check_files(path: &Path) -> Result<(Header, u64), LoadError> {
    let (first, mut total_bytes) = check_file(path)?;
    let parts = first.get("split.count").and_then(gguf::Value::as_u64).unwrap_or(1);
    // Siblings are checked like the first file, so that the error names the one at fault.
    for part in 2..=parts.min(99_999) {
        let Some(sibling) = sibling(path, part, parts) else {
            break;
        };
        total_bytes += check_file(&sibling)?.1;
    }
    Ok((first, total_bytes))
}

/// Returns the name of part `part` of a split model, as llama.cpp builds it.
fn sibling(first: &Path, part: u64, parts: u64) -> Option<PathBuf> {
    let name = first.file_name()?.to_str()?;
    let stem = name.strip_suffix(&format!("-00001-of-{parts:05}.gguf"))?;
    Some(first.with_file_name(format!("{stem}-{part:05}-of-{parts:05}.gguf")))
}

fn check_file(path: &Path) -> Result<(Header, u64), LoadError> {
    let owned = || path.to_owned();
    let unreadable = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => LoadError::NotFound(owned()),
        _ => LoadError::Unreadable { path: owned(), source },
    };
    let metadata = fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        let source = io::Error::other("not a regular file");
        return Err(LoadError::Unreadable { path: owned(), source });
    }
    let header = Header::open(path, ReadLimits::default()).map_err(|error| match error {
        gguf::GgufError::Io(source) => unreadable(source),
        gguf::GgufError::Magic { .. } => LoadError::NotGguf(owned()),
        // An empty file was not cut off; it never was a model.
        gguf::GgufError::Truncated { actual_bytes: 0..4, .. } => LoadError::NotGguf(owned()),
        gguf::GgufError::Truncated { needed_bytes, actual_bytes } => {
            LoadError::Truncated { path: owned(), needed_bytes, actual_bytes }
        }
        other => LoadError::Malformed { path: owned(), reason: other.to_string() },
    })?;
    check_epsilons(&header).map_err(|reason| LoadError::Malformed { path: owned(), reason })?;
    Ok((header, metadata.len()))
}

/// Checks the epsilons of norms: llama.cpp ends the process for one that is negative or NaN.
fn check_epsilons(header: &Header) -> Result<(), String> {
    for (key, value) in &header.metadata {
        let epsilon = match *value {
            gguf::Value::F32(number) => f64::from(number),
            gguf::Value::F64(number) => number,
            _ => continue,
        };
        let is_of_norm = key.ends_with("norm_epsilon") || key.ends_with("norm_rms_epsilon");
        if is_of_norm && !(epsilon.is_finite() && epsilon >= 0.0) {
            return Err(format!("{key} is {epsilon}; it must be finite and not negative"));
        }
    }
    Ok(())
}

fn check_memory(header: &Header, weights_bytes: u64, how: &LoadOptions) -> Result<(), LoadError> {
    let on_gpu = !GPU_BACK_ENDS.is_empty();
    let Some(available_bytes) = how.memory_bytes.or_else(available_bytes) else {
        return Ok(());
    };
    let kv_bytes = kv_bytes(header, how.kv_cells, how.kv_type);
    let needed_bytes = weights_bytes.saturating_add(kv_bytes);
    // With a GPU the weights may go to its memory, whose size is not known here: llama.cpp
    // decides.
    let elsewhere = on_gpu || !how.rpc.is_empty();
    if needed_bytes <= available_bytes || (elsewhere && how.gpu_layers != GpuLayers::Count(0)) {
        return Ok(());
    }
    Err(LoadError::TooLarge { weights_bytes, kv_bytes, available_bytes })
}

/// Parameters for loading the model; without the progress callback.
fn params(
    options: &LoadOptions,
    own_kernels: bool,
    placement: &Placement,
) -> sys::llama_model_params {
    // SAFETY: takes nothing and returns a plain struct by value.
    let mut params = unsafe { sys::llama_model_default_params() };
    params.n_gpu_layers = placement.parameter();
    params.load_mode = match options.mmap {
        true => sys::LLAMA_LOAD_MODE_MMAP,
        false => sys::LLAMA_LOAD_MODE_NONE,
    };
    params.vocab_only = options.vocab_only;
    // "Extra buffer types" hold llama.cpp's reordered copies of weights.
    params.use_extra_bufts = !own_kernels;
    params
}

fn load_native(
    path: &Path,
    mut params: sys::llama_model_params,
    report: &mut dyn FnMut(f32) -> bool,
) -> Result<Option<NonNull<sys::llama_model>>, String> {
    // A path with a NUL byte cannot exist, so it failed the checks before.
    let Ok(path) = CString::new(path.as_os_str().as_encoded_bytes()) else { return Ok(None) };
    let mut report = report;
    params.progress_callback = Some(handle_progress);
    params.progress_callback_user_data = (&raw mut report).cast::<c_void>();
    log::clear_errors();
    // SAFETY: `path` is NUL-terminated; `params` and `report`, to which it points,
    // live through the call, and the callback is used during it only.
    Ok(NonNull::new(unsafe { guard::load(&path, params) }?))
}

unsafe extern "C" fn handle_progress(share: f32, report: *mut c_void) -> bool {
    // SAFETY: `load_native` passes a pointer to its `report`, which outlives the load;
    // llama.cpp calls from the loading thread only.
    let report = unsafe { &mut *report.cast::<&mut dyn FnMut(f32) -> bool>() };
    report(share)
}

fn refusal(header: &Header) -> LoadError {
    // llama.cpp returns no reason, only null: it is in the log.
    let lines = log::take_errors();
    if lines.iter().any(|line| line.contains("unknown model architecture")) {
        let name = header.architecture().unwrap_or("(none)").to_owned();
        return LoadError::UnsupportedArchitecture(name);
    }
    let reason = lines.into_iter().next();
    let reason = reason.unwrap_or_else(|| "llama.cpp gave no reason".to_owned());
    LoadError::Backend(reason.trim_start_matches("error loading model: ").to_owned())
}

fn describe(model: NonNull<sys::llama_model>) -> ModelInfo {
    let ptr = model.as_ptr().cast_const();
    let template = // SAFETY: `ptr` is a live model; a null name asks for the default template.
        unsafe { sys::llama_model_chat_template(ptr, std::ptr::null()) };
    let chat_template = (!template.is_null()).then(|| {
        // SAFETY: not null, NUL-terminated, owned by the model.
        unsafe { CStr::from_ptr(template) }.to_string_lossy().into_owned()
    });
    // SAFETY: `ptr` is a live model in all of these; they read plain numbers.
    let (context_train, parameters, size_bytes, recurrent, window, vocab_size) = unsafe {
        (
            sys::llama_model_n_ctx_train(ptr),
            sys::llama_model_n_params(ptr),
            sys::llama_model_size(ptr),
            sys::llama_model_is_recurrent(ptr) || sys::llama_model_is_hybrid(ptr),
            sys::llama_model_n_swa(ptr),
            sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(ptr)),
        )
    };
    let history = match u32::try_from(window) {
        _ if recurrent => History::State,
        Ok(window @ 1..) => History::Window(window),
        _ => History::Whole,
    };
    let description = read_text(|buf, len| {
        // SAFETY: `ptr` is a live model, and `read_text` passes a buffer of `len` bytes.
        unsafe { sys::llama_model_desc(ptr, buf, len) }
    });
    ModelInfo {
        name: meta(ptr, c"general.name"),
        architecture: meta(ptr, c"general.architecture").unwrap_or_default(),
        description: description.unwrap_or_default(),
        context_train: u32::try_from(context_train).unwrap_or(0),
        parameters,
        size_bytes,
        vocab_size: u32::try_from(vocab_size).unwrap_or(0),
        chat_template,
        history,
    }
}

fn meta(model: *const sys::llama_model, key: &CStr) -> Option<String> {
    read_text(|buf, len| {
        // SAFETY: `key` is NUL-terminated, `buf` has `len` bytes.
        unsafe { sys::llama_model_meta_val_str(model, key.as_ptr(), buf, len) }
    })
}

/// Calls a function that, like `snprintf`, writes text and returns its length or -1.
fn read_text(write: impl Fn(*mut c_char, usize) -> i32) -> Option<String> {
    let mut buf = vec![0u8; 256];
    let len = usize::try_from(write(buf.as_mut_ptr().cast(), buf.len())).ok()?;
    if len >= buf.len() {
        buf.resize(len + 1, 0);
        write(buf.as_mut_ptr().cast(), buf.len());
    }
    buf.truncate(len);
    Some(String::from_utf8_lossy(&buf).into_owned())
}
