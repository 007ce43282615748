//! Unnamed network namespaces, which exist as long as a descriptor of them is open.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::sched::{CloneFlags, setns, unshare};
use rtnetlink::packet_route::route::{RouteScope, RouteType};
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};

use super::LinkError;

/// Index of the loopback device, the first in every namespace.
const LOOPBACK: u32 = 1;
/// Routing table of this host's local addresses.
const LOCAL_TABLE: u32 = 255;

/// Runs `work` on a thread within `inside`, or in this machine's network, and waits for it.
///
/// # Errors
/// If the namespace cannot be entered.
pub fn within<T: Send>(
    inside: Option<&Namespace>,
    work: impl FnOnce() -> T + Send,
) -> Result<T, LinkError> {
    match inside {
        Some(namespace) => namespace.within(work),
        None => {
            let joined = std::thread::scope(|scope| scope.spawn(work).join());
            Ok(joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        }
    }
}

/// An isolated network namespace, with only the devices created in it.
#[derive(Debug, Clone)]
pub struct Namespace {
    file: Arc<File>,
}

impl Namespace {
    /// Creates a namespace with a working loopback device.
    ///
    /// # Errors
    /// If this process lacks the privilege (root).
    pub fn create() -> Result<Self, LinkError> {
        let unshared = || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        };
        let file = std::thread::scope(|scope| scope.spawn(unshared).join())
            .unwrap_or_else(|_| Err(io::Error::other("the thread has panicked")))
            .map_err(|source| LinkError::Privilege { what: "network namespace", source })?;
        let namespace = Self { file: Arc::new(file) };
        namespace.switch_ipv6_off()?;
        namespace.configure("loopback device", |netlink| async move {
            netlink.link().set(LinkUnspec::new_with_index(LOOPBACK).up().build()).execute().await
        })?;
        Ok(namespace)
    }

    /// Returns the path with which a shell can enter the namespace: `nsenter --net=PATH`.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    /// Runs `work` on a thread inside, and waits for it. Sockets and processes created by it stay
    /// inside.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LinkError> {
        let entered = || -> io::Result<T> {
            setns(&self.file, CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        };
        let joined = std::thread::scope(|scope| scope.spawn(entered).join());
        let result = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        result.map_err(|source| LinkError::Privilege { what: "entering a namespace", source })
    }

    /// Starts a thread inside.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<io::Result<T>>, LinkError> {
        let file = Arc::clone(&self.file);
        let entered = move || -> io::Result<T> {
            setns(&file, CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(entered);
        thread.map_err(LinkError::io("thread"))
    }

    /// Sets a kernel parameter of this namespace, such as `net/ipv4/tcp_no_metrics_save`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<(), LinkError> {
        let path = format!("/proc/sys/{name}");
        let written = self.within(|| std::fs::write(&path, value))?;
        written.map_err(LinkError::io(path))
    }

    /// Makes every address of a network local to this namespace.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn add_local_network(&self, network: Ipv4Addr, prefix: u8) -> Result<(), LinkError> {
        let route = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(network, prefix)
            .output_interface(LOOPBACK)
            .table_id(LOCAL_TABLE)
            .scope(RouteScope::Host)
            .kind(RouteType::Local)
            .build();
        self.configure("addresses of the server", |netlink| async move {
            netlink.route().add(route).execute().await
        })
    }

    /// Disables IPv6, which the link does not carry: the kernel's router and neighbour discovery
    /// would cross it. If this fails, the relay drops those packets.
    fn switch_ipv6_off(&self) -> Result<(), LinkError> {
        for which in ["all", "default"] {
            let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            let _ = self.within(|| std::fs::write(path, "1"))?;
        }
        Ok(())
    }

    /// Runs a netlink request on the namespace's routing tables.
    fn configure<F>(
        &self,
        what: &'static str,
        ask: impl FnOnce(Handle) -> F + Send,
    ) -> Result<(), LinkError>
    where
        F: Future<Output = Result<(), rtnetlink::Error>>,
    {
        let refused = |reason: String| LinkError::Network { what, reason };
        let inside = || -> Result<(), String> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map_err(|error| error.to_string())?.block_on(async {
                let (connection, handle, _) =
                    rtnetlink::new_connection().map_err(|error| error.to_string())?;
                tokio::spawn(connection);
                ask(handle).await.map_err(|error| error.to_string())
            })
        };
        self.within(inside)?.map_err(refused)
    }
}
