//! Parameters of a [`Sender`](super::Sender).

use crate::Micros;
use crate::path::Burst;

/// Parameters of a [`Sender`](super::Sender).
///
/// The defaults were found by search in simulation, with 60 to 180 seeded sessions of 30 s for each
/// candidate; `plans/channels.toml` validates the result on other seeds. If a field names a plan,
/// that plan varies or guards it: `loquent sim PLAN` shows the effect.
#[derive(Debug, Clone, PartialEq)]
pub struct SenderConfig {
    /// Maximum bytes of the log. Default 1 MiB.
    pub max_log_bytes: usize,
    /// Largest datagram in bytes, frame header included. Default 1150: fits every path that carries
    /// QUIC, and browsers accept it.
    pub max_datagram_bytes: usize,
    /// Frames with log bytes are padded to a multiple of this, or to the largest datagram (D-2.7);
    /// 0: not at all. Default 24, the smallest step of `plans/padding.toml` that reveals less than
    /// 0.05 bits by any measure there.
    pub padding_step_bytes: usize,
    /// A frame is one step longer than needed if one of this many earlier frames needed that.
    /// Default 16 (`plans/padding.toml`).
    pub padding_memory_frames: usize,
    /// Bytes that lower layers add to a datagram, for the token bucket. Default 60.
    pub packet_overhead_bytes: u64,
    /// Add a checksum to every frame (D-2.4), for links that do not protect them. Default off.
    pub checked: bool,
    /// Round trip assumed until one is measured; QUIC knows it from its handshake. Default 100 ms.
    pub initial_rtt: Micros,
    /// Minimum gap between packets with new text. Default 10 ms.
    pub new_text_gap: Micros,
    /// Same gap if tokens come less than 50 ms apart. Default 25 ms: at most 40 packets per second,
    /// however fast the generator is (`plans/fast-generators.toml`).
    pub fast_text_gap: Micros,
    /// Maximum gap between packets while anything is unacknowledged. Default 200 ms, as
    /// in the paper's scheme.
    pub max_gap: Micros,
    /// Gap between packets once an acknowledgement is overdue: a third of the round trip, or a
    /// twentieth on a path that loses in runs, within these bounds. Default 5 to 40 ms.
    pub retransmit_gap: [Micros; 2],
    /// Upper limit of the gap, which grows with the time that the acknowledgement is overdue.
    /// Default 60 ms. On a path that has acknowledged nothing yet, the limit is [`Self::max_gap`].
    pub retransmit_gap_max: Micros,
    /// A queueing delay above this counts as a standing queue, unless it drains between two
    /// packets. Default 30 ms: jitter of that size is common, and a thin link builds up more within
    /// a few packets (`plans/narrow-links.toml`).
    pub queue_tolerance: Micros,
    /// The path counts as down once an acknowledgement is overdue by this; new text is then held
    /// back. Default 500 ms. Larger values spend more packets on a dead path, smaller ones mistake
    /// a burst of losses for an outage (`plans/outages.toml`).
    pub path_down_after: Micros,
    /// Gap between packets on a path with bursts of losses: a sixth of the round trip, within these
    /// bounds. Default 16 to 25 ms, the knee of `plans/pareto.toml`.
    pub copy_gap: [Micros; 2],
    /// Minimum gap after a packet with new text on such a path. Default 40 ms: a copy sent shortly
    /// before the next text divides the gap best. On `plans/channels.toml` with a round trip of 100
    /// ms, stalls fall by a tenth at equal bytes.
    pub first_copy_gap: Micros,
    /// The same two where most packets behind a lost one are lost too; the gap shrinks as the round
    /// trip grows. Default 30 to 60 ms, and 45 ms (`plans/pareto.toml`).
    pub run_copy_gap: [Micros; 2],
    /// See [`Self::run_copy_gap`].
    pub run_first_copy_gap: Micros,
    /// Minimum time after which an acknowledgement is overdue for such copies to be sent. Default
    /// 75 ms.
    pub copies_from: Micros,
    /// Gap between packets while the path is unknown. Default 25 ms.
    pub start_copy_gap: Micros,
    /// Time for which a new path counts as unknown. Default 500 ms.
    pub start: Micros,
    /// Time for which a path counts as bursty after a burst of losses. Default 8 s.
    pub burst_memory: Micros,
    /// Definition of a burst. Default 60 ms or 4 packets.
    pub burst: Burst,
    /// Bytes per second for packets without new text. Default 3200: with acknowledgements and
    /// headers, an answer of ten tokens per second stays below 4 kB/s, unpadded
    /// (`plans/pareto.toml`).
    pub bucket_bytes_per_s: u64,
    /// Bytes of such packets that may be sent at once. Default 3000.
    pub bucket_depth_bytes: u64,
    /// Bytes of the bucket that copies leave for overdue acknowledgements, where a packet helps
    /// more. Default 800.
    pub copy_reserve_bytes: u64,
    /// A reader counts as behind if its unshown text lasts for longer than a round trip plus this.
    /// Default 500 ms (`plans/hidden-tab.toml`).
    pub background_margin: Micros,
    /// Minimum and maximum gap between packets to such a reader. Default 200 ms and 1 s.
    pub background_gap: [Micros; 2],
    /// Gap between packets to a hidden page. Default 1 s.
    pub hidden_gap: Micros,
    /// Suspend the answer if no sent bytes are acknowledged for this time (D-7.2). Default 10 s.
    pub suspend_after: Micros,
}

impl Default for SenderConfig {
    fn default() -> Self {
        let ms = Micros::from_ms;
        Self {
            max_log_bytes: 1 << 20,
            max_datagram_bytes: 1150,
            padding_step_bytes: 24,
            padding_memory_frames: 16,
            packet_overhead_bytes: 60,
            checked: false,
            initial_rtt: ms(100),
            new_text_gap: ms(10),
            fast_text_gap: ms(25),
            max_gap: ms(200),
            retransmit_gap: [ms(5), ms(40)],
            retransmit_gap_max: ms(60),
            queue_tolerance: ms(30),
            path_down_after: ms(500),
            copy_gap: [ms(16), ms(25)],
            first_copy_gap: ms(40),
            run_copy_gap: [ms(30), ms(60)],
            run_first_copy_gap: ms(45),
            copies_from: ms(75),
            start_copy_gap: ms(25),
            start: ms(500),
            burst_memory: ms(8_000),
            burst: Burst { span: ms(60), packets: 4 },
            bucket_bytes_per_s: 3_200,
            bucket_depth_bytes: 3_000,
            copy_reserve_bytes: 800,
            background_margin: ms(500),
            background_gap: [ms(200), ms(1_000)],
            hidden_gap: ms(1_000),
            suspend_after: ms(10_000),
        }
    }
}
