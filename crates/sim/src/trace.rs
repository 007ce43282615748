//! Captures of streaming sessions over TCP: losses, token arrivals and stalls.
//!
//! This is the paper's measurement study (section 2.2) and the source of its trace experiment
//! (section 4.3). Losses are derived from sequence numbers, so TLS is no obstacle. A capture taken
//! at the server shows both a segment and its retransmission; one taken at the client shows a hole
//! and the segment that fills it later. Both work, also when they are cut to headers (`tcpdump -s
//! 96`) and so contain nobody's text: packets then stand for tokens.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::Range;
use std::path::Path;

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError};
use serde::Serialize;

use crate::channel::Channel;
use crate::metrics::STALL_MS;
use crate::stats::percentile;

/// Maximum number of packets read from one capture, and of records derived from them. A stream of a
/// million tokens has as many; each takes some 300 bytes during the analysis.
const MAX_PACKETS: usize = 1_000_000;
/// Maximum bytes of payload kept in memory to search for events.
const MAX_PAYLOAD: usize = 64 << 20;
/// Largest block of a capture, in bytes.
const READ_BUFFER: usize = 1 << 20;

/// Reason why a capture cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("{path}: {source}")]
    Open {
        /// Path of the capture.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is neither pcap nor pcapng, or is damaged.
    #[error("{path}: not a readable pcap or pcapng capture: {reason}")]
    Format {
        /// Path of the capture.
        path: String,
        /// The parser's error.
        reason: String,
    },
    /// The capture has more packets than the limit.
    #[error("{path}: more than {MAX_PACKETS} packets; cut the capture with editcap")]
    TooLong {
        /// Path of the capture.
        path: String,
    },
    /// No TCP stream in the capture carries data.
    #[error("{path}: no TCP stream carries data{}; check the capture's filter or --port", filter(*port))]
    NoStream {
        /// Path of the capture.
        path: String,
        /// The requested server port.
        port: Option<u16>,
    },
}

fn filter(port: Option<u16>) -> String {
    port.map_or(String::new(), |port| format!(" from port {port}"))
}

/// A data segment as captured, in one direction of one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TcpSegment {
    at_us: u64,
    sequence: u32,
    payload: Vec<u8>,
    /// Payload bytes on the wire, even if the capture was cut.
    length: u32,
}

/// One direction of a connection: address and port of the sender, then those of the receiver.
type Flow = (IpAddr, u16, IpAddr, u16);

/// Location of a capture, inferred from its retransmissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// At the sender: retransmissions repeat bytes captured before.
    Sender,
    /// At the receiver: retransmissions fill holes. Also used if nothing was lost.
    Receiver,
}

/// One data packet of the stream in sequence order, by its first transmission.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PacketRecord {
    /// Offset of the first byte in the stream.
    pub offset: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Time of the first transmission, in ms since the first packet. At the receiver this is
    /// inferred from its neighbours if it was lost.
    pub sent_ms: f64,
    /// Time at which all bytes up to its end had arrived, in ms since the first packet.
    pub in_order_ms: f64,
    /// True if the first transmission was lost.
    pub lost: bool,
}

/// Gaps between tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Gaps {
    /// Number of tokens: events if the stream is readable, else packets.
    pub tokens: usize,
    /// Median gap in ms.
    pub p50_ms: f64,
    /// 95th percentile of all gaps in ms.
    pub p95_ms: f64,
    /// Longest gap in ms.
    pub longest_ms: f64,
    /// Number of gaps above 200 ms.
    pub stalls: usize,
    /// 95th percentile of the gaps above 200 ms, in ms, as the paper reports it; 0 without stalls.
    pub stall_p95_ms: f64,
    /// Share of the time spent in those gaps: the paper's stall ratio.
    pub stall_ratio: f64,
}

/// The losses and arrivals of a captured stream.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trace {
    /// Sender and receiver.
    pub flow: String,
    /// Location of the capture.
    pub side: Side,
    /// Data packets in sequence order.
    pub packets: Vec<PacketRecord>,
    /// Number of retransmitted packets captured.
    pub retransmissions: usize,
    /// Share of data packets whose first transmission was lost.
    pub loss: f64,
    /// True if `data:` events could be read, false if packets stand for tokens.
    pub events: bool,
    /// Arrival of each token in ms since the first packet.
    pub token_ms: Vec<f64>,
    /// Gaps between the tokens.
    pub gaps: Gaps,
}

/// Reads the stream with the most data in the capture at `path`, from server port `port` if given.
///
/// # Errors
/// If the capture cannot be read, is too long, or no TCP stream in it carries data.
pub fn read(path: &Path, port: Option<u16>) -> Result<Trace, TraceError> {
    let name = path.display().to_string();
    let file = std::fs::File::open(path)
        .map_err(|source| TraceError::Open { path: name.clone(), source })?;
    read_from(&name, file, port)
}

/// Like [`read`], from the bytes of `source`; `name` is for messages.
pub(crate) fn read_from(
    name: &str,
    source: impl std::io::Read + Send + 'static,
    port: Option<u16>,
) -> Result<Trace, TraceError> {
    let flows = read_flows(name, source)?;
    let wanted =
        flows.into_iter().filter(|((_, from, _, _), _)| port.is_none_or(|port| *from == port));
    // Ties are broken by the addresses, so that the same capture gives the same result.
    let busiest = wanted.max_by_key(|(flow, segments)| {
        let bytes: u64 = segments.iter().map(|s| u64::from(s.length)).sum();
        (bytes, *flow)
    });
    match busiest {
        Some((flow, segments)) if !segments.is_empty() => Ok(analyse(flow, segments)),
        _ => Err(TraceError::NoStream { path: name.to_owned(), port }),
    }
}

fn read_flows(
    name: &str,
    file: impl std::io::Read + Send + 'static,
) -> Result<HashMap<Flow, Vec<TcpSegment>>, TraceError> {
    let format = |reason: String| TraceError::Format { path: name.to_owned(), reason };
    let mut reader =
        pcap_parser::create_reader(READ_BUFFER, file).map_err(|e| format(e.to_string()))?;
    let mut capture = CaptureReader::default();
    loop {
        match reader.next() {
            Ok((consumed, block)) => {
                capture.handle(block);
                reader.consume(consumed);
            }
            Err(PcapError::Eof | PcapError::UnexpectedEof) => break,
            Err(PcapError::Incomplete(_)) => {
                reader.refill().map_err(|e| format(e.to_string()))?;
                // A capture cut off in the middle of a packet is read as far as it goes.
                if reader.reader_exhausted() {
                    break;
                }
            }
            Err(error) => return Err(format(error.to_string())),
        }
        if capture.packets > MAX_PACKETS || capture.payload > MAX_PAYLOAD {
            return Err(TraceError::TooLong { path: name.to_owned() });
        }
    }
    Ok(capture.flows)
}

/// State of reading a capture.
#[derive(Debug, Default)]
struct CaptureReader {
    flows: HashMap<Flow, Vec<TcpSegment>>,
    packets: usize,
    payload: usize,
    /// For pcap: the file's link type, and whether its times are in nanoseconds.
    legacy: Option<(Linktype, bool)>,
    /// For pcapng: link type, ticks per second and offset in seconds of each interface.
    interfaces: Vec<(Linktype, u64, i64)>,
}

impl CaptureReader {
    fn handle(&mut self, block: PcapBlockOwned<'_>) {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                self.legacy = Some((header.network, header.is_nanosecond_precision()));
            }
            PcapBlockOwned::Legacy(packet) => {
                let Some((link, nanoseconds)) = self.legacy else {
                    return;
                };
                let fraction = u64::from(packet.ts_usec) / if nanoseconds { 1_000 } else { 1 };
                let at_us = u64::from(packet.ts_sec) * 1_000_000 + fraction;
                self.handle_packet(at_us, link, packet.data);
            }
            // Interface numbers start over in each section.
            PcapBlockOwned::NG(Block::SectionHeader(_)) => self.interfaces.clear(),
            PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                let ticks = interface.ts_resolution().unwrap_or(1_000_000);
                let offset = interface.if_tsoffset;
                self.interfaces.push((interface.linktype, ticks, offset));
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                let Some(&(link, ticks, offset)) = self.interfaces.get(packet.if_id as usize)
                else {
                    return;
                };
                // 128 bits: nanosecond ticks times a million overflow 64.
                let ts = u128::from(packet.ts_high) << 32 | u128::from(packet.ts_low);
                let since_us = (ts * 1_000_000 / u128::from(ticks.max(1))) as u64;
                let offset_us = u64::try_from(offset).unwrap_or(0).saturating_mul(1_000_000);
                let captured = &packet.data[..packet.data.len().min(packet.caplen as usize)];
                self.handle_packet(since_us.saturating_add(offset_us), link, captured);
            }
            PcapBlockOwned::NG(_) => {}
        }
    }

    fn handle_packet(&mut self, at_us: u64, link: Linktype, data: &[u8]) {
        self.packets += 1;
        if let Some((flow, segment)) = data_segment(at_us, link, data) {
            self.payload += segment.payload.len();
            self.flows.entry(flow).or_default().push(segment);
        }
    }
}

/// Returns the TCP segment in a captured packet. Returns `None` for packets that are not TCP over
/// IP, are cut within their headers, or carry no data.
fn data_segment(at_us: u64, link: Linktype, data: &[u8]) -> Option<(Flow, TcpSegment)> {
    let sliced = slice(link, data)?;
    let (Some(net), Some(TransportSlice::Tcp(tcp))) = (&sliced.net, &sliced.transport) else {
        return None;
    };
    // From the headers, not from the captured bytes, which a snap length may have cut. The
    // trailing padding of short Ethernet frames must not count either.
    let (from, to, length) = match net {
        LaxNetSlice::Ipv4(ip) => {
            let header = ip.header();
            let headers = usize::from(header.ihl()) * 4 + tcp.header_len();
            let (from, to) = (header.source_addr().into(), header.destination_addr().into());
            (from, to, usize::from(header.total_len()).saturating_sub(headers))
        }
        LaxNetSlice::Ipv6(ip) => {
            let header = ip.header();
            let (from, to) = (header.source_addr().into(), header.destination_addr().into());
            (from, to, usize::from(header.payload_length()).saturating_sub(tcp.header_len()))
        }
        _ => return None,
    };
    let payload = tcp.payload();
    let segment = TcpSegment {
        at_us,
        sequence: tcp.sequence_number(),
        payload: payload[..payload.len().min(length)].to_vec(),
        length: length as u32,
    };
    (length > 0).then_some(((from, tcp.source_port(), to, tcp.destination_port()), segment))
}

/// Parses packet headers leniently: operators share captures that are cut after the headers
/// (`tcpdump -s 96`).
fn slice(link: Linktype, data: &[u8]) -> Option<LaxSlicedPacket<'_>> {
    let after = |header: usize| data.get(header..).unwrap_or(&[]);
    let network = match link {
        Linktype::ETHERNET => return LaxSlicedPacket::from_ethernet(data).ok(),
        // `tcpdump -i any`, of old and of today.
        Linktype::LINUX_SLL => after(16),
        Linktype::LINUX_SLL2 => after(20),
        // Loopback of the BSDs: the address family in 4 bytes.
        Linktype::NULL | Linktype::LOOP => after(4),
        _ => data,
    };
    LaxSlicedPacket::from_ip(network).ok()
}

/// A segment with its offset in the stream instead of a sequence number.
#[derive(Debug)]
struct Placed {
    start: u64,
    end: u64,
    at_us: u64,
    payload: Vec<u8>,
}

/// Converts sequence numbers, which wrap at 2^32, to offsets from the stream's lowest one.
fn place(segments: Vec<TcpSegment>) -> Vec<Placed> {
    let first = segments.first().map_or(0, |segment| segment.sequence);
    let mut expected: i64 = 0;
    let mut placed: Vec<(i64, TcpSegment)> = Vec::with_capacity(segments.len());
    for segment in segments {
        // The signed distance from what is expected next: correct across the wrap, and negative
        // for a retransmission.
        let near = segment.sequence.wrapping_sub(first).wrapping_sub(expected as u32) as i32;
        let start = expected + i64::from(near);
        expected = expected.max(start);
        placed.push((start, segment));
    }
    let lowest = placed.iter().map(|(start, _)| *start).min().unwrap_or(0);
    let to_place = |(start, segment): (i64, TcpSegment)| Placed {
        start: (start - lowest) as u64,
        end: (start - lowest) as u64 + u64::from(segment.length),
        at_us: segment.at_us,
        payload: segment.payload,
    };
    placed.into_iter().map(to_place).collect()
}

fn analyse(flow: Flow, segments: Vec<TcpSegment>) -> Trace {
    let placed = place(segments);
    let start_us = placed.iter().map(|p| p.at_us).min().unwrap_or(0);
    let side = side(&placed);
    let (packets, retransmissions) = match side {
        Side::Sender => at_sender(&placed, start_us),
        Side::Receiver => at_receiver(&placed, start_us),
    };
    let arrivals = arrivals(&placed, side, start_us);
    let (token_ms, events) = token_times(&placed, &arrivals, &packets);
    let lost = packets.iter().filter(|packet| packet.lost).count();
    Trace {
        flow: format!("{}:{} > {}:{}", flow.0, flow.1, flow.2, flow.3),
        side,
        retransmissions,
        loss: lost as f64 / packets.len().max(1) as f64,
        gaps: gaps(&token_ms),
        packets,
        events,
        token_ms,
    }
}

/// Infers the location of the capture. At the sender, a retransmission repeats captured bytes. At
/// the receiver it fills a hole, because the lost bytes never arrived; the few repetitions there
/// come from lost acknowledgements.
fn side(placed: &[Placed]) -> Side {
    let (mut head, mut holes, mut repeats) = (0, 0, 0);
    let mut seen = Ranges::default();
    for segment in placed {
        let new = seen.insert(segment.start, segment.end);
        match new {
            false => repeats += 1,
            true if segment.start < head => holes += 1,
            true => {}
        }
        head = head.max(segment.end);
    }
    if repeats > holes { Side::Sender } else { Side::Receiver }
}

/// Disjoint byte ranges: maps the start of each to its end.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range; returns false if all of it was already present.
    fn insert(&mut self, start: u64, end: u64) -> bool {
        let before = self.0.range(..=start).next_back();
        if before.is_some_and(|(_, &before_end)| end <= before_end) {
            return false;
        }
        let (mut low, mut high) = (start, end);
        // Those that it touches, the last one first. Each is removed once, however many there are.
        while let Some((&from, &to)) = self.0.range(..=high).next_back()
            && low <= to
        {
            (low, high) = (low.min(from), high.max(to));
            self.0.remove(&from);
        }
        self.0.insert(low, high);
        true
    }

    /// Returns the end of the range that starts at 0.
    fn contiguous(&self) -> u64 {
        self.0.get(&0).copied().unwrap_or(0)
    }
}

fn ms_since(start_us: u64, at_us: u64) -> f64 {
    at_us.saturating_sub(start_us) as f64 / 1e3
}

/// Builds the packets of a capture taken at the sender. New bytes are a first transmission, which
/// was lost if they were sent again.
fn at_sender(placed: &[Placed], start_us: u64) -> (Vec<PacketRecord>, usize) {
    let mut packets: Vec<PacketRecord> = Vec::new();
    // The packets that each retransmission repeats, by index, and when.
    let mut repeats: Vec<(Range<usize>, f64)> = Vec::new();
    let mut head = 0;
    for segment in placed {
        let at_ms = ms_since(start_us, segment.at_us);
        if segment.start >= head {
            packets.push(PacketRecord {
                offset: segment.start,
                bytes: segment.end - segment.start,
                sent_ms: at_ms,
                in_order_ms: at_ms,
                lost: false,
            });
            head = segment.end;
            continue;
        }
        let from = packets.partition_point(|packet| packet.offset + packet.bytes <= segment.start);
        let to = packets.partition_point(|packet| packet.offset < segment.end);
        repeats.push((from..to, at_ms));
    }
    mark_repeated(&mut packets, &repeats);
    settle(&mut packets);
    (packets, repeats.len())
}

/// Marks the packets that were sent again as lost, complete with their last transmission. Each is
/// marked once, even if several retransmissions claim to repeat it.
fn mark_repeated(packets: &mut [PacketRecord], repeats: &[(Range<usize>, f64)]) {
    let mut unmarked: BTreeSet<usize> = (0..packets.len()).collect();
    for (repeated, at_ms) in repeats.iter().rev() {
        while let Some(&index) = unmarked.range(repeated.clone()).next() {
            unmarked.remove(&index);
            packets[index].lost = true;
            packets[index].in_order_ms = *at_ms;
        }
    }
}

/// Builds the packets of a capture taken at the receiver. Packets that fill a hole were lost the
/// first time. They are assumed to have been sent evenly between their neighbours that arrived in
/// time.
fn at_receiver(placed: &[Placed], start_us: u64) -> (Vec<PacketRecord>, usize) {
    let mut packets: Vec<PacketRecord> = Vec::new();
    let mut seen = Ranges::default();
    let (mut head, mut retransmissions) = (0, 0);
    for segment in placed {
        if !seen.insert(segment.start, segment.end) {
            retransmissions += 1;
            continue;
        }
        let lost = segment.start < head;
        retransmissions += usize::from(lost);
        head = head.max(segment.end);
        packets.push(PacketRecord {
            offset: segment.start,
            bytes: segment.end - segment.start,
            sent_ms: ms_since(start_us, segment.at_us),
            in_order_ms: ms_since(start_us, segment.at_us),
            lost,
        });
    }
    packets.sort_by_key(|packet| packet.offset);
    split(&mut packets);
    interpolate(&mut packets);
    settle(&mut packets);
    (packets, retransmissions)
}

/// Splits retransmitted packets. A kernel joins small segments when it retransmits them, so a
/// packet that fills a hole is split into packets of the usual size.
fn split(packets: &mut Vec<PacketRecord>) {
    let in_time = packets.iter().filter(|packet| !packet.lost);
    let mut sizes: Vec<u64> = in_time.map(|packet| packet.bytes).collect();
    sizes.sort_unstable();
    let Some(&usual) = sizes.get(sizes.len() / 2) else {
        return;
    };
    let pieces = |packet: &PacketRecord| match packet.lost {
        true => ((packet.bytes + usual / 2) / usual.max(1)).clamp(1, packet.bytes.max(1)),
        false => 1,
    };
    // A segment's length is what its header claims, and need not have been captured.
    if packets.iter().map(pieces).sum::<u64>() > MAX_PACKETS as u64 {
        return;
    }
    let cut = |packet: PacketRecord| {
        let count = pieces(&packet);
        (0..count).map(move |piece| {
            let (from, to) = (packet.bytes * piece / count, packet.bytes * (piece + 1) / count);
            PacketRecord { offset: packet.offset + from, bytes: to - from, ..packet }
        })
    };
    *packets = std::mem::take(packets).into_iter().flat_map(cut).collect();
}

fn interpolate(packets: &mut [PacketRecord]) {
    let mut from = 0;
    while from < packets.len() {
        if !packets[from].lost {
            from += 1;
            continue;
        }
        // A lost packet's send time is unknown at the receiver: spread a run of them evenly
        // between the packets around it.
        let run = packets[from..].iter().take_while(|p| p.lost).count();
        let after = packets.get(from + run).map(|p| p.sent_ms);
        let before = from.checked_sub(1).map(|before| packets[before].sent_ms);
        let before = before.or(after).unwrap_or(0.0);
        let after = after.unwrap_or(before).max(before);
        for (place, packet) in packets[from..from + run].iter_mut().enumerate() {
            let share = (place + 1) as f64 / (run + 1) as f64;
            packet.sent_ms = before + (after - before) * share;
        }
        from += run;
    }
}

/// Sets in-order times: bytes are usable only once all bytes before them have arrived.
fn settle(packets: &mut [PacketRecord]) {
    let mut latest: f64 = 0.0;
    for packet in packets {
        latest = latest.max(packet.in_order_ms);
        packet.in_order_ms = latest;
    }
}

/// Returns pairs (time in ms, contiguous bytes from then on), rising. At the sender the time is
/// that of the last transmission: it reached the receiver half a round trip later.
fn arrivals(placed: &[Placed], side: Side, start_us: u64) -> Vec<(f64, u64)> {
    let mut last_sent: HashMap<u64, usize> = HashMap::new();
    for (index, segment) in placed.iter().enumerate() {
        last_sent.insert(segment.start, index);
    }
    let mut seen = Ranges::default();
    let mut steps: Vec<(f64, u64)> = Vec::new();
    for (index, segment) in placed.iter().enumerate() {
        // Seen at the sender, only the last transmission is known to have arrived: otherwise it
        // would not be the last.
        if side == Side::Sender && last_sent[&segment.start] != index {
            continue;
        }
        seen.insert(segment.start, segment.end);
        let contiguous = seen.contiguous();
        if steps.last().is_none_or(|step| step.1 < contiguous) {
            steps.push((ms_since(start_us, segment.at_us), contiguous));
        }
    }
    steps
}

/// Returns the arrival time of each token: events of a readable stream, else packets in order.
fn token_times(
    placed: &[Placed],
    arrivals: &[(f64, u64)],
    packets: &[PacketRecord],
) -> (Vec<f64>, bool) {
    // With holes in the text, events would be miscounted without a sign of it.
    let is_cut = placed.iter().any(|one| (one.payload.len() as u64) < one.end - one.start);
    let marks = if is_cut { Vec::new() } else { event_ends(&reassemble(placed)) };
    // TLS, cut to headers, or not an event stream: packets then stand for tokens.
    if marks.len() < 2 {
        return (packets.iter().map(|p| p.in_order_ms).collect(), false);
    }
    let when = |end: u64| {
        let step = arrivals.partition_point(|(_, contiguous)| *contiguous < end);
        arrivals.get(step).map(|step| step.0)
    };
    (marks.into_iter().filter_map(when).collect(), true)
}

fn reassemble(placed: &[Placed]) -> Vec<u8> {
    let mut text: Vec<u8> = Vec::new();
    for segment in placed {
        let start = segment.start as usize;
        let end = start + segment.payload.len();
        if end > MAX_PAYLOAD {
            continue;
        }
        if text.len() < end {
            text.resize(end, 0);
        }
        text[start..end].copy_from_slice(&segment.payload);
    }
    text
}

/// Returns the ends of server-sent events that carry JSON.
fn event_ends(text: &[u8]) -> Vec<u64> {
    let mut ends = Vec::new();
    let mut at = 0;
    while let Some(found) = find(&text[at..], b"data: {") {
        let start = at + found;
        let Some(length) = find(&text[start..], b"\n\n") else {
            break;
        };
        at = start + length + 2;
        ends.push(at as u64);
    }
    ends
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

fn gaps(token_ms: &[f64]) -> Gaps {
    let mut all: Vec<f64> = token_ms.windows(2).map(|pair| pair[1] - pair[0]).collect();
    all.sort_by(f64::total_cmp);
    let stalls = &all[all.partition_point(|&gap| gap <= STALL_MS)..];
    let span = all.iter().sum::<f64>().max(1e-9);
    Gaps {
        tokens: token_ms.len(),
        p50_ms: percentile(&all, 0.5).unwrap_or(0.0),
        p95_ms: percentile(&all, 0.95).unwrap_or(0.0),
        longest_ms: all.last().copied().unwrap_or(0.0),
        stalls: stalls.len(),
        stall_p95_ms: percentile(stalls, 0.95).unwrap_or(0.0),
        stall_ratio: stalls.iter().sum::<f64>() / span,
    }
}

impl Trace {
    /// Returns the channel that lost these packets: each packet's fate is the channel's state until
    /// the next packet.
    pub fn channel(&self) -> Channel {
        let mut steps: Vec<(f64, f64)> = Vec::new();
        for packet in &self.packets {
            let loss = if packet.lost { 1.0 } else { 0.0 };
            let start = (packet.sent_ms * 10.0).round() / 10.0;
            match steps.last_mut() {
                None => steps.push((0.0, loss)),
                Some(last) if last.1 == loss => {}
                // Two fates at one time: the later packet decides.
                Some(last) if start <= last.0 => last.1 = loss,
                Some(_) => steps.push((start, loss)),
            }
        }
        let end = self.packets.last().map_or(0.0, |packet| packet.sent_ms);
        let last_start = steps.last().map_or(0.0, |step| step.0);
        Channel::Trace { steps, length_ms: end.max(last_start + 1.0).round() + 1.0 }
    }

    /// Renders the report for a terminal.
    pub fn table(&self) -> String {
        let gaps = &self.gaps;
        let side = match self.side {
            Side::Sender => "sender",
            Side::Receiver => "receiver",
        };
        let unit = if self.events { "events" } else { "packets" };
        format!(
            "{}, captured at the {side}\n\
             data packets     {}\n\
             lost at first    {} ({:.1} %)\n\
             retransmissions  {}\n\
             tokens           {} ({unit})\n\
             gap p50/p95/max  {:.0} / {:.0} / {:.0} ms\n\
             stalls > 200 ms  {}, p95 {:.0} ms\n\
             stall ratio      {:.3}\n",
            self.flow,
            self.packets.len(),
            self.packets.iter().filter(|packet| packet.lost).count(),
            self.loss * 100.0,
            self.retransmissions,
            gaps.tokens,
            gaps.p50_ms,
            gaps.p95_ms,
            gaps.longest_ms,
            gaps.stalls,
            gaps.stall_p95_ms,
            // Without a stall the sum may be a negative zero.
            gaps.stall_ratio.max(0.0) + 0.0,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn segment(at_ms: u64, sequence: u32, length: u32) -> TcpSegment {
        TcpSegment { at_us: at_ms * 1_000, sequence, payload: vec![b'x'; length as usize], length }
    }

    fn flow() -> Flow {
        let address = IpAddr::from([10, 0, 0, 1]);
        (address, 443, address, 50_000)
    }

    #[test]
    fn at_the_receiver_a_filled_hole_was_lost() {
        // Packets 1 and 2 of five come last, across the wrap of the sequence number.
        let first = u32::MAX - 5;
        let at = |n: u32| first.wrapping_add(n * 10);
        let trace = analyse(
            flow(),
            vec![
                segment(0, at(0), 10),
                segment(300, at(3), 10),
                segment(400, at(4), 10),
                segment(900, at(1), 10),
                segment(901, at(2), 10),
            ],
        );
        assert_eq!(trace.side, Side::Receiver);
        let lost: Vec<bool> = trace.packets.iter().map(|p| p.lost).collect();
        assert_eq!(lost, [false, true, true, false, false]);
        assert_eq!(trace.packets[1].sent_ms, 100.0);
        assert_eq!(trace.token_ms, [0.0, 900.0, 901.0, 901.0, 901.0]);
        assert_eq!(trace.gaps.stalls, 1);
        let Channel::Trace { steps, .. } = trace.channel() else { panic!("a trace channel") };
        assert_eq!(steps, [(0.0, 0.0), (100.0, 1.0), (300.0, 0.0)]);
    }

    #[test]
    fn without_stalls_the_share_of_their_time_is_nought_and_not_less() {
        let trace = analyse(flow(), vec![segment(0, 0, 10), segment(10, 10, 10)]);
        let table = trace.table();
        assert!(table.contains("stall ratio      0.000"), "{table}");
    }

    #[test]
    fn at_the_sender_a_repeated_packet_was_lost() {
        let trace = analyse(
            flow(),
            vec![
                segment(0, 0, 10),
                segment(100, 10, 10),
                segment(200, 20, 10),
                segment(450, 10, 10),
            ],
        );
        assert_eq!(trace.side, Side::Sender);
        let lost: Vec<bool> = trace.packets.iter().map(|p| p.lost).collect();
        assert_eq!(lost, [false, true, false]);
        assert_eq!(trace.token_ms, [0.0, 450.0, 450.0]);
        assert_eq!(trace.retransmissions, 1);
    }

    /// Like [`segment`], with a length that is claimed by the header but was not captured.
    fn claim(at_ms: u64, sequence: u32, length: u32) -> TcpSegment {
        TcpSegment { at_us: at_ms * 1_000, sequence, payload: Vec::new(), length }
    }

    #[test]
    fn claims_of_a_capture_cost_little() {
        let began = std::time::Instant::now();
        // Each of the later ones repeats all packets before it.
        let packets = (0..60_000).map(|n| claim(n.into(), n, 1));
        let repeats = (0..60_000).map(|n| claim(60_000 + n, 0, 60_000));
        let trace = analyse(flow(), packets.chain(repeats).collect());
        assert_eq!((trace.side, trace.retransmissions), (Side::Sender, 60_000));
        assert!(trace.packets.iter().all(|packet| packet.lost));
        // Holes everywhere, the last first.
        let mut ranges = Ranges::default();
        assert!((0..300_000).rev().all(|n| ranges.insert(2 * n, 2 * n + 1)));
        assert!(ranges.insert(0, 600_000) && ranges.0.len() == 1);
        // Quadratic, either would take many minutes.
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    }

    #[test]
    fn a_repeated_packet_is_complete_with_its_last_transmission() {
        let sent = [claim(0, 0, 10), claim(1, 10, 10), claim(2, 20, 10)];
        let again = [claim(5, 10, 20), claim(7, 0, 15), claim(8, 30, 10), claim(9, 25, 40)];
        let trace = analyse(flow(), sent.into_iter().chain(again).collect());
        let fates: Vec<_> = trace.packets.iter().map(|p| (p.lost, p.in_order_ms)).collect();
        // The last repetition ends beyond what was sent, and says nothing of later bytes.
        assert_eq!(fates, [(true, 7.0), (true, 7.0), (true, 9.0), (true, 9.0)]);
    }

    #[test]
    fn records_are_bounded_whatever_headers_claim() {
        // The usual packet has one byte; those that fill holes claim 60,000.
        let far = |n: u32| n * 70_000;
        let usual = (0..400).map(|n| claim(n.into(), far(n), 1));
        let holes = (0..200).map(|n| claim(1_000 + u64::from(n), far(n) + 1, 60_000));
        let trace = analyse(flow(), usual.chain(holes).collect());
        assert_eq!(trace.side, Side::Receiver);
        assert!(trace.packets.len() <= MAX_PACKETS, "{} records", trace.packets.len());
    }

    /// Returns a pcap file whose packets are cut to `most` bytes, as `tcpdump -s` does.
    fn cut(capture: &[u8], most: usize) -> Vec<u8> {
        let (head, mut rest) = capture.split_at(24);
        let mut out = head.to_vec();
        while let Some((record, after)) = rest.split_at_checked(16) {
            let captured = u32::from_le_bytes(record[8..12].try_into().unwrap()) as usize;
            let kept = captured.min(most);
            out.extend_from_slice(&record[..8]);
            out.extend_from_slice(&(kept as u32).to_le_bytes());
            out.extend_from_slice(&record[12..]);
            out.extend_from_slice(&after[..kept]);
            rest = &after[captured..];
        }
        out
    }

    #[test]
    fn a_capture_cut_to_headers_shows_losses_and_stalls_by_packets() {
        let capture: &[u8] = include_bytes!("../tests/fixtures/lossy-client.pcap");
        let read = |bytes: Vec<u8>| read_from("a", std::io::Cursor::new(bytes), Some(8000));
        let (whole, cut) = (read(capture.to_vec()).unwrap(), read(cut(capture, 96)).unwrap());
        assert!(whole.events && !cut.events);
        assert_eq!((cut.side, &cut.packets), (whole.side, &whole.packets));
        assert_eq!((cut.loss, cut.retransmissions), (whole.loss, whole.retransmissions));
        assert!(cut.loss > 0.0 && cut.gaps.stalls > 0);
    }

    #[test]
    fn events_are_tokens_when_they_can_be_read() {
        let text = b"HTTP/1.1 200 OK\r\n\r\ndata: {\"a\":1}\n\ndata: {\"a\":2}\n\ndata: [DONE]\n\n";
        assert_eq!(event_ends(text).len(), 2);
    }

    #[test]
    fn ranges_join() {
        let mut ranges = Ranges::default();
        assert!(ranges.insert(0, 10));
        assert!(ranges.insert(20, 30));
        assert!(!ranges.insert(22, 28));
        assert!(ranges.insert(8, 20));
        assert_eq!(ranges.0, BTreeMap::from([(0, 30)]));
    }
}
