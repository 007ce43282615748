//! Compiles the few lines of C++ that hand operations of llama.cpp's graphs to the kernels, for the
//! systems that have kernels.

use std::path::PathBuf;

fn main() {
    println!("cargo:rustc-check-cfg=cfg(own_kernels)");
    println!("cargo:rerun-if-changed=native/kernels.cpp");
    let is = |key: &str, value: &str| std::env::var(key).is_ok_and(|found| found == value);
    if !is("CARGO_CFG_TARGET_ARCH", "x86_64") || !is("CARGO_CFG_TARGET_OS", "linux") {
        return;
    }
    println!("cargo:rustc-cfg=own_kernels");
    let ggml = ggml_sources().expect("the build of llama-cpp-sys-2 names its sources");
    let mut kernels = cc::Build::new();
    kernels.cpp(true).std("c++17").file("native/kernels.cpp");
    for folder in ["include", "src", "src/ggml-cpu"] {
        kernels.include(ggml.join(folder));
    }
    // ggml's headers are no concern of our warnings.
    kernels.warnings(false).compile("loquent_kernels");
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
