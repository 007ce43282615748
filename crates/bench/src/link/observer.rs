//! Observers of the packets on a link: a record in a file, or a page that draws them.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use super::emulator::PacketRoute;
use super::packet_stats::Fate;

/// A packet that has entered the link, with its fate: when it arrives, or that it is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenPacket {
    /// When it was sent, in µs after its path's schedule began.
    pub at_us: u64,
    /// Its path and direction.
    pub route: PacketRoute,
    /// Its size, with all headers.
    pub bytes: usize,
    /// Its fate, in the same time.
    pub fate: Fate,
}

/// An observer, called on the relay's thread for each packet of a path whose schedule has begun:
/// the time that it takes delays deliveries.
pub trait PacketObserver: Send {
    /// Handles one packet.
    ///
    /// # Errors
    /// If it cannot go on; the relay stops then.
    fn handle_packet(&mut self, packet: SeenPacket) -> io::Result<()>;

    /// The relay has stopped.
    ///
    /// # Errors
    /// If what was observed could not be kept.
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes each packet to a file, as a line of JSON.
#[derive(Debug)]
pub struct PacketRecord {
    out: BufWriter<File>,
}

impl PacketRecord {
    /// A record in `file`, for [`LinkRelay::start`](super::relay::LinkRelay::start).
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
