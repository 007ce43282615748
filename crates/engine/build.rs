//! Compiles the few lines of C++ that hand operations to our kernels, and checks that
//! llama.cpp is built with what the features promise.

fn main() {
    println!("cargo:rerun-if-changed=native/kernels.cpp");
    println!("cargo:rustc-check-cfg=cfg(own_kernels)");
    let is = |key: &str, value: &str| std::env::var(key).is_ok_and(|found| found == value);
    println!("cargo:rerun-if-env-changed=GGML_RPC");
    if std::env::var_os("CARGO_FEATURE_RPC").is_some() && !is("GGML_RPC", "ON") {
        // A feature cannot set what the build script of llama-cpp-sys-2 reads.
        panic!(
            "feature \"rpc\": build with GGML_RPC=ON in the environment, in a target folder of its own"
        );
    }
    let llama = std::env::var_os("CARGO_FEATURE_LLAMA").is_some();
    if !llama || !is("CARGO_CFG_TARGET_ARCH", "x86_64") || !is("CARGO_CFG_TARGET_OS", "linux") {
        return;
    }
    println!("cargo:rustc-cfg=own_kernels");
    cc::Build::new().cpp(true).std("c++17").file("native/kernels.cpp").compile("loquent_kernels");
}
