//! A reader by datagrams: the product's receiver, behind a path that loses, delays and doubles
//! packets in both directions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use loquent_proto::fallback::LowerLayer;
use loquent_proto::message::Code;
use loquent_proto::{Delta, Micros, Position, Receiver, ReceiverConfig, ReceiverEvent};
use loquent_resumable::{
    AnswerCommand, CommandSender, DatagramLink, PathId, ReaderPath, StreamFrame,
};
use loquent_serving::metrics::StreamCarrier;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::dice::Dice;
use crate::news::{NewsSender, ReaderNews};

/// Number of the answer within its connection, which carries nothing else.
const CHANNEL: u64 = 7;
/// Longest datagram, as on a path of 1,200 bytes.
const MAX_BYTES: usize = 1150;
/// Frames that wait on the QUIC stream, as in the server.
const MAX_FRAMES: usize = 4;
/// Packets of a hundred that arrive twice.
const DOUBLED_PERCENT: u64 = 3;

/// Quality of a reader's path, and the seed of what happens on it.
#[derive(Debug, Clone, Copy)]
pub struct PathQuality {
    /// Packets of a hundred that are lost; with 100, only the QUIC stream gets through.
    pub loss_percent: u64,
    /// Least time of a packet's way.
    pub delay_ms: u64,
    /// Most time that a packet takes longer.
    pub jitter_ms: u64,
    /// Seed.
    pub seed: u64,
}

impl PathQuality {
    /// Draws one.
    pub fn draw(dice: &Dice) -> Self {
        let loss_percent = [0, 10, 40, 100][dice.index(4)];
        let (delay_ms, jitter_ms) = (dice.between(5, 80), dice.between(0, 40));
        Self { loss_percent, delay_ms, jitter_ms, seed: dice.between(0, u64::MAX - 1) }
    }
}

/// Fate of the packets of a path.
struct PacketPath {
    quality: PathQuality,
    dice: Dice,
    /// Packets that got through.
    passed: AtomicU64,
}

impl PacketPath {
    fn new(quality: PathQuality) -> Self {
        Self { quality, dice: Dice::new(quality.seed, 11), passed: AtomicU64::new(0) }
    }

    /// Returns when each copy of a packet arrives that is sent now.
    fn arrivals(&self) -> Vec<Instant> {
        let PathQuality { loss_percent, delay_ms, jitter_ms, .. } = self.quality;
        if self.dice.chance(loss_percent) {
            return Vec::new();
        }
        self.passed.fetch_add(1, Ordering::Relaxed);
        let copies = if self.dice.chance(DOUBLED_PERCENT) { 2 } else { 1 };
        let way = || Duration::from_millis(delay_ms + self.dice.between(0, jitter_ms));
        (0..copies).map(|_| Instant::now() + way()).collect()
    }
}

/// The server's end of a path.
struct SimulatedLink {
    path: Arc<PacketPath>,
    /// Packets for the reader, each with the time when it arrives.
    packets: mpsc::UnboundedSender<(Instant, Bytes)>,
}

impl LowerLayer for SimulatedLink {
    fn acks(&self) -> u64 {
        // QUIC acknowledges every packet that gets through.
        self.path.passed.load(Ordering::Relaxed)
    }
}

impl DatagramLink for SimulatedLink {
    fn max_bytes(&self) -> usize {
        MAX_BYTES
    }

    fn send(&self, datagram: Bytes) {
        for at in self.path.arrivals() {
            // A reader that has gone takes nothing.
            drop(self.packets.send((at, datagram.clone())));
        }
    }

    fn rtt(&self) -> Duration {
        Duration::from_millis(2 * self.path.quality.delay_ms)
    }

    fn transport(&self) -> StreamCarrier {
        StreamCarrier::Quic
    }
}

/// The reader's end of a path, until its answer is attached.
pub struct PathEnd {
    path: Arc<PacketPath>,
    packets: mpsc::UnboundedReceiver<(Instant, Bytes)>,
    frames: mpsc::Receiver<StreamFrame>,
    /// Id of the path.
    pub id: PathId,
}

/// Creates a path with this `quality`; returns both of its ends.
pub fn datagram_path(quality: PathQuality) -> (ReaderPath, PathEnd) {
    let path = Arc::new(PacketPath::new(quality));
    let (sender, packets) = mpsc::unbounded_channel();
    let (frames_sender, frames) = mpsc::channel(MAX_FRAMES);
    let link = Box::new(SimulatedLink { path: path.clone(), packets: sender });
    let end = PathEnd { path, packets, frames, id: PathId::next() };
    (ReaderPath::Datagrams { channel: CHANNEL, link, frames: frames_sender }, end)
}

/// A packet under way.
enum Packet {
    ToReader(Bytes),
    ToServer(Bytes),
}

/// A reader at work.
struct PathReader<'a> {
    path: Arc<PacketPath>,
    begun: Instant,
    receiver: Receiver,
    /// Packets under way, in the order in which they arrive.
    packets: BTreeMap<(Instant, u64), Packet>,
    sent: u64,
    /// True if the last frame came on the QUIC stream, where answers to it go too.
    by_stream: bool,
    /// Position of the next byte.
    position: Position,
    leave: LeaveOnDrop,
    sender: &'a NewsSender,
}

/// Tells an answer's task that a path is gone, as the server does however its stream ends.
struct LeaveOnDrop {
    commands: CommandSender,
    id: PathId,
}

impl Drop for LeaveOnDrop {
    fn drop(&mut self) {
        let (commands, id) = (self.commands.clone(), self.id);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { drop(commands.send(AnswerCommand::Leave(id)).await) });
        }
    }
}

impl PathEnd {
    /// Reads the answer behind `commands` from `position` on, to its end or the path's.
    pub async fn read(self, commands: CommandSender, position: Position, sender: &NewsSender) {
        let Self { path, mut packets, mut frames, id } = self;
        let config = ReceiverConfig::with_another_path();
        let mut reader = PathReader {
            path,
            begun: Instant::now(),
            receiver: Receiver::new(Micros::ZERO, CHANNEL, position.offset, config),
            packets: BTreeMap::new(),
            sent: 0,
            by_stream: false,
            position,
            leave: LeaveOnDrop { commands, id },
            sender,
        };
        while reader.drive().await {
            let wake_at = reader.wake_at();
            tokio::select! {
                biased;
                // None once the answer's task has dropped its end: what it says is in the frames.
                Some((at, packet)) = packets.recv() => reader.put(at, Packet::ToReader(packet)),
                frame = frames.recv() => match frame {
                    Some(StreamFrame::Frame(frame)) => reader.handle_frame(&frame),
                    Some(StreamFrame::End(Code::None)) => return,
                    _ => return sender.send(ReaderNews::Ended),
                },
                () = tokio::time::sleep_until(wake_at) => reader.deliver().await,
            }
        }
    }
}

impl PathReader<'_> {
    fn now(&self) -> Micros {
        self.begun.elapsed().into()
    }

    fn put(&mut self, at: Instant, packet: Packet) {
        self.sent += 1;
        self.packets.insert((at, self.sent), packet);
    }

    fn wake_at(&self) -> Instant {
        let timer = self.receiver.poll_timeout().map(|at| self.begun + Duration::from(at));
        let packet = self.packets.keys().next().map(|(at, _)| *at);
        let far = self.begun + Duration::from_secs(3_600);
        timer.into_iter().chain(packet).min().unwrap_or(far)
    }

    /// Takes a frame of the QUIC stream.
    fn handle_frame(&mut self, frame: &[u8]) {
        let now = self.now();
        if self.receiver.handle_datagram(now, frame).is_ok() && !self.by_stream {
            self.receiver.acknowledge_at_once(now);
            self.by_stream = true;
        }
    }

    /// Delivers the packets that have arrived by now.
    async fn deliver(&mut self) {
        while let Some(first) = self.packets.first_entry()
            && first.key().0 <= Instant::now()
        {
            match first.remove() {
                Packet::ToReader(packet) => {
                    let now = self.now();
                    if self.receiver.handle_datagram(now, &packet).is_ok() {
                        self.by_stream = false;
                    }
                }
                Packet::ToServer(packet) => self.tell_server(packet).await,
            }
        }
    }

    async fn tell_server(&self, frame: Bytes) {
        let LeaveOnDrop { commands, id } = &self.leave;
        drop(commands.send(AnswerCommand::Frame(*id, frame)).await);
    }

    /// Tells what is new and sends what is due; returns false once the reader is through.
    async fn drive(&mut self) -> bool {
        let now = self.now();
        self.receiver.handle_timeout(now);
        while let Some(event) = self.receiver.poll_event() {
            match event {
                ReceiverEvent::Delta { offset, delta } => self.tell(offset, &delta),
                ReceiverEvent::Complete => {}
                ReceiverEvent::Failed(Some(error)) => {
                    self.sender.send(ReaderNews::Unreadable(error));
                    return false;
                }
                ReceiverEvent::Failed(None) | ReceiverEvent::Silent => {
                    self.sender.send(ReaderNews::Ended);
                    return false;
                }
            }
        }
        let mut frame = Vec::new();
        while self.receiver.poll_transmit(now, &mut frame).is_some() {
            let sent = Bytes::from(std::mem::take(&mut frame));
            for at in self.path.arrivals() {
                self.put(at, Packet::ToServer(sent.clone()));
            }
            if self.by_stream || self.receiver.unanswered_probes() >= 2 {
                self.tell_server(sent).await;
            }
        }
        !self.receiver.is_closed()
    }

    /// Tells the record that ends at `offset`.
    fn tell(&mut self, offset: u64, delta: &Delta) {
        let mut bytes = Vec::new();
        delta.encode(&mut bytes).expect("it was a record");
        let position = Position { offset: offset - bytes.len() as u64, ..self.position };
        self.position.offset = offset;
        self.sender.send(ReaderNews::Piece { position, bytes, is_last: delta.is_last() });
    }
}
