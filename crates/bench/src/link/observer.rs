//! Observers of the packets on a link: they record packets in a file, or draw them on a page.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use super::emulator::PacketRoute;
use super::packet_stats::Fate;

/// A packet that has entered the link, with its fate: its arrival time or its loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenPacket {
    /// Send time, in µs after the start of its path's schedule.
    pub at_us: u64,
    /// Path and direction.
    pub route: PacketRoute,
    /// Size, including all headers.
    pub bytes: usize,
    /// Fate, relative to the same start.
    pub fate: Fate,
}

/// An observer, called on the relay's thread for each packet of a path whose schedule has begun.
/// Time spent in it delays deliveries.
pub trait PacketObserver: Send {
    /// Handles one packet.
    ///
    /// # Errors
    /// If the observer cannot continue; the relay then stops.
    fn handle_packet(&mut self, packet: SeenPacket) -> io::Result<()>;

    /// Called when the relay has stopped.
    ///
    /// # Errors
    /// If the observations could not be saved.
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes each packet to a file as a line of JSON.
#[derive(Debug)]
pub struct PacketRecord {
    out: BufWriter<File>,
}

impl PacketRecord {
    /// Creates a record in `file`, for [`LinkRelay::start`](super::relay::LinkRelay::start).
    pub fn to(file: File) -> Box<dyn PacketObserver> {
        Box::new(Self { out: BufWriter::new(file) })
    }
}

impl PacketObserver for PacketRecord {
    fn handle_packet(&mut self, packet: SeenPacket) -> io::Result<()> {
        let SeenPacket { at_us, route, bytes, fate } = packet;
        let (path, direction) = (route.path, if route.up { "up" } else { "down" });
        write!(
            self.out,
            r#"{{"at_us":{at_us},"path":{path},"direction":"{direction}","bytes":{bytes},"fate":"{}""#,
            fate.name()
        )?;
        match fate {
            Fate::Delivered { due_us, twice } => {
                writeln!(self.out, r#","due_us":{due_us},"twice":{twice}}}"#)
            }
            _ => writeln!(self.out, "}}"),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
