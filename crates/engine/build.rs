//! Compiles the few lines of C++ that guard calls of llama.cpp and that hand operations to our
//! kernels, and checks that
//! llama.cpp is built with what the features promise.

use std::path::PathBuf;

fn main() {
    println!("cargo:rustc-check-cfg=cfg(own_kernels)");
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
    cpp("native/guard.cpp").include(include).compile("loquent_guard");
    if !is("CARGO_CFG_TARGET_ARCH", "x86_64") || !is("CARGO_CFG_TARGET_OS", "linux") {
        return;
    }
    println!("cargo:rustc-cfg=own_kernels");
    let ggml = ggml_sources().expect("the build of llama-cpp-sys-2 names its sources");
    let mut kernels = cpp("native/kernels.cpp");
    for folder in ["include", "src", "src/ggml-cpu"] {
        kernels.include(ggml.join(folder));
    }
    // ggml's headers are no concern of our warnings.
    kernels.warnings(false).compile("loquent_kernels");
}

fn cpp(file: &str) -> cc::Build {
    println!("cargo:rerun-if-changed={file}");
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").file(file);
    build
}

/// The folder of llama.cpp's headers, as installed by its build: beside the CMake packages, whose
/// folder (`lib/cmake`) the crate tells its dependents.
fn llama_headers() -> Option<PathBuf> {
    let cmake = PathBuf::from(std::env::var_os("DEP_LLAMA_GGML_CMAKE_DIR")?);
    Some(cmake.parent()?.parent()?.join("include"))
}

/// The folder of ggml's sources, whose internal headers are not installed: as llama.cpp's build,
/// which lies beside what it installed, noted it.
fn ggml_sources() -> Option<PathBuf> {
    let installed = PathBuf::from(std::env::var_os("DEP_LLAMA_GGML_CMAKE_DIR")?);
    let out = installed.parent()?.parent()?;
    let cache = std::fs::read_to_string(out.join("build/CMakeCache.txt")).ok()?;
    let home =
        cache.lines().find_map(|line| line.strip_prefix("CMAKE_HOME_DIRECTORY:INTERNAL="))?;
    Some(PathBuf::from(home).join("ggml"))
}
