//! Frames: the content of a datagram or control message, and its encoding (`spec/delivery.md`,
//! sections 2, 4, 5 and 6).

use alloc::vec::Vec;
use core::ops::Range;

use crate::wire::{FieldReader, crc32c, int_len, put_int};
use crate::{Error, Micros};

/// Version of the wire format, in the first byte of every frame (D-2.1).
pub const VERSION: u8 = 1;

/// Number of packets below the largest that an acknowledgement reports on (D-5.4). As a bit mask
/// they fit an `int`, which has 53 bits (D-1.2).
pub const ACK_WINDOW: u32 = 53;

/// Maximum number of ranges in an acknowledgement (D-5.6).
pub const MAX_ACK_RANGES: usize = 8;

const KIND: u8 = 0x07;
const CHECKED: u8 = 0x08;
const CHECKSUM_BYTES: usize = 4;
const HIDDEN: u8 = 0x01;
const PROBE: u8 = 0x02;

mod kind {
    pub const DATA: u8 = 0;
    pub const ACK: u8 = 1;
    pub const RESUME: u8 = 2;
    pub const STOP: u8 = 3;
    pub const GONE: u8 = 4;
    pub const PADDED: u8 = 5;
    /// The kind follows as an `int` (D-2.2).
    pub const LONG: u8 = 7;
}

/// A frame, with its bytes borrowed from the datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Bytes of a log, sender to receiver.
    Data(Data<'a>),
    /// Acknowledgement, receiver to sender: the packets that arrived and the text that was shown.
    Ack(Ack),
    /// Continue an answer from an offset, receiver to sender.
    Resume(Resume),
    /// Request to end the answer, receiver to sender.
    Stop {
        /// The answer's number within its connection.
        channel: u64,
    },
    /// Notice that the sender does not have the answer (any more), sender to receiver.
    Gone {
        /// The answer's number within its connection.
        channel: u64,
    },
}

/// Bytes of a log (D-4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data<'a> {
    /// The answer's number within its connection.
    pub channel: u64,
    /// Number of the DATA frame within the answer, from 0; each number is used once.
    pub packet: u64,
    /// Log offset of the first byte.
    pub offset: u64,
    /// Log bytes; if empty, the frame only shows that the sender is alive.
    pub bytes: &'a [u8],
}

/// Acknowledgement: received packets and bytes, and the reader's state (D-5).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ack {
    /// The answer's number within its connection.
    pub channel: u64,
    /// Number of the ACK frame within the path, from 0: the highest has the reader's current state.
    pub number: u64,
    /// Log offset below which everything has arrived.
    pub cumulative: u64,
    /// Largest packet number that arrived; `None` before the first.
    pub largest: Option<u64>,
    /// Bit i: packet `largest - 1 - i` has not arrived; [`ACK_WINDOW`] bits.
    pub missing: u64,
    /// Time between the arrival of `largest` and this frame, in wire units of 125 µs.
    pub hold: Micros,
    /// Log bytes that have arrived and are not shown yet (`cumulative` minus the shown offset).
    pub unshown: u64,
    /// Log bytes per second at which text is shown; 0 if it is shown at once.
    pub pace: u64,
    /// True if the page is hidden.
    pub hidden: bool,
    /// True if the sender must reply at once, with bytes or without.
    pub probe: bool,
    /// Ranges that have arrived beyond `cumulative`, ascending, with gaps between them.
    pub ranges: Vec<Range<u64>>,
}

/// A request to continue an answer elsewhere (D-6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resume {
    /// The answer's number within the connection that carries this frame.
    pub channel: u64,
    /// Id of the answer, 128 random bits.
    pub id: [u8; 16],
    /// Proof that the reader may read the answer, 128 random bits.
    pub token: [u8; 16],
    /// Log offset from which to continue.
    pub offset: u64,
}

impl<'a> Frame<'a> {
    /// Appends the frame, with a checksum if `checked` (D-2.4).
    pub fn encode(&self, checked: bool, out: &mut Vec<u8>) {
        let start = out.len();
        out.push(first_byte(self.kind(), checked));
        match self {
            Self::Data(data) => data.encode(out),
            Self::Ack(ack) => ack.encode(out),
            Self::Resume(resume) => resume.encode(out),
            Self::Stop { channel } | Self::Gone { channel } => put_int(out, *channel),
        }
        if checked {
            put_checksum(start, out);
        }
    }

    /// Maximum bytes that a PADDED frame without padding adds to the frame within; for frames that
    /// fit a datagram.
    pub(crate) const PADDED_BYTES: usize = 1 + 2;

    /// Appends the frame wrapped in a PADDED one (D-2.6) of `len` bytes in total, checksum
    /// included; longer if the frame does not fit.
    pub fn encode_padded(&self, checked: bool, len: usize, out: &mut Vec<u8>) {
        let start = out.len();
        // Written first and moved afterwards: the length before it takes one byte or more, which
        // only the frame itself decides.
        self.encode(false, out);
        let mut head = Vec::with_capacity(9);
        head.push(first_byte(kind::PADDED, checked));
        put_int(&mut head, (out.len() - start) as u64);
        out.splice(start..start, head);
        let checksum = if checked { CHECKSUM_BYTES } else { 0 };
        out.resize(out.len().max((start + len).saturating_sub(checksum)), 0);
        if checked {
            put_checksum(start, out);
        }
    }

    /// Appends the frame wrapped in a PADDED one whose length is a multiple of `step`; unwrapped if
    /// `step` is 0.
    pub fn encode_in_steps(&self, checked: bool, step: usize, out: &mut Vec<u8>) {
        if step == 0 {
            return self.encode(checked, out);
        }
        let start = out.len();
        self.encode_padded(checked, 0, out);
        let len = (out.len() - start).next_multiple_of(step);
        out.truncate(start);
        self.encode_padded(checked, len, out);
    }

    /// Decodes a datagram, which is one frame (D-2.3). For a PADDED frame, returns the frame within
    /// (D-2.6).
    ///
    /// `require_check` rejects frames without a checksum: for links that do not protect their data
    /// (QUIC does).
    ///
    /// # Errors
    /// [`Error::UnknownVersion`], [`Error::BadChecksum`], [`Error::Truncated`] or
    /// [`Error::Malformed`].
    pub fn decode(datagram: &'a [u8], require_check: bool) -> Result<Self, Error> {
        let first = known_first(datagram)?;
        // The checksum is looked at before anything that it protects is read.
        let frame = match first & CHECKED {
            0 if require_check => return Err(Error::BadChecksum),
            0 => datagram,
            _ => verified(datagram)?,
        };
        Self::decode_checked(if first & KIND == kind::PADDED { unpadded(frame)? } else { frame })
    }

    /// Decodes a frame that is not PADDED and whose checksum has been removed.
    fn decode_checked(frame: &'a [u8]) -> Result<Self, Error> {
        let first = known_first(frame)?;
        let mut r = FieldReader::new(&frame[1..]);
        let frame = match first & KIND {
            kind::DATA => Self::Data(Data::decode(&mut r)?),
            kind::ACK => Self::Ack(Ack::decode(&mut r)?),
            kind::RESUME => Self::Resume(Resume::decode(&mut r)?),
            kind::STOP => Self::Stop { channel: r.int()? },
            kind::GONE => Self::Gone { channel: r.int()? },
            // Of the kinds behind kind 7, none is assigned yet.
            _ => return Err(Error::Malformed),
        };
        r.end()?;
        Ok(frame)
    }

    /// Returns the channel of the frame at the front of `datagram`, without decoding the rest.
    /// `None` unless the frame has a supported version and a kind with a channel.
    pub fn peek_channel(datagram: &[u8]) -> Option<u64> {
        let first = known_first(datagram).ok()?;
        let frame = if first & KIND == kind::PADDED { unpadded(datagram).ok()? } else { datagram };
        let first = known_first(frame).ok()? & KIND;
        let flags = usize::from(first == kind::ACK); // they stand before it (D-2.3)
        let fields = frame.get(1 + flags..).filter(|_| first <= kind::GONE)?;
        FieldReader::new(fields).int().ok()
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Data(_) => kind::DATA,
            Self::Ack(_) => kind::ACK,
            Self::Resume(_) => kind::RESUME,
            Self::Stop { .. } => kind::STOP,
            Self::Gone { .. } => kind::GONE,
        }
    }

    /// Channel of the frame: its answer's number within the connection.
    pub const fn channel(&self) -> u64 {
        match self {
            Self::Data(data) => data.channel,
            Self::Ack(ack) => ack.channel,
            Self::Resume(resume) => resume.channel,
            Self::Stop { channel } | Self::Gone { channel } => *channel,
        }
    }
}

/// Appends a frame of an unassigned `kind`, with `fields` after its channel (D-2.2).
pub(crate) fn put_unassigned(kind: u64, channel: u64, fields: &[u8], out: &mut Vec<u8>) {
    out.push(first_byte(kind::LONG, false));
    put_int(out, kind);
    put_int(out, channel);
    out.extend_from_slice(fields);
}

/// Returns the flags of an ACK without checksum, PADDED or not; `None` for any other frame.
pub(crate) fn ack_flags(frame: &mut [u8]) -> Option<&mut u8> {
    let head_bytes = match frame.first()? & (KIND | CHECKED) {
        kind::PADDED => 1 + int_len(FieldReader::new(&frame[1..]).int().ok()?),
        _ => 0,
    };
    let ack = frame.get_mut(head_bytes..)?;
    let is_ack = known_first(ack).is_ok_and(|first| first & (KIND | CHECKED) == kind::ACK);
    ack.get_mut(1).filter(|_| is_ack)
}

const fn first_byte(kind: u8, checked: bool) -> u8 {
    VERSION << 4 | if checked { CHECKED } else { 0 } | kind
}

/// Returns the first byte of a frame of this version (D-2.1).
fn known_first(frame: &[u8]) -> Result<u8, Error> {
    let first = *frame.first().ok_or(Error::Truncated)?;
    if first >> 4 == VERSION { Ok(first) } else { Err(Error::UnknownVersion) }
}

fn put_checksum(start: usize, out: &mut Vec<u8>) {
    let sum = crc32c(&out[start..]);
    out.extend_from_slice(&sum.to_be_bytes());
}

fn verified(datagram: &[u8]) -> Result<&[u8], Error> {
    let (body, sum) = datagram.split_last_chunk::<CHECKSUM_BYTES>().ok_or(Error::Truncated)?;
    if body.is_empty() {
        return Err(Error::Truncated);
    }
    if crc32c(body) == u32::from_be_bytes(*sum) { Ok(body) } else { Err(Error::BadChecksum) }
}

/// Returns the frame within a PADDED one whose own checksum has been removed (D-2.6).
fn unpadded(padded: &[u8]) -> Result<&[u8], Error> {
    // What follows the frame is padding, whatever it is: senders write 0, and nobody checks.
    let frame = FieldReader::new(&padded[1..]).bytes().map_err(|_| Error::Malformed)?;
    // Nothing within may begin this again, and the checksum covers it already.
    match frame.first() {
        None => Err(Error::Malformed),
        Some(first) if first & CHECKED != 0 || first & KIND == kind::PADDED => {
            Err(Error::Malformed)
        }
        Some(_) => Ok(frame),
    }
}

impl<'a> Data<'a> {
    /// Maximum size of the frame without the log's bytes, checksum included.
    pub const OVERHEAD_BYTES: usize = 1 + 3 * 8 + 4;

    /// Bytes of the frame around its log bytes, for offsets up to `offset`.
    pub(crate) const fn header_bytes(
        channel: u64,
        packet: u64,
        offset: u64,
        checked: bool,
    ) -> usize {
        let checksum = if checked { CHECKSUM_BYTES } else { 0 };
        1 + int_len(channel) + int_len(packet) + int_len(offset) + checksum
    }

    fn encode(&self, out: &mut Vec<u8>) {
        for field in [self.channel, self.packet, self.offset] {
            put_int(out, field);
        }
        out.extend_from_slice(self.bytes);
    }

    fn decode(r: &mut FieldReader<'a>) -> Result<Self, Error> {
        let (channel, packet, offset) = (r.int()?, r.int()?, r.int()?);
        let bytes = r.take(r.rest().len())?;
        if offset + bytes.len() as u64 > crate::wire::MAX_INT {
            return Err(Error::Malformed);
        }
        Ok(Self { channel, packet, offset, bytes })
    }
}

impl Ack {
    /// Unit of [`Self::hold`] on the wire (D-5.5).
    pub const HOLD_UNIT_MICROS: u64 = 125;

    /// Returns true if packet `number` arrived; `None` if this acknowledgement does not cover it.
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
        for field in [self.channel, self.number, self.cumulative, self.largest.map_or(0, |n| n + 1)]
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
        let flags = r.byte()?; // others than the two are ignored (D-5.7)
        let (channel, number, cumulative, largest) = (r.int()?, r.int()?, r.int()?, r.int()?);
        let (missing, hold, unshown, pace) = (r.int()?, r.int()?, r.int()?, r.int()?);
        if unshown > cumulative {
            return Err(Error::Malformed);
        }
        let ranges = decode_ranges(cumulative, r)?;
        Ok(Self {
            channel,
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
        put_int(out, self.channel);
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&self.token);
        put_int(out, self.offset);
    }

    fn decode(r: &mut FieldReader<'_>) -> Result<Self, Error> {
        let channel = r.int()?;
        let (id, token) = (array(r)?, array(r)?);
        Ok(Self { channel, id, token, offset: r.int()? })
    }
}

fn array(r: &mut FieldReader<'_>) -> Result<[u8; 16], Error> {
    r.take(16)?.try_into().map_err(|_| Error::Truncated)
}
