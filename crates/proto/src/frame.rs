//! Frames: what a datagram or a control message carries, and how it is written
//! (`spec/delivery.md`, sections 2, 4 and 5).

use alloc::vec::Vec;
use core::ops::Range;

use crate::wire::{FieldReader, crc32c, put_int};
use crate::{Error, Micros};

/// Version of the wire format, in the first byte of every frame (D-2.1).
pub const VERSION: u8 = 1;

/// How many packets below the largest an acknowledgement reports on (D-5.4). As a bit mask they
/// fit an `int`, which has 53 bits (D-1.2).
pub const ACK_WINDOW: u32 = 53;

/// Maximum number of ranges in an acknowledgement (D-5.6).
pub const MAX_ACK_RANGES: usize = 8;

const CHECKED: u8 = 0x08;
const HIDDEN: u8 = 0x01;
const PROBE: u8 = 0x02;

mod kind {
    pub const DATA: u8 = 0;
    pub const ACK: u8 = 1;
    pub const RESUME: u8 = 2;
    pub const STOP: u8 = 3;
    pub const GONE: u8 = 4;
}

/// A frame, which borrows its bytes from the datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Bytes of a log, sender to receiver.
    Data(Data<'a>),
    /// What has arrived and what the reader has been shown, receiver to sender.
    Ack(Ack),
    /// Continue a stream from an offset, receiver to sender.
    Resume(Resume),
    /// The reader wants no more of the stream, receiver to sender.
    Stop {
        /// The stream, numbered within its connection.
        stream: u64,
    },
    /// The sender does not have the stream, or no longer has it, sender to receiver.
    Gone {
        /// The stream, numbered within its connection.
        stream: u64,
    },
}

/// Bytes of a log (D-4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data<'a> {
    /// The stream, numbered within its connection.
    pub stream: u64,
    /// Number of the DATA frame within the stream, from 0; each number is used once.
    pub packet: u64,
    /// Log offset of the first byte.
    pub offset: u64,
    /// The bytes; if empty, the frame only shows that the sender is alive.
    pub bytes: &'a [u8],
}

/// What has arrived, and what the reader has been shown (D-5).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ack {
    /// The stream, numbered within its connection.
    pub stream: u64,
    /// Number of the ACK frame within the stream, from 0: the newest has the reader's state.
    pub number: u64,
    /// Log offset below which everything has arrived.
    pub cumulative: u64,
    /// Largest packet number that arrived; `None` before the first.
    pub largest: Option<u64>,
    /// Bit i: packet `largest - 1 - i` has not arrived; [`ACK_WINDOW`] bits.
    pub missing: u64,
    /// How long the receiver held this since `largest` arrived, in wire units of 125 µs.
    pub hold: Micros,
    /// Log bytes that have arrived and are not shown yet (`cumulative` minus the shown offset).
    pub unshown: u64,
    /// Log bytes per second at which the reader shows them; 0 if it shows them at once.
    pub pace: u64,
    /// Whether the page is hidden.
    pub hidden: bool,
    /// Whether the sender is to answer at once, with bytes or without.
    pub probe: bool,
    /// Ranges that have arrived beyond `cumulative`, ascending, with gaps between them.
    pub ranges: Vec<Range<u64>>,
}

/// A request to continue a stream elsewhere (D-6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resume {
    /// The number of the stream in the connection that carries this frame.
    pub stream: u64,
    /// Id of the answer, 128 random bits.
    pub id: [u8; 16],
    /// Proof that the reader may have it, 128 random bits.
    pub token: [u8; 16],
    /// Log offset from which to continue.
    pub offset: u64,
}

impl<'a> Frame<'a> {
    /// Appends the frame, with a checksum if `checked` (D-2.4).
    pub fn encode(&self, checked: bool, out: &mut Vec<u8>) {
        let start = out.len();
        let kind = match self {
            Self::Data(_) => kind::DATA,
            Self::Ack(_) => kind::ACK,
            Self::Resume(_) => kind::RESUME,
            Self::Stop { .. } => kind::STOP,
            Self::Gone { .. } => kind::GONE,
        };
        out.push(VERSION << 4 | if checked { CHECKED } else { 0 } | kind);
        match self {
            Self::Data(data) => data.encode(out),
            Self::Ack(ack) => ack.encode(out),
            Self::Resume(resume) => resume.encode(out),
            Self::Stop { stream } | Self::Gone { stream } => put_int(out, *stream),
        }
        if checked {
            let sum = crc32c(&out[start..]);
            out.extend_from_slice(&sum.to_be_bytes());
        }
    }

    /// Reads a datagram, which is one frame (D-2.3).
    ///
    /// `require_check` refuses frames without checksum: for links that do not protect
    /// what they carry (QUIC does).
    ///
    /// # Errors
    /// [`Error::UnknownVersion`], [`Error::BadChecksum`], [`Error::Truncated`] or
    /// [`Error::Malformed`].
    pub fn decode(datagram: &'a [u8], require_check: bool) -> Result<Self, Error> {
        let first = *datagram.first().ok_or(Error::Truncated)?;
        if first >> 4 != VERSION {
            return Err(Error::UnknownVersion);
        }
        let body = match first & CHECKED {
            0 if require_check => return Err(Error::BadChecksum),
            0 => datagram,
            _ => verified(datagram)?,
        };
        let mut r = FieldReader::new(&body[1..]);
        let frame = match first & 7 {
            kind::DATA => Self::Data(Data::decode(&mut r)?),
            kind::ACK => Self::Ack(Ack::decode(&mut r)?),
            kind::RESUME => Self::Resume(Resume::decode(&mut r)?),
            kind::STOP => Self::Stop { stream: r.int()? },
            kind::GONE => Self::Gone { stream: r.int()? },
            _ => return Err(Error::Malformed),
        };
        r.end()?;
        Ok(frame)
    }

    /// The stream of the frame at the front of `datagram`, without decoding the rest; `None` if
    /// there is no frame of this version.
    pub fn peek_stream(datagram: &[u8]) -> Option<u64> {
        let first = *datagram.first()?;
        let flags = usize::from(first & 7 == kind::ACK); // they stand before it (D-2.3)
        let fields = datagram.get(1 + flags..).filter(|_| first >> 4 == VERSION)?;
        FieldReader::new(fields).int().ok()
    }

    /// The stream that the frame belongs to, within its connection.
    pub const fn stream(&self) -> u64 {
        match self {
            Self::Data(data) => data.stream,
            Self::Ack(ack) => ack.stream,
            Self::Resume(resume) => resume.stream,
            Self::Stop { stream } | Self::Gone { stream } => *stream,
        }
    }
}

fn verified(datagram: &[u8]) -> Result<&[u8], Error> {
    let (body, sum) = datagram.split_last_chunk::<4>().ok_or(Error::Truncated)?;
    if body.is_empty() {
        return Err(Error::Truncated);
    }
    if crc32c(body) == u32::from_be_bytes(*sum) { Ok(body) } else { Err(Error::BadChecksum) }
}

impl<'a> Data<'a> {
    /// Maximum size of the frame without the log's bytes, checksum included.
    pub const OVERHEAD_BYTES: usize = 1 + 3 * 8 + 4;

    fn encode(&self, out: &mut Vec<u8>) {
        for field in [self.stream, self.packet, self.offset] {
            put_int(out, field);
        }
        out.extend_from_slice(self.bytes);
    }

    fn decode(r: &mut FieldReader<'a>) -> Result<Self, Error> {
        let (stream, packet, offset) = (r.int()?, r.int()?, r.int()?);
        let bytes = r.take(r.rest().len())?;
        if offset + bytes.len() as u64 > crate::wire::MAX_INT {
            return Err(Error::Malformed);
        }
        Ok(Self { stream, packet, offset, bytes })
    }
}

impl Ack {
    /// Unit of [`Self::hold`] on the wire (D-5.5).
    pub const HOLD_UNIT_MICROS: u64 = 125;

    /// Whether packet `number` arrived, as far as this acknowledgement says.
    pub fn has_packet(&self, number: u64) -> Option<bool> {
        let behind = self.largest?.checked_sub(number)?;
        match behind {
            0 => Some(true),
            _ if behind > u64::from(ACK_WINDOW) => None,
            _ => Some(self.missing >> (behind - 1) & 1 == 0),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(self.ranges.len() <= MAX_ACK_RANGES);
        out.push(if self.hidden { HIDDEN } else { 0 } | if self.probe { PROBE } else { 0 });
        for field in [self.stream, self.number, self.cumulative, self.largest.map_or(0, |n| n + 1)]
        {
            put_int(out, field);
        }
        put_int(out, self.missing);
        put_int(out, self.hold.0 / Self::HOLD_UNIT_MICROS);
        put_int(out, self.unshown);
        put_int(out, self.pace);
        let mut from = self.cumulative;
        for range in &self.ranges {
            put_int(out, range.start - from);
            put_int(out, range.end - range.start);
            from = range.end;
        }
    }

    fn decode(r: &mut FieldReader<'_>) -> Result<Self, Error> {
        let flags = r.byte()?;
        if flags & !(HIDDEN | PROBE) != 0 {
            return Err(Error::Malformed);
        }
        let (stream, number, cumulative, largest) = (r.int()?, r.int()?, r.int()?, r.int()?);
        let (missing, hold, unshown, pace) = (r.int()?, r.int()?, r.int()?, r.int()?);
        if unshown > cumulative {
            return Err(Error::Malformed);
        }
        let ranges = decode_ranges(cumulative, r)?;
        Ok(Self {
            stream,
            number,
            cumulative,
            largest: largest.checked_sub(1),
            missing,
            hold: Micros(hold).times(Self::HOLD_UNIT_MICROS),
            unshown,
            pace,
            hidden: flags & HIDDEN != 0,
            probe: flags & PROBE != 0,
            ranges,
        })
    }
}

fn decode_ranges(cumulative: u64, r: &mut FieldReader<'_>) -> Result<Vec<Range<u64>>, Error> {
    let mut ranges = Vec::new();
    let mut from = cumulative;
    while !r.rest().is_empty() {
        let start = from + r.int()?;
        let end = start + r.int()?;
        let apart = start > from && end > start && end <= crate::wire::MAX_INT;
        if !apart || ranges.len() == MAX_ACK_RANGES {
            return Err(Error::Malformed);
        }
        ranges.push(start..end);
        from = end;
    }
    Ok(ranges)
}

impl Resume {
    fn encode(&self, out: &mut Vec<u8>) {
        put_int(out, self.stream);
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&self.token);
        put_int(out, self.offset);
    }

    fn decode(r: &mut FieldReader<'_>) -> Result<Self, Error> {
        let stream = r.int()?;
        let (id, token) = (array(r)?, array(r)?);
        Ok(Self { stream, id, token, offset: r.int()? })
    }
}

fn array(r: &mut FieldReader<'_>) -> Result<[u8; 16], Error> {
    r.take(16)?.try_into().map_err(|_| Error::Truncated)
}
