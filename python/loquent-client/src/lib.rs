//! The native half of the Python package `loquent-client`: the Rust client under an interface of
//! bytes and callbacks. The Python half gives it the shape of an HTTP transport.

mod client;
mod failure;
mod stream;
mod wait;

use pyo3::pymodule;

/// Loquent's client, without the shape of a Python library: use `loquent.Client`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::client::NativeClient;
    #[pymodule_export]
    use crate::failure::NativeError;
    #[pymodule_export]
    use crate::stream::NativeStream;
    #[pymodule_export]
    use crate::wait::Task;
}
