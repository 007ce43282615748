//! Packets of the baseline schemes and the receiver that they share.
//!
//! A data packet is a number (u32) and tokens, each an index (u16), a last-token flag, a length (7
//! bits, or 16 more if they are all set) and its text. An acknowledgement repeats the number. As in
//! the paper's Algorithm 2, packets are acknowledged: the sender remembers the contents of each
//! packet.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use loquent_proto::Playout;

use super::ReceiverEnd;
use crate::reader::Shower;

/// Length bits of a text that is longer than tokens are: its length follows in two bytes. Such
/// texts are segments of other streams than answers, which a demonstration carries.
const LONG: u8 = 0x7f;
/// Maximum bytes of one text: with its head it fits into an Internet packet.
pub const MAX_TEXT_BYTES: usize = 1200;

/// A token waiting at the sender.
#[derive(Debug, Clone)]
pub struct Token {
    /// Index in the answer, from 0.
    pub index: u32,
    /// True if the answer ends with it.
    pub last: bool,
    /// Text of the token.
    pub text: Vec<u8>,
}

/// Starts a data packet.
pub fn put_number(packet: &mut Vec<u8>, number: u32) {
    packet.extend_from_slice(&number.to_be_bytes());
}

/// Appends a token to a data packet.
pub fn put_token(packet: &mut Vec<u8>, token: &Token) {
    // Two bytes of index suffice on the wire; no answer of a baseline is longer.
    let index = u16::try_from(token.index).expect("an answer has at most 65535 tokens");
    assert!(token.text.len() <= MAX_TEXT_BYTES, "a segment fits into a packet");
    let length = token.text.len() as u16;
    let short = u8::try_from(length).ok().filter(|&short| short < LONG);
    packet.extend_from_slice(&index.to_be_bytes());
    packet.push(short.unwrap_or(LONG) | if token.last { 0x80 } else { 0 });
    if short.is_none() {
        packet.extend_from_slice(&length.to_be_bytes());
    }
    packet.extend_from_slice(&token.text);
}

/// Returns the number at the start of a packet or an acknowledgement.
pub fn number(packet: &[u8]) -> Option<u32> {
    packet.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// A TCP receiver's acknowledgement: the packet that caused it, as in timestamps, the next missing
/// token, and runs of tokens that arrived after it (RFC 2018).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectiveAck {
    /// Number of the packet.
    pub number: u32,
    /// All tokens below it have arrived.
    pub next: u32,
    /// True if the packet brought nothing new (RFC 2883).
    pub duplicate: bool,
    /// Runs above `next` that have arrived, that of the packet first.
    pub blocks: Vec<Range<u32>>,
}

/// Maximum number of blocks that fit into TCP's options beside its timestamps.
const MAX_BLOCKS: usize = 3;

impl SelectiveAck {
    /// Appends the acknowledgement to an empty packet.
    pub fn put(&self, packet: &mut Vec<u8>) {
        put_number(packet, self.number);
        packet.push(u8::from(self.duplicate));
        let ends = self.blocks.iter().flat_map(|block| [block.start, block.end]);
        for index in std::iter::once(self.next).chain(ends) {
            // An answer has at most 65,535 tokens: see `put_token`.
            packet.extend_from_slice(&(index as u16).to_be_bytes());
        }
    }

    /// Reads an acknowledgement; returns `None` if the packet is not one.
    pub fn read(packet: &[u8]) -> Option<Self> {
        let (number, rest) = packet.split_first_chunk::<4>()?;
        let (&duplicate, rest) = rest.split_first()?;
        let (indices, []) = rest.as_chunks::<2>() else { return None };
        let mut indices = indices.iter().map(|bytes| u32::from(u16::from_be_bytes(*bytes)));
        let next = indices.next()?;
        let mut blocks = Vec::new();
        while let Some((start, end)) = indices.next().zip(indices.next()) {
            blocks.push(start..end);
        }
        let number = u32::from_be_bytes(*number);
        Some(Self { number, next, duplicate: duplicate != 0, blocks })
    }
}

fn take_token(bytes: &mut &[u8]) -> Option<Token> {
    let (head, mut rest) = bytes.split_first_chunk::<3>()?;
    let mut length = usize::from(head[2] & 0x7f);
    if length == usize::from(LONG) {
        let (long, after) = rest.split_first_chunk::<2>()?;
        (length, rest) = (u16::from_be_bytes(*long).into(), after);
    }
    let (text, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some(Token {
        index: u32::from(u16::from_be_bytes([head[0], head[1]])),
        last: head[2] & 0x80 != 0,
        text: text.to_vec(),
    })
}

/// Returns the tokens in a data packet, as runs of their numbers.
pub fn token_runs(packet: &[u8]) -> Vec<Range<usize>> {
    let mut bytes = packet.get(4..).unwrap_or_default();
    let mut runs: Vec<Range<usize>> = Vec::new();
    while let Some(token) = take_token(&mut bytes) {
        let index = token.index as usize;
        match runs.last_mut() {
            Some(run) if run.end == index => run.end += 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

/// Shows tokens in order and acknowledges every packet (paper, Algorithm 2).
///
/// Differs in one point: it keeps acknowledging after the end of the answer. If it left at once, as
/// written, the last acknowledgement would sometimes be lost, and the sender would never stop.
#[derive(Debug)]
pub struct TokenReceiver {
    /// Number of tokens that have arrived in order.
    next: u32,
    held: BTreeMap<u32, Token>,
    waiting: VecDeque<Token>,
    shower: Shower,
    shown: Vec<u8>,
    acks: VecDeque<SelectiveAck>,
    /// True to acknowledge everything that has arrived, as TCP does, and not only the packet that
    /// caused the acknowledgement.
    selective: bool,
    finished: bool,
}

impl TokenReceiver {
    /// Creates a receiver that shows at this pace.
    pub fn new(pace: Playout) -> Self {
        Self {
            next: 0,
            held: BTreeMap::new(),
            waiting: VecDeque::new(),
            shower: Shower::new(pace),
            shown: Vec::new(),
            acks: VecDeque::new(),
            selective: false,
            finished: false,
        }
    }

    /// Creates a receiver that acknowledges as TCP's does.
    pub fn selective(pace: Playout) -> Self {
        Self { selective: true, ..Self::new(pace) }
    }

    /// Acknowledges packet `number`, which carried token `latest` and, unless it is a `duplicate`,
    /// something new.
    fn acknowledge(&mut self, number: u32, latest: Option<u32>, duplicate: bool) {
        let mut blocks: Vec<Range<u32>> = Vec::new();
        if self.selective {
            for &index in self.held.keys() {
                match blocks.last_mut() {
                    Some(block) if block.end == index => block.end += 1,
                    _ => blocks.push(index..index + 1),
                }
            }
            // RFC 2018, section 4: the block of the packet first, then the latest ones.
            let is_first = |block: &Range<u32>| latest.is_some_and(|index| block.contains(&index));
            blocks.sort_by_key(|block| (!is_first(block), std::cmp::Reverse(block.start)));
            blocks.truncate(MAX_BLOCKS);
        }
        self.acks.push_back(SelectiveAck { number, next: self.next, duplicate, blocks });
    }

    fn show_due(&mut self, now_us: u64) {
        let due = self.shower.take_due(now_us);
        for token in self.waiting.drain(..due) {
            self.shown.extend_from_slice(&token.text);
            self.finished |= token.last;
        }
    }
}

impl ReceiverEnd for TokenReceiver {
    fn handle_packet(&mut self, now_us: u64, packet: &[u8]) {
        let Some(number) = number(packet) else { return };
        let mut bytes = &packet[4..];
        let (mut latest, mut duplicate) = (None, true);
        while let Some(token) = take_token(&mut bytes) {
            latest = Some(token.index);
            if token.index >= self.next {
                duplicate &= self.held.insert(token.index, token).is_some();
            }
        }
        let before = self.next;
        while let Some(token) = self.held.remove(&self.next) {
            self.next += 1;
            self.waiting.push_back(token);
        }
        self.acknowledge(number, latest, duplicate);
        self.shower.handle_arrival(now_us, self.next - before);
        self.show_due(now_us);
    }

    fn handle_timeout(&mut self, now_us: u64) {
        self.show_due(now_us);
    }

    fn handle_hidden(&mut self, now_us: u64, hidden: bool) {
        self.shower.set_hidden(hidden);
        self.show_due(now_us);
    }

    fn poll_transmit(&mut self, _now_us: u64, packet: &mut Vec<u8>) -> bool {
        let Some(ack) = self.acks.pop_front() else {
            return false;
        };
        match self.selective {
            true => ack.put(packet),
            false => put_number(packet, ack.number),
        }
        true
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.shower.poll_timeout()
    }

    fn take_shown(&mut self, text: &mut Vec<u8>) {
        text.append(&mut self.shown);
    }

    fn arrived(&self) -> usize {
        self.next as usize
    }

    fn finished(&self) -> bool {
        self.finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_every_length_come_back() {
        for length in [0, 1, 126, 127, 128, MAX_TEXT_BYTES] {
            let token = Token { index: 7, last: length == 1, text: vec![b'x'; length] };
            let mut packet = Vec::new();
            put_token(&mut packet, &token);
            let mut bytes = packet.as_slice();
            let read = take_token(&mut bytes).unwrap();
            assert_eq!((read.index, read.last, read.text), (7, length == 1, token.text));
            assert!(bytes.is_empty());
            assert!((0..packet.len()).all(|cut| take_token(&mut &packet[..cut]).is_none()));
        }
    }
}
