//! Compiles the few lines of C++ that guard calls of llama.cpp, and checks that llama.cpp is built
//! with what the features promise.

use std::path::PathBuf;

fn main() {
    let is = |key: &str, value: &str| std::env::var(key).is_ok_and(|found| found == value);
    println!("cargo:rerun-if-env-changed=GGML_RPC");
    if std::env::var_os("CARGO_FEATURE_RPC").is_some() && !is("GGML_RPC", "ON") {
        // A feature cannot set what the build script of llama-cpp-sys-2 reads.
        panic!(
            "feature \"rpc\": build with GGML_RPC=ON in the environment, in a target folder of its own"
        );
    }
    if std::env::var_os("CARGO_FEATURE_LLAMA").is_none() {
        return;
    }
    let include = llama_headers().expect("llama-cpp-sys-2 names the folder of its ggml package");
    println!("cargo:rerun-if-changed=native/guard.cpp");
    let mut guard = cc::Build::new();
    guard.cpp(true).std("c++17").file("native/guard.cpp").include(include);
    guard.compile("loquent_guard");
}

/// The folder of llama.cpp's headers, as installed by its build: beside the CMake packages, whose
/// folder (`lib/cmake`) the crate tells its dependents.
fn llama_headers() -> Option<PathBuf> {
    let cmake = PathBuf::from(std::env::var_os("DEP_LLAMA_GGML_CMAKE_DIR")?);
    Some(cmake.parent()?.parent()?.join("include"))
}
