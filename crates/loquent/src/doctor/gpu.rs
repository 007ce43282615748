//! Checks the GPU: the hardware of the machine, the support in this build, and anything missing
//! between the two.
//!
//! The hardware is detected from the system's files, so that no tool has to be installed. Only
//! Linux has these files; on macOS every Apple processor has a GPU.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::diagnosis::Diagnosis;

/// Maximum number of devices to examine.
const MAX_DEVICES: usize = 4096;

/// Maker of a GPU, which determines the back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum GpuMaker {
    Nvidia,
    Amd,
    Intel,
    Apple,
}

impl GpuMaker {
    /// Returns the maker by its PCI number. Other makers provide displays of virtual machines,
    /// which compute nothing.
    fn of_pci(vendor: &str) -> Option<Self> {
        match vendor {
            "0x10de" => Some(Self::Nvidia),
            "0x1002" => Some(Self::Amd),
            "0x8086" => Some(Self::Intel),
            _ => None,
        }
    }

    /// Returns the cargo feature that enables it in a build.
    fn feature(self) -> &'static str {
        match self {
            Self::Nvidia => "cuda",
            Self::Amd | Self::Intel => "vulkan",
            Self::Apple => "metal",
        }
    }
}

impl fmt::Display for GpuMaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nvidia => "an NVIDIA GPU",
            Self::Amd => "an AMD GPU",
            Self::Intel => "Intel graphics",
            Self::Apple => "Apple's GPU",
        })
    }
}

/// GPU equipment of the machine, according to the system's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct GpuEquipment {
    /// Makers, without duplicates, the one with the fastest back end first.
    makers: Vec<GpuMaker>,
    /// True if NVIDIA's kernel driver is loaded.
    nvidia_driver: bool,
    /// True if the devices through which programs reach it exist.
    nvidia_devices: bool,
    /// True if the devices through which programs reach any GPU's Vulkan driver exist.
    render_devices: bool,
    /// Number of installed Vulkan drivers.
    vulkan_drivers: usize,
}

impl GpuEquipment {
    fn of_machine() -> Self {
        if cfg!(all(target_os = "macos", target_arch = "aarch64")) {
            return Self { makers: vec![GpuMaker::Apple], ..Self::default() };
        }
        Self::below(Path::new("/"))
    }

    /// Detects the equipment from the files below `root`.
    fn below(root: &Path) -> Self {
        let nvidia_driver = root.join("proc/driver/nvidia/version").exists();
        let mut makers: Vec<_> = entries(&root.join("sys/bus/pci/devices"))
            .iter()
            .filter_map(|device| pci_gpu(device))
            .collect();
        // A container may see the driver and no bus.
        if nvidia_driver {
            makers.push(GpuMaker::Nvidia);
        }
        makers.sort_unstable();
        makers.dedup();
        let drivers = |folder: &str| {
            let files = entries(&root.join(folder).join("vulkan/icd.d"));
            files.iter().filter(|file| file.extension().is_some_and(|it| it == "json")).count()
        };
        let starts = |folder: &str, name: &str| {
            let named = |path: &PathBuf| {
                let file = path.file_name().and_then(|file| file.to_str());
                file.is_some_and(|file| file.starts_with(name))
            };
            entries(&root.join(folder)).iter().any(named)
        };
        Self {
            makers,
            nvidia_driver,
            nvidia_devices: starts("dev", "nvidia"),
            render_devices: starts("dev/dri", "renderD"),
            vulkan_drivers: drivers("usr/share") + drivers("etc"),
        }
    }
}

/// Returns the maker of a PCI device, if it is a display or 3D controller.
fn pci_gpu(device: &Path) -> Option<GpuMaker> {
    let class = fs::read_to_string(device.join("class")).ok()?;
    let vendor = fs::read_to_string(device.join("vendor")).ok()?;
    class.starts_with("0x03").then(|| GpuMaker::of_pci(vendor.trim()))?
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.take(MAX_DEVICES).map(|entry| entry.path()).collect()
}

/// A GPU that llama.cpp can use.
#[derive(Debug, Clone, PartialEq, Eq)]
struct UsableGpu {
    name: String,
    free_bytes: u64,
    total_bytes: u64,
}

/// GPU support of this build, and the equipment of the machine.
struct GpuState {
    /// Back ends of this build, by the names of the cargo features.
    back_ends: &'static [&'static str],
    usable: Vec<UsableGpu>,
    equipment: GpuEquipment,
}

impl GpuState {
    #[cfg(feature = "llama")]
    fn of_machine() -> Self {
        use loquent_engine::llama::{DeviceKind, GPU_BACK_ENDS, devices};
        let is_gpu = |kind| matches!(kind, DeviceKind::Gpu | DeviceKind::IntegratedGpu);
        let usable = devices().into_iter().filter(|device| is_gpu(device.kind));
        let usable = usable.map(|device| UsableGpu {
            name: format!("{} ({})", device.name, device.description),
            free_bytes: device.free_bytes,
            total_bytes: device.total_bytes,
        });
        Self {
            back_ends: GPU_BACK_ENDS,
            usable: usable.collect(),
            equipment: GpuEquipment::of_machine(),
        }
    }

    #[cfg(not(feature = "llama"))]
    fn of_machine() -> Self {
        let equipment = GpuEquipment::of_machine();
        Self { back_ends: &[], usable: Vec::new(), equipment }
    }

    fn diagnose(&self) -> Diagnosis {
        const CHECK: &str = "gpu";
        if !self.usable.is_empty() {
            return Diagnosis::fine(CHECK, self.usable());
        }
        let equipment = &self.equipment;
        match (self.back_ends, equipment.makers.first()) {
            ([], None) => {
                Diagnosis::fine(CHECK, "none was found; everything is computed on the processor")
            }
            // Not worth a build: it shares the processor's memory, and is seldom faster.
            ([], Some(maker @ GpuMaker::Intel)) => Diagnosis::fine(
                CHECK,
                format!("{maker}, not used: this build computes on the processor (docs/gpu.md)"),
            ),
            ([], Some(maker)) => Diagnosis::warning(
                CHECK,
                format!("{maker} is here, and this build computes on the processor alone"),
                format!("build with --features {} (docs/gpu.md)", maker.feature()),
            ),
            (back_ends, maker) => {
                let what =
                    format!("this build is for {}, and no GPU can be used", back_ends.join(", "));
                Diagnosis::warning(CHECK, what, missing(back_ends, maker.copied(), equipment))
            }
        }
    }

    fn usable(&self) -> String {
        let size = super::machine::size;
        let one = |gpu: &UsableGpu| {
            let (free, all) = (size(gpu.free_bytes), size(gpu.total_bytes));
            format!("{}: {free} of {all} free", gpu.name)
        };
        self.usable.iter().map(one).collect::<Vec<_>>().join("; ")
    }
}

/// Describes what a build with `back_ends` lacks on this machine.
fn missing(back_ends: &[&str], maker: Option<GpuMaker>, has: &GpuEquipment) -> String {
    let Some(maker) = maker else {
        return "no GPU is visible here: in a container, pass it on (docker run --gpus all, or \
                --device /dev/dri); in a virtual machine, assign it"
            .to_owned();
    };
    if !back_ends.contains(&maker.feature()) && !back_ends.contains(&"vulkan") {
        return format!("here is {maker}: build with --features {} (docs/gpu.md)", maker.feature());
    }
    let (has_driver, has_devices) = match back_ends.contains(&"cuda") {
        true => (has.nvidia_driver, has.nvidia_devices),
        false => (has.vulkan_drivers > 0, has.render_devices),
    };
    match (has_driver, has_devices) {
        (false, _) if back_ends.contains(&"cuda") => {
            "NVIDIA's driver is not loaded: install it, then restart the machine".to_owned()
        }
        (false, _) => "no Vulkan driver is installed: on Debian, mesa-vulkan-drivers; for NVIDIA, \
                       its own driver"
            .to_owned(),
        (true, false) => {
            "its devices are missing below /dev: in a container, pass them on (docker \
                          run --gpus all, or --device /dev/dri)"
                .to_owned()
        }
        (true, true) => "the driver is older than the build needs, or this user may not open its \
                         devices (groups video and render); run with LOQUENT_LOG=debug for \
                         llama.cpp's reason"
            .to_owned(),
    }
}

/// Diagnoses the GPU.
pub(super) fn diagnose() -> Diagnosis {
    GpuState::of_machine().diagnose()
}

/// Returns the reason why a GPU of this machine is not used, if there is one and it is not.
#[cfg(feature = "llama")]
pub(crate) fn why_unused() -> Option<String> {
    let found = diagnose();
    (found.severity == super::diagnosis::Severity::Warning).then_some(found.what)
}

#[cfg(test)]
mod tests {
    //! Tests with machines as folders: they need no GPU, and none was tried.
    use super::super::diagnosis::Severity;
    use super::*;

    fn machine(files: &[(&str, &str)]) -> GpuEquipment {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        GpuEquipment::below(root.path())
    }

    const NVIDIA: [(&str, &str); 2] = [
        ("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n"),
        ("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n"),
    ];
    const NVIDIA_DRIVER: (&str, &str) = ("proc/driver/nvidia/version", "NVRM version: 570\n");

    fn state(back_ends: &'static [&'static str], equipment: GpuEquipment) -> Diagnosis {
        GpuState { back_ends, usable: Vec::new(), equipment }.diagnose()
    }

    #[test]
    fn machines_are_read_off_their_files() {
        assert_eq!(machine(&[]), GpuEquipment::default());
        let display = [
            ("sys/bus/pci/devices/a/class", "0x030000\n"),
            ("sys/bus/pci/devices/a/vendor", "0x1234\n"),
            ("sys/bus/pci/devices/b/class", "0x020000\n"),
            ("sys/bus/pci/devices/b/vendor", "0x8086\n"),
        ];
        assert_eq!(machine(&display).makers, [], "a virtual display and a network card");
        let full = machine(&[
            NVIDIA[0],
            NVIDIA[1],
            NVIDIA_DRIVER,
            ("dev/nvidia0", ""),
            ("dev/dri/renderD128", ""),
            ("usr/share/vulkan/icd.d/nvidia_icd.json", "{}"),
            ("usr/share/vulkan/icd.d/README", ""),
        ]);
        let expected = GpuEquipment {
            makers: vec![GpuMaker::Nvidia],
            nvidia_driver: true,
            nvidia_devices: true,
            render_devices: true,
            vulkan_drivers: 1,
        };
        assert_eq!(full, expected);
    }

    #[test]
    fn an_unused_gpu_is_found() {
        let found = state(&[], machine(&NVIDIA));
        assert_eq!(found.severity, Severity::Warning);
        assert!(found.advice.unwrap().contains("--features cuda"));
        assert_eq!(state(&[], machine(&[])).severity, Severity::Fine);
    }

    #[test]
    fn a_build_without_its_gpu_says_what_is_missing() {
        let advice = |files: &[(&str, &str)]| state(&["cuda"], machine(files)).advice.unwrap();
        assert!(advice(&[]).contains("--gpus all"));
        assert!(advice(&NVIDIA).contains("driver is not loaded"));
        assert!(advice(&[NVIDIA_DRIVER]).contains("missing below /dev"));
        assert!(advice(&[NVIDIA_DRIVER, ("dev/nvidia0", "")]).contains("older"));
        let vulkan = state(&["vulkan"], machine(&NVIDIA)).advice.unwrap();
        assert!(vulkan.contains("no Vulkan driver"), "{vulkan}");
    }

    #[test]
    fn a_usable_gpu_is_named_with_its_memory() {
        let usable =
            UsableGpu { name: "CUDA0 (X)".into(), free_bytes: 3 << 30, total_bytes: 4 << 30 };
        let equipment = GpuEquipment::default();
        let state = GpuState { back_ends: &["cuda"], usable: vec![usable], equipment };
        assert_eq!(state.diagnose().what, "CUDA0 (X): 3.0 GiB of 4.0 GiB free");
    }

    #[test]
    fn this_machine_can_be_asked() {
        assert_ne!(diagnose().severity, Severity::Failure);
    }
}
