//! The thread that carries packets through an [`Emulator`] in real time.
//!
//! It is a dedicated thread that waits with `ppoll`: its timeout has a resolution of nanoseconds,
//! compared with milliseconds for the timers of an async runtime, and nothing else runs on the
//! thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use super::LinkError;
use super::emulator::{DuePacket, Emulator, PacketRoute, PathLinks, PathSchedule};
use super::observer::{PacketObserver, SeenPacket};
use super::packet_stats::{Lateness, LinkSummary};
use super::realtime::be_realtime;

/// Source and destination of packets.
pub trait PacketWire: Send {
    /// Returns the descriptors to wait for; the indices in this list are the sources of
    /// [`Self::receive`].
    fn sources(&self) -> Vec<BorrowedFd<'_>>;
    /// Receives the next packet waiting at `source`, if there is one.
    fn receive(&mut self, source: usize, buffer: &mut [u8]) -> Received;
    /// Delivers a packet at the far end of `route`; returns false on failure.
    fn deliver(&mut self, route: PacketRoute, packet: &[u8]) -> bool;
    /// Returns the number of header bytes that a packet has on a network but not in the buffer.
    fn header_bytes(&self) -> usize;
}

/// Result of [`PacketWire::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// Nothing left for now.
    Nothing,
    /// A packet that does not cross the link.
    Ignored,
    /// A packet, now in the buffer.
    Packet {
        /// Path, conversation and direction.
        route: PacketRoute,
        /// Length in bytes.
        len: usize,
    },
}

/// A running relay. Dropping it stops it.
#[derive(Debug)]
pub struct LinkRelay {
    shared: Arc<RelayControl>,
    thread: Option<JoinHandle<io::Result<LinkSummary>>>,
}

#[derive(Debug)]
struct RelayControl {
    origin: Instant,
    /// Start of each path's schedule, in µs after the origin.
    begins_us: Vec<AtomicU64>,
    /// Time at which each path's packets stop counting, in µs after the origin.
    ends_us: Vec<AtomicU64>,
    /// New links, which replace the present ones.
    change: Mutex<Option<PathLinks>>,
    is_stopping: AtomicBool,
    /// Wakes the thread for a change, or to stop.
    wake: EventFd,
}

/// Marks a schedule that has not begun.
const NOT_YET: u64 = u64::MAX;
/// Maximum packets taken from one source before other sources and due packets are served. Chosen by
/// hand: a flood on one path must not delay the deliveries of another.
const BATCH: usize = 64;
/// Buffer size, larger than any packet of the TUN devices or of UDP.
const BUFFER_BYTES: usize = 65_536;

impl LinkRelay {
    /// Starts a relay that carries the packets of `wire` over one path for each of `schedules`.
    /// `observer` is called with every packet's fate.
    ///
    /// # Errors
    /// If the system has no descriptor or thread left.
    pub fn start(
        wire: impl PacketWire + 'static,
        schedules: Vec<PathSchedule>,
        observer: Option<Box<dyn PacketObserver>>,
    ) -> Result<Self, LinkError> {
        Self::start_over(wire, PathLinks::Own(schedules), observer)
    }

    /// Like [`Self::start`], but with the given links for the paths.
    ///
    /// # Errors
    /// If the system has no descriptor or thread left.
    pub fn start_over(
        wire: impl PacketWire + 'static,
        links: PathLinks,
        observer: Option<Box<dyn PacketObserver>>,
    ) -> Result<Self, LinkError> {
        let wake = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map_err(io::Error::from)
            .map_err(LinkError::io("event descriptor"))?;
        let shared = Arc::new(RelayControl {
            origin: Instant::now(),
            begins_us: (0..links.paths()).map(|_| AtomicU64::new(NOT_YET)).collect(),
            ends_us: (0..links.paths()).map(|_| AtomicU64::new(NOT_YET)).collect(),
            change: Mutex::new(None),
            is_stopping: AtomicBool::new(false),
            wake,
        });
        let inside = Arc::clone(&shared);
        let body = move || {
            be_realtime();
            carry(wire, links, &inside, observer)
        };
        let thread = std::thread::Builder::new()
            .name("link".into())
            .spawn(body)
            .map_err(LinkError::io("relay thread"))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Begins the schedule of `path`, its losses and outages, at `at`.
    pub fn begin(&self, path: usize, at: Instant) {
        self.shared.begins_us[path].store(self.shared.since_origin_us(at), Ordering::Release);
    }

    /// Stops counting packets on `path` at `at`; they are still carried.
    pub fn end(&self, path: usize, at: Instant) {
        self.shared.ends_us[path].store(self.shared.since_origin_us(at), Ordering::Release);
    }

    /// Replaces the links of all paths. Their schedules have not begun: the paths lose nothing
    /// until [`Self::begin`]. Packets in flight are lost, as on a path change, and the counters are
    /// reset.
    ///
    /// # Panics
    /// If the number of paths differs.
    pub fn change(&self, links: PathLinks) {
        assert_eq!(links.paths(), self.shared.begins_us.len(), "the wire's paths stay");
        let mut change = self.shared.change.lock().unwrap_or_else(PoisonError::into_inner);
        for at_us in self.shared.begins_us.iter().chain(&self.shared.ends_us) {
            at_us.store(NOT_YET, Ordering::Release);
        }
        *change = Some(links);
        self.shared.wake();
    }

    /// Stops the relay; packets in flight are lost.
    ///
    /// # Errors
    /// If the record could not be written or the relay failed.
    pub fn stop(mut self) -> io::Result<LinkSummary> {
        self.halt().unwrap_or_else(|| Ok(LinkSummary::default()))
    }

    fn halt(&mut self) -> Option<io::Result<LinkSummary>> {
        let thread = self.thread.take()?;
        self.shared.is_stopping.store(true, Ordering::Release);
        self.shared.wake();
        let done = thread.join();
        Some(done.unwrap_or_else(|_| Err(io::Error::other("the relay has panicked"))))
    }
}

impl RelayControl {
    fn wake(&self) {
        // The counter cannot overflow: that would take 2^64 calls without a turn of the thread.
        let _ = self.wake.write(1);
    }

    fn take_change(&self) -> Option<PathLinks> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn since_origin_us(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.origin).as_micros() as u64
    }
}

impl Drop for LinkRelay {
    fn drop(&mut self) {
        self.halt();
    }
}

/// Carries packets until the relay is stopped, restarting at each change of the links.
fn carry<W: PacketWire>(
    mut wire: W,
    mut links: PathLinks,
    shared: &RelayControl,
    mut observer: Option<Box<dyn PacketObserver>>,
) -> io::Result<LinkSummary> {
    loop {
        let mut carrier = Carrier::new(&mut wire, &links, shared, observer.as_deref_mut());
        let outcome = carrier.run()?;
        let summary = carrier.summary();
        match outcome {
            Outcome::Changed(next) => links = next,
            Outcome::Stopped => {
                observer.map_or(Ok(()), |mut observer| observer.finish())?;
                return Ok(summary);
            }
        }
    }
}

/// Reason why a [`Carrier`] returned.
enum Outcome {
    Stopped,
    Changed(PathLinks),
}

struct Carrier<'a, W> {
    wire: &'a mut W,
    emulator: Emulator<'a>,
    shared: &'a RelayControl,
    observer: Option<&'a mut (dyn PacketObserver + 'static)>,
    lateness: Lateness,
    unwritten: u64,
    buffer: Vec<u8>,
}

impl<'a, W: PacketWire> Carrier<'a, W> {
    fn new(
        wire: &'a mut W,
        links: &'a PathLinks,
        shared: &'a RelayControl,
        observer: Option<&'a mut (dyn PacketObserver + 'static)>,
    ) -> Self {
        Self {
            wire,
            emulator: Emulator::new(links),
            shared,
            observer,
            lateness: Lateness::default(),
            unwritten: 0,
            buffer: vec![0; BUFFER_BYTES],
        }
    }

    fn run(&mut self) -> io::Result<Outcome> {
        loop {
            // Due packets first: what waits in a source has no deadline yet.
            self.deliver_due();
            let Some(ready) = self.wait()? else {
                if self.shared.is_stopping.load(Ordering::Acquire) {
                    return Ok(Outcome::Stopped);
                }
                // Reset first: a change that comes after this wakes the thread again.
                let _ = self.shared.wake.read();
                match self.shared.take_change() {
                    Some(links) => return Ok(Outcome::Changed(links)),
                    None => continue,
                }
            };
            for source in ready {
                self.take_from(source)?;
            }
        }
    }

    fn summary(&self) -> LinkSummary {
        LinkSummary {
            paths: self.emulator.stats(),
            lateness: self.lateness.clone(),
            unwritten: self.unwritten,
        }
    }

    fn now_us(&self) -> u64 {
        self.shared.origin.elapsed().as_micros() as u64
    }

    fn deliver_due(&mut self) {
        loop {
            // Read again for each packet: writing one takes time in which others become due.
            let now_us = self.now_us();
            let Some(DuePacket { due_us, route, packet }) = self.emulator.poll_packet(now_us)
            else {
                break;
            };
            self.unwritten += u64::from(!self.wire.deliver(route, &packet));
            self.lateness.note(now_us - due_us);
        }
    }

    /// Waits until a source is readable, and returns all readable sources; `None` when woken.
    fn wait(&self) -> io::Result<Option<Vec<usize>>> {
        let now_us = self.now_us();
        let timeout = self.emulator.poll_timeout().map(|due_us| {
            TimeSpec::from_duration(Duration::from_micros(due_us.saturating_sub(now_us)))
        });
        let watched = std::iter::once(self.shared.wake.as_fd()).chain(self.wire.sources());
        let mut fds: Vec<PollFd<'_>> =
            watched.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match ppoll(&mut fds, timeout, None) {
            // A signal is no readiness: the loop delivers what is due and waits again.
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = fds.iter().enumerate().filter(|(_, fd)| fd.any() == Some(true));
        let mut sources = Vec::new();
        for (place, _) in &mut ready {
            match place.checked_sub(1) {
                None => return Ok(None),
                Some(source) => sources.push(source),
            }
        }
        Ok(Some(sources))
    }

    fn take_from(&mut self, source: usize) -> io::Result<()> {
        for _ in 0..BATCH {
            match self.wire.receive(source, &mut self.buffer) {
                Received::Nothing => break,
                Received::Ignored => {}
                Received::Packet { route, len } => self.handle_packet(route, len)?,
            }
        }
        Ok(())
    }

    fn handle_packet(&mut self, route: PacketRoute, len: usize) -> io::Result<()> {
        let now_us = self.now_us();
        let begins_us = self.shared.begins_us[route.path].load(Ordering::Acquire);
        // The begin is set ahead of time, from another thread; it takes effect with the first
        // packet after it, which is the first that it can matter to.
        if begins_us <= now_us {
            self.emulator.begin(route.path, begins_us);
        }
        if self.shared.ends_us[route.path].load(Ordering::Acquire) <= now_us {
            self.emulator.end(route.path);
        }
        let wire_bytes = len + self.wire.header_bytes();
        let packet = &self.buffer[..len];
        let fate = self.emulator.handle_packet(now_us, route, wire_bytes, packet);
        // Before a path begins there is no schedule to compare a record with.
        match (&mut self.observer, now_us.checked_sub(begins_us)) {
            (Some(observer), Some(at_us)) => {
                let fate = fate.since(begins_us);
                observer.handle_packet(SeenPacket { at_us, route, bytes: wire_bytes, fate })
            }
            _ => Ok(()),
        }
    }
}
