//! Devices that llama.cpp can compute on, and the GPU back ends of this build.

use std::ffi::{CStr, c_char};

use super::{start, sys};

/// Kind of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// The processor.
    Processor,
    /// A graphics processor with memory of its own, or one of Apple's.
    Gpu,
    /// A graphics processor that shares the machine's memory.
    IntegratedGpu,
    /// A library beside the processor, such as BLAS: it holds no layers.
    Helper,
}

/// A device that llama.cpp can compute on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// llama.cpp's name of the device, for example `CUDA0`.
    pub name: String,
    /// Manufacturer's name of the device.
    pub description: String,
    /// Kind of device.
    pub kind: DeviceKind,
    /// Free memory in bytes, as reported by the driver.
    pub free_bytes: u64,
    /// Total memory in bytes.
    pub total_bytes: u64,
}

/// The GPU back ends of this build, by the names of the cargo features.
pub const GPU_BACK_ENDS: &[&str] = &[
    #[cfg(feature = "cuda")]
    "cuda",
    #[cfg(feature = "metal")]
    "metal",
    #[cfg(feature = "vulkan")]
    "vulkan",
];

/// All devices that llama.cpp found, the processor included; none if llama.cpp cannot run.
pub fn devices() -> Vec<Device> {
    if start().is_err() {
        return Vec::new();
    }
    // SAFETY: the library has been started; it counts what is registered.
    let count = unsafe { sys::ggml_backend_dev_count() };
    (0..count).filter_map(device).collect()
}

/// Returns true if llama.cpp found a usable GPU.
pub fn has_gpu() -> bool {
    !gpus().is_empty()
}

/// Devices on which llama.cpp puts layers: integrated graphics only if there is no other.
pub(super) fn gpus() -> Vec<Device> {
    chosen(devices())
}

fn chosen(devices: Vec<Device>) -> Vec<Device> {
    let has_gpu = devices.iter().any(|device| device.kind == DeviceKind::Gpu);
    let wanted = if has_gpu { DeviceKind::Gpu } else { DeviceKind::IntegratedGpu };
    devices.into_iter().filter(|device| device.kind == wanted).collect()
}

fn device(index: usize) -> Option<Device> {
    // SAFETY: below the count; a registered device lives as long as the process, and its texts
    // with it.
    unsafe {
        let device = sys::ggml_backend_dev_get(index);
        if device.is_null() {
            return None;
        }
        let (mut free, mut total) = (0, 0);
        sys::ggml_backend_dev_memory(device, &raw mut free, &raw mut total);
        Some(Device {
            name: text(sys::ggml_backend_dev_name(device)),
            description: text(sys::ggml_backend_dev_description(device)),
            kind: kind(sys::ggml_backend_dev_type(device))?,
            free_bytes: free as u64,
            total_bytes: total as u64,
        })
    }
}

fn kind(number: sys::ggml_backend_dev_type) -> Option<DeviceKind> {
    match number {
        sys::GGML_BACKEND_DEVICE_TYPE_CPU => Some(DeviceKind::Processor),
        sys::GGML_BACKEND_DEVICE_TYPE_GPU => Some(DeviceKind::Gpu),
        sys::GGML_BACKEND_DEVICE_TYPE_IGPU => Some(DeviceKind::IntegratedGpu),
        sys::GGML_BACKEND_DEVICE_TYPE_ACCEL => Some(DeviceKind::Helper),
        _ => None,
    }
}

/// # Safety
/// `text` is null, or NUL-terminated and alive.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller vouches for it.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    //! Queries that need no GPU, and the choice among devices.
    use super::*;

    fn device(kind: DeviceKind) -> Device {
        let (name, description) = (String::new(), String::new());
        Device { name, description, kind, free_bytes: 0, total_bytes: 0 }
    }

    #[test]
    fn the_processor_is_a_device() {
        let found = devices();
        assert!(found.iter().any(|device| device.kind == DeviceKind::Processor), "{found:?}");
    }

    #[test]
    fn integrated_graphics_are_the_second_choice() {
        use DeviceKind::{Gpu, Helper, IntegratedGpu, Processor};
        let kinds = |all: &[DeviceKind]| {
            let all = chosen(all.iter().map(|&kind| device(kind)).collect());
            all.iter().map(|device| device.kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&[IntegratedGpu, Processor, Gpu, Gpu]), [Gpu, Gpu]);
        assert_eq!(kinds(&[IntegratedGpu, Processor]), [IntegratedGpu]);
        assert_eq!(kinds(&[Processor, Helper]), []);
    }
}
